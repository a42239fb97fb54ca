//! Computes when a command whose lock is in danger gets TERM and KILL. Pure functions of time.

use std::time::Duration;

use clap::ValueEnum;
use leasehold::LostReason;
use leasehold::clock::Instant;

/// How much later than the grant of its lock a command may start.
const MAX_START_TIME: Duration = Duration::from_secs(1);

/// What happens to the command when the lock is lost
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace
    Term,
    /// KILL at once
    Kill,
    /// Only a warning: the command continues without the lock
    Ignore,
}

/// What happens to the command of a run when its lock is in danger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossPolicy {
    pub(crate) on_lost: OnLost,
    /// The time between TERM and KILL.
    pub(crate) grace: Duration,
    /// How long before the end of the lease KILL is sent: the time that a killed process takes to
    /// die.
    pub(crate) margin: Duration,
    pub(crate) ttl: Duration,
}

/// The lease as last seen: how long the lock is held without a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) deadline: Instant,
    /// The time left when this deadline was first seen, which may be less than the TTL;
    /// `Duration::MAX` if the lease is not renewed any more.
    duration: Duration,
}

impl Lease {
    /// A lease that ends at `deadline`, as seen at `now`. A lease that ends at the `max_deadline` of its
    /// hold is not renewed: the command may use all of it.
    pub(crate) fn new(deadline: Instant, now: Instant, max_deadline: Instant) -> Self {
        // The cap of the grant counts from slightly earlier than this deadline.
        let last = deadline.saturating_add(MAX_START_TIME) >= max_deadline;
        Self { deadline, duration: if last { Duration::MAX } else { deadline.duration_since(now) } }
    }
}

/// When the command's group gets TERM and KILL; `Instant::NEVER` for a signal that it does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalSchedule {
    pub(crate) term_at: Instant,
    pub(crate) kill_at: Instant,
}

/// The signal that the command's group should have got by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueSignal {
    None,
    Term,
    Kill,
}

/// Makes the policy from the options of a run; an error if they do not fit together. Without
/// `grace`, it is a third of the TTL or --max-hold, and at most 5 s.
pub(crate) fn resolve_policy(
    on_lost: OnLost,
    grace: Option<Duration>,
    ttl: Duration,
    max_hold: Option<Duration>,
) -> Result<LossPolicy, String> {
    let longest = max_hold.map_or(ttl, |max_hold| max_hold.min(ttl));
    let margin = (longest / 20).min(Duration::from_millis(500));
    let grace = grace.unwrap_or_else(|| (longest / 3).min(Duration::from_secs(5)));
    if on_lost == OnLost::Term && grace >= ttl / 2 {
        return Err(format!(
            "--grace {grace:?} is too long for --ttl {ttl:?}: TERM is sent when only the grace is left of the lease, which is \
             renewed after a third of it; take a grace below half of the TTL, or a longer TTL"
        ));
    }
    if let Some(max_hold) = max_hold.filter(|max_hold| on_lost == OnLost::Term && grace >= *max_hold) {
        return Err(format!(
            "--grace {grace:?} is not shorter than --max-hold {max_hold:?}: TERM is sent that long before its end"
        ));
    }
    Ok(LossPolicy { on_lost, grace, margin, ttl })
}

impl LossPolicy {
    /// The schedule for a lease that expires at its deadline unless it is renewed before.
    pub(crate) fn schedule_before_expiry(&self, lease: Lease) -> SignalSchedule {
        let kill_at = lease.deadline.saturating_sub(self.kill_margin(lease));
        match self.on_lost {
            OnLost::Term => {
                let grace = self.grace.min(max_grace(lease.duration, self.ttl));
                SignalSchedule { term_at: lease.deadline.saturating_sub(grace).min(kill_at), kill_at }
            }
            OnLost::Kill => SignalSchedule { term_at: Instant::NEVER, kill_at },
            OnLost::Ignore => SignalSchedule::NEVER,
        }
    }

    /// How long before the end of this lease KILL is sent: less than `margin` for a short lease.
    fn kill_margin(&self, lease: Lease) -> Duration {
        self.margin.min(max_grace(lease.duration, self.ttl) / 2)
    }

