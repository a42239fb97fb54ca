//! Which master to follow when several Sentinels name different ones.
//!
//! Each election has an epoch, which only rises. One Sentinel may know of an election before the
//! others do, and it is right: a majority has voted for it. So the newest election counts,
//! whichever Sentinel names it. A client that follows it does not return to an older election when
//! Sentinels that do not know the newest yet answer faster.
//!
//! | event | consequence |
//! |---|---|
//! | a client that follows no election yet finds several | it waits for every Sentinel, but for a quarter of the connection timeout at most once most have answered, and follows the newest. A Sentinel that has not answered by then may be the only one that knows a newer election: the client follows the newest that it knows until that Sentinel answers |
//! | only one Sentinel names a newer election | followed at once: the old master may continue, but its writes will be lost |
//! | that Sentinel then dies or hangs | the client stays; the other Sentinels learn of the election within seconds, or hold a newer one |
//! | the others never learn of it, and undo it | a majority names the same older election for [`OLDER_ELECTION_TIMEOUT`]: followed as a new one |
//! | epochs start over (Sentinels redeployed, `SENTINEL REMOVE` and `MONITOR`) | the same |
//! | a Sentinel names a wrong epoch, far too high | followed; the server there must report that it is a master. Once that Sentinel is repaired, the same. Until then the client may switch back and forth: `leasehold doctor` fails on Sentinels that disagree |
//! | no Sentinel reports epochs (`SENTINEL MASTER` is not permitted) | the master that a majority names counts |

use std::time::Duration;

use crate::types::Instant;

/// How long a majority must name the same older election before a client returns to it. Sentinels
/// exchange their state every two seconds.
pub const OLDER_ELECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer of one Sentinel: the master, and the election that made it the master. `M` identifies
/// a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterReport<M> {
    /// The master.
    pub master: M,
    /// The epoch of the election; `None` if the Sentinel does not report it.
    pub epoch: Option<u64>,
}

/// What a client does after the Sentinels' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterChoice {
    /// Connect again: there is another master, or the same one by a newer election.
    Follow,
    /// Keep the present connection: the election that the client follows is the newest.
    Keep,
    /// Ask again: all Sentinels that answered name an older election, which does not count (yet).
    WaitForMajority,
}

/// The election that a client follows, and the master that it made.
#[derive(Clone, Debug)]
pub struct FollowedMaster<M> {
    /// The number of Sentinels.
    sentinels: usize,
    /// The followed election; `None`: none so far.
    current: Option<MasterReport<M>>,
    /// Rises with each election that the client follows, including a return to an older one.
    election_number: u64,
    /// An older election that a majority names, and since when.
    older_candidate: Option<(MasterReport<M>, Instant)>,
}

impl<M: Clone + PartialEq> FollowedMaster<M> {
    /// A client of this many Sentinels that follows no election yet.
    pub fn new(sentinels: usize) -> Self {
        Self { sentinels, current: None, election_number: 0, older_candidate: None }
    }

    /// The election that the client follows; `None`: none so far.
    pub fn current(&self) -> Option<&MasterReport<M>> {
        self.current.as_ref()
    }

    /// A number for the followed election that only rises: at least its epoch, and more after a
    /// return to an older one. A server that is the master again under a higher number has missed
    /// the writes in between.
    pub fn election_number(&self) -> u64 {
        self.election_number
    }

    /// Whether the answers so far are enough to decide: most Sentinels have answered, and name the
    /// present election or a newer one. A client that follows no election waits for all Sentinels:
    /// most of them may know only an old election, and no answer would reveal that.
    pub fn has_enough_answers(&self, reports: &[MasterReport<M>]) -> bool {
        match &self.current {
            Some(current) => {
                reports.len() > self.sentinels / 2
                    && reports.iter().any(|one| one == current || one.epoch > current.epoch)
            }
            None => reports.len() >= self.sentinels,
        }
    }

