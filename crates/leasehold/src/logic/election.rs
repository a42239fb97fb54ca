//! Which master to follow when several Sentinels name different ones.
//!
//! Each election has an epoch, which only rises. One Sentinel may know of an election before the
//! others do, and it is right: a majority has voted for it. So the newest election counts,
//! whichever Sentinel names it. A client that follows it does not return to an older election
//! because Sentinels that do not know it yet answer faster.
//!
//! | event | consequence |
//! |---|---|
//! | a client that follows no election yet finds several | it waits for every Sentinel, but for a quarter of the connection timeout at most once most have answered, and follows the newest. A Sentinel that has not answered by then may be the only one that knows a newer election: the client follows the newest that it knows until that Sentinel answers |
//! | only one Sentinel names a newer election | followed at once: the old master may continue, but its writes will be lost |
//! | that Sentinel then dies or hangs | the client stays; the other Sentinels learn of the election within seconds, or hold a newer one |
//! | the others never learn of it, and undo it | a majority names the same older election for [`VOID`]: followed as a new one |
//! | epochs start over (Sentinels redeployed, `SENTINEL REMOVE` and `MONITOR`) | the same |
//! | a Sentinel names a wrong epoch, far too high | followed; the server there must report that it is a master. Once that Sentinel is repaired, the same. Until then the client may switch back and forth: `leasehold doctor` fails on Sentinels that disagree |
//! | no Sentinel reports epochs (`SENTINEL MASTER` is not permitted) | the master that a majority names counts |

use std::time::Duration;

use crate::clock::Moment;

/// How long a majority must name the same older election before it counts. Sentinels exchange state
/// every two seconds.
pub const VOID: Duration = Duration::from_secs(10);

/// What one Sentinel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<M> {
    /// The master.
    pub master: M,
    /// The election that made it the master; `None` if the Sentinel does not report it.
    pub epoch: Option<u64>,
}

/// What to do with the Sentinels' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// There is another master, or the same one by a newer election: leave the present connection.
    Follow,
    /// The present election is the newest.
    Keep,
    /// All Sentinels that answered name an older election, which does not count (yet).
    Older,
}

/// The election that a client follows.
#[derive(Clone, Debug)]
pub struct Followed<M> {
    sentinels: usize,
    current: Option<Named<M>>,
    /// Rises with each election that the client follows, including a return to an older one.
    number: u64,
    /// An older election that a majority names, and since when.
    older: Option<(Named<M>, Moment)>,
}

impl<M: Clone + PartialEq> Followed<M> {
    /// None so far, with this many Sentinels.
    pub fn new(sentinels: usize) -> Self {
        Self { sentinels, current: None, number: 0, older: None }
    }

    /// The election that the client follows.
    pub fn current(&self) -> Option<&Named<M>> {
        self.current.as_ref()
    }

    /// Counts elections: at least the epoch, and more after a return to an older one. A server that
    /// is the master again under a higher number has missed the writes in between.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the answers so far are enough to decide: most Sentinels have answered, and name the
    /// present election or a newer one. A client that follows no election waits for all Sentinels:
    /// most of them may know only an old election, and nothing would reveal that.
    pub fn is_enough(&self, named: &[Named<M>]) -> bool {
        match &self.current {
            Some(current) => {
                named.len() > self.sentinels / 2 && named.iter().any(|one| one == current || one.epoch > current.epoch)
            }
            None => named.len() >= self.sentinels,
        }
    }

    /// Decides from the answers of the Sentinels so far.
    pub fn hear(&mut self, now: Moment, named: &[Named<M>]) -> Choice {
        let Some(newest) = newest(named) else {
            self.older = None;
            return Choice::Older;
        };
        let Some(current) = &mut self.current else {
            self.adopt(newest.clone());
            return Choice::Follow;
        };
        if newest.epoch > current.epoch && newest.master == current.master && current.epoch.is_none() {
            // Its epoch was not known so far.
            current.epoch = newest.epoch;
            self.number = self.number.max(newest.epoch.unwrap_or_default());
            return Choice::Keep;
        }
        if newest.epoch > current.epoch {
            self.adopt(newest.clone());
            return Choice::Follow;
        }
        if named.contains(current) {
            self.older = None;
            return Choice::Keep;
        }
        let most = named.iter().find(|one| count(named, one) > self.sentinels / 2);
        match (most, &self.older) {
            (None, _) => self.older = None,
            (Some(most), Some((known, since))) if known == most => {
                if now.since(*since) >= VOID {
                    return self.go_back(most.clone());
                }
            }
            // Without epochs no election is older or newer.
            (Some(most), _) if most.epoch.is_none() && current.epoch.is_none() => return self.go_back(most.clone()),
            (Some(most), _) => self.older = Some((most.clone(), now)),
        }
        Choice::Older
    }

    fn adopt(&mut self, election: Named<M>) {
        self.number = self.number.max(election.epoch.unwrap_or_default());
        self.current = Some(election);
        self.older = None;
    }

    fn go_back(&mut self, election: Named<M>) -> Choice {
        self.number += 1;
        self.adopt(election);
        Choice::Follow
    }
}

fn count<M: PartialEq>(named: &[Named<M>], one: &Named<M>) -> usize {
    named.iter().filter(|other| *other == one).count()
}

