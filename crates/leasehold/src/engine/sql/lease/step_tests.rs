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

/// The content of a row and its highest token, to which a test applies requests.
#[derive(Default)]
struct RowFixture {
    content: Content,
    last: u64,
}

impl RowFixture {
    /// Applies one request at `now`. Returns its outcome, and whether the row must be written.
    fn apply(&mut self, op: Op, now: Instant) -> (OpOutcome, bool) {
        let before = self.content.clone();
        let client_id = "0123456789abcdef".into();
        let (mut outcomes, _) =
            apply_all(&[op], &before, &mut self.content, &mut self.last, now, &client_id, &|_| false);
        (outcomes.remove(0), self.content != before)
    }
}

/// A row with a holder and a waiter that was force released; returns the row, the holder and the
/// waiter.
fn force_released_waiter() -> (RowFixture, Arc<Claim>, Arc<Claim>) {
    let (mut row, holder, waiter) = (RowFixture::default(), claim(), claim());
    assert!(matches!(row.apply(attempt(&holder), at(1)).0, OpOutcome::Granted(..)));
    assert!(matches!(row.apply(attempt(&waiter), at(1)).0, OpOutcome::Queued { ahead: 0, .. }));
    assert!(matches!(row.apply(Op::ForceRelease(waiter.id), at(2)).0, OpOutcome::ForceReleaseDone(Some(_), None)));
    (row, holder, waiter)
}

#[test]
fn a_force_released_waiter_gets_the_error_at_every_retry() {
    let (mut row, holder, waiter) = force_released_waiter();
    for op in [attempt(&waiter), Op::LookUp(waiter.id), attempt(&waiter)] {
        assert_eq!(row.apply(op, at(3)), (OpOutcome::ForceReleased, false));
    }
    // The waiter gets the error even when the lock is free.
    assert_eq!(row.apply(Op::Release(holder.id), at(4)).0, OpOutcome::Released(ReleaseEffect::Released));
    assert!(!row.content.is_empty(), "an acquire in one statement would overwrite the note of the force release");
    assert_eq!(row.apply(attempt(&waiter), at(5)), (OpOutcome::ForceReleased, false));
    assert_eq!(row.apply(Op::Release(waiter.id), at(6)), (OpOutcome::Released(ReleaseEffect::Absent), true));
    assert!(row.content.is_empty());
    assert_eq!(row.apply(Op::Release(waiter.id), at(6)), (OpOutcome::Released(ReleaseEffect::Absent), false));
}

#[test]
fn a_force_released_holder_that_retries_gets_an_error_and_the_next_waiter_holds() {
    let (mut row, holder, next) = (RowFixture::default(), claim(), claim());
    row.apply(attempt(&holder), at(1));
    row.apply(attempt(&next), at(1));
    assert!(matches!(row.apply(Op::ForceRelease(holder.id), at(2)).0, OpOutcome::ForceReleaseDone(Some(_), Some(_))));
    assert_eq!(row.apply(attempt(&holder), at(3)).0, OpOutcome::ForceReleased);
    assert!(matches!(row.apply(Op::LookUp(next.id), at(3)).0, OpOutcome::Granted(..)));
}

#[test]
fn a_position_that_expired_is_no_force_release() {
    let (mut row, holder, waiter) = (RowFixture::default(), claim(), claim());
    row.apply(attempt(&holder), at(1));
    row.apply(attempt(&waiter), at(1));
    row.apply(Op::Renew(holder.id), at(9));
    assert!(matches!(row.apply(Op::Release(holder.id), at(12)).0, OpOutcome::Released(ReleaseEffect::Released)));
    assert!(matches!(row.apply(Op::LookUp(waiter.id), at(12)).0, OpOutcome::Busy { .. }));
    assert!(matches!(row.apply(attempt(&waiter), at(12)).0, OpOutcome::Granted(..)));
}

/// The row is not written only to drop the note.
#[test]
fn the_note_of_a_force_release_is_dropped_after_its_ttl_with_the_next_write() {
    let (mut row, holder, waiter) = force_released_waiter();
    row.apply(Op::Renew(holder.id), at(9));
    assert_eq!(row.apply(Op::Check, at(13)), (OpOutcome::Checked, false));
    assert!(row.content.force_released_claims.has(waiter.id));
    assert_eq!(row.apply(Op::Renew(holder.id), at(14)).0, OpOutcome::Renewed(Some(at(24))));
    assert!(!row.content.force_released_claims.has(waiter.id));
}