    /// Chooses what to do by the answers of the Sentinels so far, and follows another election if
    /// that is the choice.
    pub fn choose(&mut self, now: Instant, reports: &[MasterReport<M>]) -> MasterChoice {
        let Some(newest) = newest(reports) else {
            self.older_candidate = None;
            return MasterChoice::WaitForMajority;
        };
        let Some(current) = &mut self.current else {
            self.adopt(newest.clone());
            return MasterChoice::Follow;
        };
        if newest.epoch > current.epoch && newest.master == current.master && current.epoch.is_none() {
            // Its epoch was not known so far.
            current.epoch = newest.epoch;
            self.election_number = self.election_number.max(newest.epoch.unwrap_or_default());
            return MasterChoice::Keep;
        }
        if newest.epoch > current.epoch {
            self.adopt(newest.clone());
            return MasterChoice::Follow;
        }
        if reports.contains(current) {
            self.older_candidate = None;
            return MasterChoice::Keep;
        }
        let majority = reports.iter().find(|one| count_reports(reports, one) > self.sentinels / 2);
        match (majority, &self.older_candidate) {
            (None, _) => self.older_candidate = None,
            (Some(majority), Some((known, since))) if known == majority => {
                if now.duration_since(*since) >= OLDER_ELECTION_TIMEOUT {
                    return self.return_to_older(majority.clone());
                }
            }
            // Without epochs no election is older or newer.
            (Some(majority), _) if majority.epoch.is_none() && current.epoch.is_none() => {
                return self.return_to_older(majority.clone());
            }
            (Some(majority), _) => self.older_candidate = Some((majority.clone(), now)),
        }
        MasterChoice::WaitForMajority
    }

    /// Follows this election.
    fn adopt(&mut self, election: MasterReport<M>) {
        self.election_number = self.election_number.max(election.epoch.unwrap_or_default());
        self.current = Some(election);
        self.older_candidate = None;
    }

    /// Follows an election that is older than the present one.
    fn return_to_older(&mut self, election: MasterReport<M>) -> MasterChoice {
        self.election_number += 1;
        self.adopt(election);
        MasterChoice::Follow
    }
}

/// How many Sentinels report this election and master.
fn count_reports<M: PartialEq>(reports: &[MasterReport<M>], report: &MasterReport<M>) -> usize {
    reports.iter().filter(|other| *other == report).count()
}