/// The newest election; among several with one epoch, the one that most Sentinels name.
fn newest<M: PartialEq>(named: &[Named<M>]) -> Option<&Named<M>> {
    named.iter().max_by_key(|one| (one.epoch, count(named, one)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(master: char, epoch: u64) -> Named<char> {
        Named { master, epoch: Some(epoch) }
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// A client that follows election 5, which made B the master.
    fn on_b() -> Followed<char> {
        let mut followed = Followed::new(3);
        assert_eq!(followed.hear(at(0), &[named('A', 4), named('B', 5)]), Choice::Follow);
        followed
    }

    #[test]
    fn an_older_election_is_not_followed_though_a_majority_names_it() {
        let mut followed = on_b();
        for seconds in 1..10 {
            assert_eq!(followed.hear(at(seconds), &[named('A', 4), named('A', 4)]), Choice::Older);
        }
        assert_eq!(followed.current(), Some(&named('B', 5)));
        assert_eq!(followed.hear(at(10), &[named('A', 4), named('A', 4), named('B', 5)]), Choice::Keep);
    }

    #[test]
    fn one_sentinel_is_enough_for_a_newer_election() {
        let mut followed = on_b();
        assert_eq!(followed.hear(at(1), &[named('B', 5), named('A', 4), named('C', 6)]), Choice::Follow);
        assert_eq!((followed.current(), followed.number()), (Some(&named('C', 6)), 6));
        // The same server once more.
        assert_eq!(followed.hear(at(1), &[named('C', 7)]), Choice::Follow);
    }

    #[test]
    fn what_a_majority_names_for_long_enough_counts_and_is_a_new_election() {
        let mut followed = on_b();
        let reset = [named('A', 0), named('A', 0)];
        assert_eq!(followed.hear(at(1), &reset), Choice::Older);
        // Without the majority, or with another election, the time starts over.
        assert_eq!(followed.hear(at(5), &reset[..1]), Choice::Older);
        assert_eq!(followed.hear(at(6), &reset), Choice::Older);
        assert_eq!(followed.hear(at(15), &reset), Choice::Older);
        assert_eq!(followed.hear(at(16), &reset), Choice::Follow);
        assert_eq!((followed.current(), followed.number()), (Some(&named('A', 0)), 6), "above all that were followed");
        assert_eq!(followed.hear(at(17), &[named('B', 1)]), Choice::Follow, "epochs count from there on");
    }

    #[test]
    fn who_follows_none_waits_for_all_and_who_follows_one_for_most() {
        let mut followed = Followed::new(3);
        assert!(!followed.is_enough(&[named('A', 4), named('A', 4)]), "the third may know better");
        assert!(followed.is_enough(&[named('A', 4), named('A', 4), named('B', 5)]));
        followed.hear(at(0), &[named('B', 5)]);
        assert!(followed.is_enough(&[named('A', 4), named('B', 5)]));
        assert!(!followed.is_enough(&[named('B', 5)]));
        assert!(!followed.is_enough(&[named('A', 4), named('A', 4)]), "older ones only");
    }

    #[test]
    fn without_epochs_a_majority_counts() {
        let blind = |master| Named { master, epoch: None };
        let mut followed = Followed::new(3);
        assert_eq!(followed.hear(at(0), &[blind('A')]), Choice::Follow);
        assert_eq!(followed.hear(at(1), &[blind('A'), blind('B')]), Choice::Keep);
        assert_eq!(followed.hear(at(1), &[blind('B')]), Choice::Older);
        assert_eq!(followed.hear(at(2), &[blind('B'), blind('B')]), Choice::Follow);
        assert_eq!(followed.hear(at(2), &[named('B', 3)]), Choice::Keep);
        assert_eq!(followed.hear(at(3), &[blind('A'), blind('A')]), Choice::Older, "those that tell count more");
    }

    fn answers() -> impl Strategy<Value = Vec<Named<char>>> {
        let one = (prop::sample::select(vec!['A', 'B']), 0u64..4).prop_map(|(master, epoch)| named(master, epoch));
        prop::collection::vec(one, 0..=3)
    }

    proptest! {
        #[test]
        fn the_epoch_falls_only_by_a_majority_over_time(heard in prop::collection::vec((0u64..12, answers()), 1..40)) {
            let mut followed = Followed::new(3);
            let (mut now, mut last, mut number) = (0, None, 0);
            let mut below: Vec<(u64, Vec<Named<char>>)> = Vec::new();
            for (passed, answers) in heard {
                now += passed;
                let choice = followed.hear(at(now), &answers);
                let epoch = followed.current().and_then(|current| current.epoch);
                prop_assert!(followed.number() >= number);
                below.push((now, answers.clone()));
                if epoch < last {
                    prop_assert_eq!(choice, Choice::Follow);
                    prop_assert!(followed.number() > number);
                    let one = followed.current().cloned().expect("one");
                    let whole = below.iter().rev().take_while(|(_, answers)| count(answers, &one) > 1);
                    let first = whole.last().map_or(now, |(first, _)| *first);
                    prop_assert!(now - first >= 10, "{below:?}");
                }
                (last, number) = (epoch, followed.number());
            }
        }
    }
}
