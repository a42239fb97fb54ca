//! Computes when a command whose lock is in danger gets TERM and KILL. Pure functions of time.

use std::time::Duration;

use clap::ValueEnum;
use leasehold::LostReason;
use leasehold::clock::Moment;

/// How long starting a command may take.
const START: Duration = Duration::from_secs(1);

/// What happens to the command when the lock is lost
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace
    Term,
    /// KILL at once
    Kill,
    /// Only a warning: the command runs on without the lock
    Ignore,
}

/// The rules of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    /// How long before the end of the lease KILL is sent: the time that a killed process takes to
    /// die.
    pub(crate) margin: Duration,
    pub(crate) ttl: Duration,
}

/// The lease as last seen: how long the lock is held without a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) deadline: Moment,
    /// Its length when we first saw it. An engine may grant less than the TTL.
    length: Duration,
}

impl Lease {
    /// A lease that ends at `deadline`, as seen at `now`. A lease that ends at the `cap` of its
    /// hold is not renewed: the command may use all of it.
    pub(crate) fn new(deadline: Moment, now: Moment, cap: Moment) -> Self {
        // The cap of the grant counts from slightly earlier than ours.
        let last = deadline.after(START) >= cap;
        Self { deadline, length: if last { Duration::MAX } else { deadline.since(now) } }
    }
}

/// When the group gets TERM and KILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) term_at: Moment,
    pub(crate) kill_at: Moment,
}

/// The signal that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Term,
    Kill,
}

/// Validates the options against each other and fills in the defaults.
pub(crate) fn rules(
    on_lost: OnLost,
    grace: Option<Duration>,
    ttl: Duration,
    max_hold: Option<Duration>,
) -> Result<Rules, String> {
    let longest = max_hold.map_or(ttl, |most| most.min(ttl));
    let margin = (longest / 20).min(Duration::from_millis(500));
    let grace = grace.unwrap_or_else(|| (longest / 3).min(Duration::from_secs(5)));
    if on_lost == OnLost::Term && grace >= ttl / 2 {
        return Err(format!(
            "--grace {grace:?} is too long for --ttl {ttl:?}: TERM is sent when only the grace is left of the lease, which is \
             renewed after a third of it; take a grace below half of the TTL, or a longer TTL"
        ));
    }
    if let Some(most) = max_hold.filter(|most| on_lost == OnLost::Term && grace >= *most) {
        return Err(format!(
            "--grace {grace:?} leaves nothing of --max-hold {most:?}: TERM is sent so long before its end"
        ));
    }
    Ok(Rules { on_lost, grace, margin, ttl })
}

impl Rules {
    /// The schedule for a lease that ends at its deadline unless it is renewed.
    pub(crate) fn before(&self, lease: Lease) -> Schedule {
        let kill_at = lease.deadline.before(self.margin(lease));
        match self.on_lost {
            OnLost::Term => {
                let grace = self.grace.min(renewable(lease.length, self.ttl));
                Schedule { term_at: lease.deadline.before(grace).min(kill_at), kill_at }
            }
            OnLost::Kill => Schedule { term_at: Moment::NEVER, kill_at },
            OnLost::Ignore => Schedule::NEVER,
        }
    }

    fn margin(&self, lease: Lease) -> Duration {
        self.margin.min(renewable(lease.length, self.ttl) / 2)
    }

    /// The schedule after the lock was lost for this reason at `now`. Only an evicted holder has a
    /// grace left; for any other reason the lease is over.
    pub(crate) fn after(&self, reason: LostReason, now: Moment) -> Schedule {
        match (self.on_lost, reason) {
            (OnLost::Term, LostReason::Taken) => Schedule { term_at: now, kill_at: now.after(self.grace) },
            (OnLost::Ignore, _) => Schedule::NEVER,
            _ => Schedule { term_at: Moment::NEVER, kill_at: now },
        }
    }

    /// The schedule after an operator requested the release at `now`: the lease lasts until its
    /// deadline, and is not renewed.
    pub(crate) fn when_asked(&self, lease: Lease, now: Moment) -> Schedule {
        match self.on_lost {
            OnLost::Term => Schedule { term_at: now, ..self.before(lease) },
            OnLost::Kill => Schedule { term_at: Moment::NEVER, kill_at: now },
            OnLost::Ignore => Schedule::NEVER,
        }
    }

    /// The schedule for the warden, which acts after us, but still before the lease ends.
    pub(crate) fn for_warden(&self, schedule: Schedule, lease: Lease) -> Schedule {
        let later = self.margin(lease) / 2;
        Schedule { term_at: schedule.term_at.after(later), kill_at: schedule.kill_at.after(later) }
    }
}

/// How much of a lease the grace may cover: three quarters of the time left at a renewal. A lease
/// is renewed after a third of the TTL or half of the lease, whichever comes first. A longer grace
/// would end commands whose lock is renewed in time.
fn renewable(length: Duration, ttl: Duration) -> Duration {
    length.saturating_sub(ttl / 3).max(length / 2) / 4 * 3
}

impl Schedule {
    pub(crate) const NEVER: Self = Self { term_at: Moment::NEVER, kill_at: Moment::NEVER };

    /// What is due now.
    pub(crate) fn due(self, now: Moment) -> Due {
        if now >= self.kill_at {
            Due::Kill
        } else if now >= self.term_at {
            Due::Term
        } else {
            Due::Nothing
        }
    }

    /// When something is due next.
    pub(crate) fn next(self) -> Moment {
        self.term_at.min(self.kill_at)
    }