    /// The schedule after the lock was lost for this reason at `now`. Only a holder that was force
    /// released has a grace left; for any other reason the lease is over.
    pub(crate) fn schedule_after_loss(&self, reason: LostReason, now: Instant) -> SignalSchedule {
        match (self.on_lost, reason) {
            (OnLost::Term, LostReason::Revoked) => {
                SignalSchedule { term_at: now, kill_at: now.saturating_add(self.grace) }
            }
            (OnLost::Ignore, _) => SignalSchedule::NEVER,
            _ => SignalSchedule { term_at: Instant::NEVER, kill_at: now },
        }
    }

    /// The schedule after an operator requested the release at `now`: the lease lasts until its
    /// deadline, and is not renewed.
    pub(crate) fn schedule_after_release_request(&self, lease: Lease, now: Instant) -> SignalSchedule {
        match self.on_lost {
            OnLost::Term => SignalSchedule { term_at: now, ..self.schedule_before_expiry(lease) },
            OnLost::Kill => SignalSchedule { term_at: Instant::NEVER, kill_at: now },
            OnLost::Ignore => SignalSchedule::NEVER,
        }
    }

    /// The schedule for the supervisor process: somewhat later than `schedule`, which this process
    /// follows, but before the lease ends.
    pub(crate) fn supervisor_schedule(&self, schedule: SignalSchedule, lease: Lease) -> SignalSchedule {
        let later = self.kill_margin(lease) / 2;
        SignalSchedule {
            term_at: schedule.term_at.saturating_add(later),
            kill_at: schedule.kill_at.saturating_add(later),
        }
    }
}

/// How much of a lease the grace may cover: three quarters of the time left at a renewal. A lease
/// is renewed after a third of the TTL or half of the lease, whichever comes first. A longer grace
/// would end commands whose lock is renewed in time.
fn max_grace(duration: Duration, ttl: Duration) -> Duration {
    duration.saturating_sub(ttl / 3).max(duration / 2) / 4 * 3
}

impl SignalSchedule {
    /// No signal is ever due.
    pub(crate) const NEVER: Self = Self { term_at: Instant::NEVER, kill_at: Instant::NEVER };

    /// The signal that is due at `now`.
    pub(crate) fn due_signal(self, now: Instant) -> DueSignal {
        if now >= self.kill_at {
            DueSignal::Kill
        } else if now >= self.term_at {
            DueSignal::Term
        } else {
            DueSignal::None
        }
    }

    /// When the next signal is due.
    pub(crate) fn next_signal_at(self) -> Instant {
        self.term_at.min(self.kill_at)
    }

    /// What is left of the schedule after TERM was sent.
    pub(crate) fn without_term(self) -> Self {
        Self { term_at: Instant::NEVER, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0).saturating_add(SECOND * u32::try_from(seconds).unwrap())
    }

    /// A lease of 30 s.
    fn lease_until(seconds: u64) -> Lease {
        Lease::new(at(seconds), at(seconds - 30), Instant::NEVER)
    }

    #[test]
    fn term_is_sent_a_grace_before_expiry_and_kill_just_before_it() {
        let rules = resolve_policy(OnLost::Term, None, SECOND * 30, None).unwrap();
        let schedule = rules.schedule_before_expiry(lease_until(100));
        assert_eq!((rules.grace, schedule.term_at), (SECOND * 5, at(95)));
        assert!(schedule.kill_at > at(99) && schedule.kill_at < at(100));
        let supervisor = rules.supervisor_schedule(schedule, lease_until(100));
        assert!(
            supervisor.term_at > schedule.term_at
                && supervisor.kill_at > schedule.kill_at
                && supervisor.kill_at < at(100)
        );
        assert_eq!(schedule.due_signal(at(94)), DueSignal::None);
        assert_eq!(schedule.due_signal(at(95)), DueSignal::Term);
        assert_eq!(schedule.without_term().due_signal(at(95)), DueSignal::None);
        assert_eq!(schedule.without_term().due_signal(at(100)), DueSignal::Kill);
    }