/// The newest election; among several with one epoch, the one that most Sentinels name. `None`: no
/// Sentinel answered.
fn newest<M: PartialEq>(reports: &[MasterReport<M>]) -> Option<&MasterReport<M>> {
    reports.iter().max_by_key(|report| (report.epoch, count_reports(reports, report)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(master: char, epoch: u64) -> MasterReport<char> {
        MasterReport { master, epoch: Some(epoch) }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// A client that follows election 5, which made B the master.
    fn following_b() -> FollowedMaster<char> {
        let mut followed = FollowedMaster::new(3);
        assert_eq!(followed.choose(at(0), &[report('A', 4), report('B', 5)]), MasterChoice::Follow);
        followed
    }

    #[test]
    fn an_older_election_is_not_followed_though_a_majority_names_it() {
        let mut followed = following_b();
        for seconds in 1..10 {
            assert_eq!(followed.choose(at(seconds), &[report('A', 4), report('A', 4)]), MasterChoice::WaitForMajority);
        }
        assert_eq!(followed.current(), Some(&report('B', 5)));
        assert_eq!(followed.choose(at(10), &[report('A', 4), report('A', 4), report('B', 5)]), MasterChoice::Keep);
    }

    #[test]
    fn one_sentinel_is_enough_for_a_newer_election() {
        let mut followed = following_b();
        assert_eq!(followed.choose(at(1), &[report('B', 5), report('A', 4), report('C', 6)]), MasterChoice::Follow);
        assert_eq!((followed.current(), followed.election_number()), (Some(&report('C', 6)), 6));
        // The same server once more.
        assert_eq!(followed.choose(at(1), &[report('C', 7)]), MasterChoice::Follow);
    }

    #[test]
    fn an_election_that_a_majority_names_for_long_enough_is_followed_as_new() {
        let mut followed = following_b();
        let reset = [report('A', 0), report('A', 0)];
        assert_eq!(followed.choose(at(1), &reset), MasterChoice::WaitForMajority);
        // Without the majority, or with another election, the time starts over.
        assert_eq!(followed.choose(at(5), &reset[..1]), MasterChoice::WaitForMajority);
        assert_eq!(followed.choose(at(6), &reset), MasterChoice::WaitForMajority);
        assert_eq!(followed.choose(at(15), &reset), MasterChoice::WaitForMajority);
        assert_eq!(followed.choose(at(16), &reset), MasterChoice::Follow);
        assert_eq!(
            (followed.current(), followed.election_number()),
            (Some(&report('A', 0)), 6),
            "above all that were followed"
        );
        assert_eq!(followed.choose(at(17), &[report('B', 1)]), MasterChoice::Follow, "epochs count from there on");
    }

    #[test]
    fn a_new_client_waits_for_all_sentinels_and_a_following_one_for_most() {
        let mut followed = FollowedMaster::new(3);
        assert!(!followed.has_enough_answers(&[report('A', 4), report('A', 4)]), "the third may know better");
        assert!(followed.has_enough_answers(&[report('A', 4), report('A', 4), report('B', 5)]));
        followed.choose(at(0), &[report('B', 5)]);
        assert!(followed.has_enough_answers(&[report('A', 4), report('B', 5)]));
        assert!(!followed.has_enough_answers(&[report('B', 5)]));
        assert!(!followed.has_enough_answers(&[report('A', 4), report('A', 4)]), "older ones only");
    }

    #[test]
    fn without_epochs_a_majority_counts() {
        let without_epoch = |master| MasterReport { master, epoch: None };
        let mut followed = FollowedMaster::new(3);
        assert_eq!(followed.choose(at(0), &[without_epoch('A')]), MasterChoice::Follow);
        assert_eq!(followed.choose(at(1), &[without_epoch('A'), without_epoch('B')]), MasterChoice::Keep);
        assert_eq!(followed.choose(at(1), &[without_epoch('B')]), MasterChoice::WaitForMajority);
        assert_eq!(followed.choose(at(2), &[without_epoch('B'), without_epoch('B')]), MasterChoice::Follow);
        assert_eq!(followed.choose(at(2), &[report('B', 3)]), MasterChoice::Keep);
        assert_eq!(
            followed.choose(at(3), &[without_epoch('A'), without_epoch('A')]),
            MasterChoice::WaitForMajority,
            "a known epoch counts more than none"
        );
    }

    fn answers() -> impl Strategy<Value = Vec<MasterReport<char>>> {
        let one = (prop::sample::select(vec!['A', 'B']), 0u64..4).prop_map(|(master, epoch)| report(master, epoch));
        prop::collection::vec(one, 0..=3)
    }

    proptest! {
        #[test]
        fn the_epoch_falls_only_by_a_majority_over_time(reports in prop::collection::vec((0u64..12, answers()), 1..40)) {
            let mut followed = FollowedMaster::new(3);
            let (mut now, mut last, mut number) = (0, None, 0);
            let mut below: Vec<(u64, Vec<MasterReport<char>>)> = Vec::new();
            for (passed, answers) in reports {
                now += passed;
                let choice = followed.choose(at(now), &answers);
                let epoch = followed.current().and_then(|current| current.epoch);
                prop_assert!(followed.election_number() >= number);
                below.push((now, answers.clone()));
                if epoch < last {
                    prop_assert_eq!(choice, MasterChoice::Follow);
                    prop_assert!(followed.election_number() > number);
                    let one = followed.current().cloned().expect("one");
                    let whole = below.iter().rev().take_while(|(_, answers)| count_reports(answers, &one) > 1);
                    let first = whole.last().map_or(now, |(first, _)| *first);
                    prop_assert!(now - first >= 10, "{below:?}");
                }
                (last, number) = (epoch, followed.election_number());
            }
        }
    }
}