    /// The same after TERM was sent.
    pub(crate) fn termed(self) -> Self {
        Self { term_at: Moment::NEVER, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(SECOND * u32::try_from(seconds).unwrap())
    }

    /// A lease of 30 s.
    fn until(seconds: u64) -> Lease {
        Lease::new(at(seconds), at(seconds - 30), Moment::NEVER)
    }

    #[test]
    fn term_leaves_the_grace_and_kill_comes_before_the_end() {
        let rules = rules(OnLost::Term, None, SECOND * 30, None).unwrap();
        let schedule = rules.before(until(100));
        assert_eq!((rules.grace, schedule.term_at), (SECOND * 5, at(95)));
        assert!(schedule.kill_at > at(99) && schedule.kill_at < at(100));
        let warden = rules.for_warden(schedule, until(100));
        assert!(warden.term_at > schedule.term_at && warden.kill_at > schedule.kill_at && warden.kill_at < at(100));
        assert_eq!(schedule.due(at(94)), Due::Nothing);
        assert_eq!(schedule.due(at(95)), Due::Term);
        assert_eq!(schedule.termed().due(at(95)), Due::Nothing);
        assert_eq!(schedule.termed().due(at(100)), Due::Kill);
    }

    #[test]
    fn a_lease_shorter_than_the_ttl_is_renewed_before_anything_ends() {
        let milliseconds = Duration::from_millis;
        for (ttl, grace, length) in [
            (milliseconds(6_000), None, milliseconds(3_360)),
            (SECOND * 30, None, milliseconds(5_800)),
            (SECOND * 30, None, milliseconds(600)),
            (SECOND * 10, Some(milliseconds(4_900)), milliseconds(5_800)),
        ] {
            let rules = rules(OnLost::Term, grace, ttl, None).unwrap();
            let lease = Lease::new(at(100), at(100).before(length), Moment::NEVER);
            let renewed = at(100).before(length).after((ttl / 3).min(length / 2));
            let schedule = rules.before(lease);
            let warden = rules.for_warden(schedule, lease);
            let row = [renewed.after(length / 10), schedule.term_at, schedule.kill_at, warden.kill_at, at(100)];
            assert!(row.is_sorted(), "{ttl:?}, {length:?}: {row:?}");
            assert!(warden.term_at < warden.kill_at && warden.kill_at < at(100), "{ttl:?}, {length:?}: {warden:?}");
        }
        // A grace of nearly half of the TTL fits into a lease that lasts for the whole TTL.
        let long = rules(OnLost::Term, Some(SECOND * 14), SECOND * 30, None).unwrap();
        assert_eq!(long.before(until(100)).term_at, at(86));
        // A lease that is not renewed any more is used to its end.
        let most = rules(OnLost::Term, Some(SECOND * 8), SECOND * 30, Some(SECOND * 10)).unwrap();
        assert_eq!(most.before(Lease::new(at(100), at(90), at(100))).term_at, at(92));
    }

    #[test]
    fn whoever_is_evicted_has_a_grace_and_whoever_was_late_has_none() {
        let rules = rules(OnLost::Term, None, SECOND * 30, None).unwrap();
        assert_eq!(rules.after(LostReason::Taken, at(9)), Schedule { term_at: at(9), kill_at: at(14) });
        assert_eq!(rules.after(LostReason::Expired, at(9)).due(at(9)), Due::Kill);
        assert_eq!(rules.after(LostReason::MaxHold, at(9)).due(at(9)), Due::Kill);
    }

    #[test]
    fn whoever_is_asked_has_until_its_deadline() {
        let rules = rules(OnLost::Term, None, SECOND * 30, None).unwrap();
        let schedule = rules.when_asked(until(100), at(80));
        assert_eq!(schedule.term_at, at(80));
        assert!(at(99) < schedule.kill_at && schedule.kill_at < at(100), "{schedule:?}");
        let ignore = Rules { on_lost: OnLost::Ignore, ..rules };
        assert_eq!(ignore.when_asked(until(100), at(80)), Schedule::NEVER);
        let kill = Rules { on_lost: OnLost::Kill, ..rules };
        assert_eq!(kill.when_asked(until(100), at(80)).due(at(80)), Due::Kill);
    }

    #[test]
    fn the_other_policies_kill_at_once_or_never() {
        let kill = rules(OnLost::Kill, None, SECOND * 30, None).unwrap();
        assert_eq!(kill.before(until(100)).term_at, Moment::NEVER);
        assert_eq!(kill.after(LostReason::Taken, at(9)).due(at(9)), Due::Kill);
        let ignore = rules(OnLost::Ignore, None, SECOND * 30, None).unwrap();
        assert_eq!(ignore.for_warden(ignore.before(until(100)), until(100)), Schedule::NEVER);
        assert_eq!(ignore.after(LostReason::Expired, at(9)), Schedule::NEVER);
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_with_the_reason() {
        assert!(rules(OnLost::Term, Some(SECOND * 15), SECOND * 30, None).unwrap_err().contains("below half"));
        assert!(
            rules(OnLost::Term, Some(SECOND * 9), SECOND * 30, Some(SECOND * 8)).unwrap_err().contains("--max-hold")
        );
        assert!(rules(OnLost::Ignore, Some(SECOND * 15), SECOND * 30, None).is_ok());
        // A grace of zero is a KILL just before the end.
        let none = rules(OnLost::Term, Some(Duration::ZERO), SECOND * 30, None).unwrap();
        let schedule = none.before(until(100));
        assert_eq!(schedule.term_at, schedule.kill_at);
    }
}