    #[test]
    fn a_lease_shorter_than_the_ttl_is_renewed_before_any_signal_is_due() {
        let milliseconds = Duration::from_millis;
        for (ttl, grace, length) in [
            (milliseconds(6_000), None, milliseconds(3_360)),
            (SECOND * 30, None, milliseconds(5_800)),
            (SECOND * 30, None, milliseconds(600)),
            (SECOND * 10, Some(milliseconds(4_900)), milliseconds(5_800)),
        ] {
            let rules = resolve_policy(OnLost::Term, grace, ttl, None).unwrap();
            let lease = Lease::new(at(100), at(100).saturating_sub(length), Instant::NEVER);
            let renewed = at(100).saturating_sub(length).saturating_add((ttl / 3).min(length / 2));
            let schedule = rules.schedule_before_expiry(lease);
            let supervisor = rules.supervisor_schedule(schedule, lease);
            let row =
                [renewed.saturating_add(length / 10), schedule.term_at, schedule.kill_at, supervisor.kill_at, at(100)];
            assert!(row.is_sorted(), "{ttl:?}, {length:?}: {row:?}");
            assert!(
                supervisor.term_at < supervisor.kill_at && supervisor.kill_at < at(100),
                "{ttl:?}, {length:?}: {supervisor:?}"
            );
        }
        // A grace of nearly half of the TTL fits into a lease that lasts for the whole TTL.
        let long = resolve_policy(OnLost::Term, Some(SECOND * 14), SECOND * 30, None).unwrap();
        assert_eq!(long.schedule_before_expiry(lease_until(100)).term_at, at(86));
        // A lease that is not renewed any more is used to its end.
        let most = resolve_policy(OnLost::Term, Some(SECOND * 8), SECOND * 30, Some(SECOND * 10)).unwrap();
        assert_eq!(most.schedule_before_expiry(Lease::new(at(100), at(90), at(100))).term_at, at(92));
    }

    #[test]
    fn a_force_released_holder_has_a_grace_and_an_expired_one_has_none() {
        let rules = resolve_policy(OnLost::Term, None, SECOND * 30, None).unwrap();
        assert_eq!(
            rules.schedule_after_loss(LostReason::Revoked, at(9)),
            SignalSchedule { term_at: at(9), kill_at: at(14) }
        );
        assert_eq!(rules.schedule_after_loss(LostReason::Expired, at(9)).due_signal(at(9)), DueSignal::Kill);
        assert_eq!(rules.schedule_after_loss(LostReason::MaxHold, at(9)).due_signal(at(9)), DueSignal::Kill);
    }

    #[test]
    fn after_a_release_request_the_command_has_until_its_deadline() {
        let rules = resolve_policy(OnLost::Term, None, SECOND * 30, None).unwrap();
        let schedule = rules.schedule_after_release_request(lease_until(100), at(80));
        assert_eq!(schedule.term_at, at(80));
        assert!(at(99) < schedule.kill_at && schedule.kill_at < at(100), "{schedule:?}");
        let ignore = LossPolicy { on_lost: OnLost::Ignore, ..rules };
        assert_eq!(ignore.schedule_after_release_request(lease_until(100), at(80)), SignalSchedule::NEVER);
        let kill = LossPolicy { on_lost: OnLost::Kill, ..rules };
        assert_eq!(kill.schedule_after_release_request(lease_until(100), at(80)).due_signal(at(80)), DueSignal::Kill);
    }

    #[test]
    fn the_other_policies_kill_at_once_or_never() {
        let kill = resolve_policy(OnLost::Kill, None, SECOND * 30, None).unwrap();
        assert_eq!(kill.schedule_before_expiry(lease_until(100)).term_at, Instant::NEVER);
        assert_eq!(kill.schedule_after_loss(LostReason::Revoked, at(9)).due_signal(at(9)), DueSignal::Kill);
        let ignore = resolve_policy(OnLost::Ignore, None, SECOND * 30, None).unwrap();
        assert_eq!(
            ignore.supervisor_schedule(ignore.schedule_before_expiry(lease_until(100)), lease_until(100)),
            SignalSchedule::NEVER
        );
        assert_eq!(ignore.schedule_after_loss(LostReason::Expired, at(9)), SignalSchedule::NEVER);
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_with_the_reason() {
        assert!(resolve_policy(OnLost::Term, Some(SECOND * 15), SECOND * 30, None).unwrap_err().contains("below half"));
        assert!(
            resolve_policy(OnLost::Term, Some(SECOND * 9), SECOND * 30, Some(SECOND * 8))
                .unwrap_err()
                .contains("--max-hold")
        );
        assert!(resolve_policy(OnLost::Ignore, Some(SECOND * 15), SECOND * 30, None).is_ok());
        // A grace of zero is a KILL just before the end.
        let none = resolve_policy(OnLost::Term, Some(Duration::ZERO), SECOND * 30, None).unwrap();
        let schedule = none.schedule_before_expiry(lease_until(100));
        assert_eq!(schedule.term_at, schedule.kill_at);
    }
}
