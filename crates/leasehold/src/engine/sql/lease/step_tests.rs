use super::*;
use crate::engine::LockOptions;
use crate::types::{LockName, Mode};

const TTL: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn claim() -> Arc<Claim> {
    let name = LockName::new("a").unwrap();
    let holder = Arc::new(Holder::this_process());
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, None, TTL, holder))))
}

fn attempt(claim: &Arc<Claim>) -> Op {
    Op::Attempt { claim: Arc::clone(claim), queue: true }
}

/// A row, and the highest token.
#[derive(Default)]
struct Played {
    content: Content,
    last: u64,
}

impl Played {
    /// The outcome of one request, and whether the row must be written.
    fn one(&mut self, op: Op, now: Instant) -> (OpOutcome, bool) {
        let before = self.content.clone();
        let client_id = "0123456789abcdef".into();
        let (mut outcomes, _) =
            apply_all(&[op], &before, &mut self.content, &mut self.last, now, &client_id, &|_| false);
        (outcomes.remove(0), self.content != before)
    }
}

/// A holder, a waiter that was evicted, and their row.
fn evicted() -> (Played, Arc<Claim>, Arc<Claim>) {
    let (mut played, holds, waits) = (Played::default(), claim(), claim());
    assert!(matches!(played.one(attempt(&holds), at(1)).0, OpOutcome::Granted(..)));
    assert!(matches!(played.one(attempt(&waits), at(1)).0, OpOutcome::Queued { ahead: 0, .. }));
    assert!(matches!(played.one(Op::ForceRelease(waits.id), at(2)).0, OpOutcome::ForceReleaseDone(Some(_), None)));
    (played, holds, waits)
}

#[test]
fn an_evicted_waiter_gets_the_error_at_every_retry() {
    let (mut played, holds, waits) = evicted();
    for op in [attempt(&waits), Op::LookUp(waits.id), attempt(&waits)] {
        assert_eq!(played.one(op, at(3)), (OpOutcome::ForceReleased, false));
    }
    // The lock is free by then: the same.
    assert_eq!(played.one(Op::Release(holds.id), at(4)).0, OpOutcome::Released(ReleaseEffect::Released));
    assert!(!played.content.is_empty(), "an acquire in one statement would overwrite the eviction");
    assert_eq!(played.one(attempt(&waits), at(5)), (OpOutcome::ForceReleased, false));
    assert_eq!(played.one(Op::Release(waits.id), at(6)), (OpOutcome::Released(ReleaseEffect::Absent), true));
    assert!(played.content.is_empty());
    assert_eq!(played.one(Op::Release(waits.id), at(6)), (OpOutcome::Released(ReleaseEffect::Absent), false));
}

#[test]
fn an_evicted_holder_that_retries_gets_an_error_and_the_next_waiter_holds() {
    let (mut played, holds, next) = (Played::default(), claim(), claim());
    played.one(attempt(&holds), at(1));
    played.one(attempt(&next), at(1));
    assert!(matches!(played.one(Op::ForceRelease(holds.id), at(2)).0, OpOutcome::ForceReleaseDone(Some(_), Some(_))));
    assert_eq!(played.one(attempt(&holds), at(3)).0, OpOutcome::ForceReleased);
    assert!(matches!(played.one(Op::LookUp(next.id), at(3)).0, OpOutcome::Granted(..)));
}

#[test]
fn a_position_that_expired_is_no_eviction() {
    let (mut played, holds, waits) = (Played::default(), claim(), claim());
    played.one(attempt(&holds), at(1));
    played.one(attempt(&waits), at(1));
    played.one(Op::Renew(holds.id), at(9));
    assert!(matches!(played.one(Op::Release(holds.id), at(12)).0, OpOutcome::Released(ReleaseEffect::Released)));
    assert!(matches!(played.one(Op::LookUp(waits.id), at(12)).0, OpOutcome::Busy { .. }));
    assert!(matches!(played.one(attempt(&waits), at(12)).0, OpOutcome::Granted(..)));
}

/// No write is made only for that.
#[test]
fn an_eviction_is_dropped_after_its_ttl_with_the_next_write() {
    let (mut played, holds, waits) = evicted();
    played.one(Op::Renew(holds.id), at(9));
    assert_eq!(played.one(Op::Check, at(13)), (OpOutcome::Checked, false));
    assert!(played.content.evictions.has(waits.id));
    assert_eq!(played.one(Op::Renew(holds.id), at(14)).0, OpOutcome::Renewed(Some(at(24))));
    assert!(!played.content.evictions.has(waits.id));
}
