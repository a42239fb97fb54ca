//! A future is dropped at each await point, and leaves nothing behind.

use std::pin::pin;
use std::task::Poll;

use leasehold::Locks;
use leasehold_testbed::eventually;

use crate::flaky::{Fault, Method};
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// The maximum number of polls; no future has more await points.
const MAX_POLLS: u32 = 40;
/// Futures are dropped after 1, 1 + STEP, 1 + 2 * STEP … polls.
const STEP: usize = repetitions(3, 1) as usize;

/// Polls a future this many times, each time after a wake-up, and drops it. Returns its output if
/// it completes first.
async fn poll_woken<F: Future>(future: F, times: u32) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), times);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls a future this many times, woken or not, and drops it: a future that waits for another
/// claim is dropped later and later.
async fn poll_unconditionally<F: Future>(future: F, times: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A client whose calls have many await points before and after their effect.
async fn open_slow_client(context: &TestContext) -> Locks {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    for method in [Method::Attempt, Method::Wait, Method::Release] {
        flaky.fail_always(method, Fault::Yield(3));
    }
    locks
}

/// Cancels an acquire of a free lock.
pub async fn on_a_free_lock(context: &TestContext) {
    let locks = open_slow_client(context).await;
    let mut ended = 0;
    for times in (0..MAX_POLLS).step_by(STEP) {
        let name = context.unique_name("free");
        let done = poll_woken(locks.mutex(&name).lock(), times).await;
        ended += u32::from(done.is_some());
        drop(done);
        context.wait_until_free(&name).await;
        if ended == crate::short_leases::repetitions(1, 3) {
            break;
        }
    }
    assert!(ended > 0, "the future never completed");
    locks.flush().await.expect("nothing left to release");
    assert_eq!(locks.held_count(), 0);
}

/// Cancels an acquire of a lock that another client holds.
pub async fn on_a_held_lock(context: &TestContext) {
    let (locks, other) = (open_slow_client(context).await, context.open_locks().await);
    for times in (0..MAX_POLLS / 2).step_by(STEP) {
        let name = context.unique_name("held");
        let holder = other.mutex(&name).lock().await.expect("a lock");
        let done = poll_unconditionally(locks.mutex(&name).lock(), times).await;
        assert!(done.is_none(), "another client holds the lock");
        if context.capabilities().inspection {
            eventually(TEST_TIMEOUT, || async {
                let view = context.inspect(&name).await;
                if view.waiters.is_empty() { Ok(()) } else { Err(format!("still in the queue: {view:?}")) }
            })
            .await;
        }
        assert!(holder.is_held());
        let _ = holder.release().await.expect("a release");
        context.wait_until_free(&name).await;
    }
}

/// Cancels an acquire during a hand-off.
pub async fn during_a_hand_off(context: &TestContext) {
    let (locks, other) = (open_slow_client(context).await, context.open_locks().await);
    let mut ended = 0;
    for times in (0..MAX_POLLS).step_by(STEP) {
        let name = context.unique_name("hand-off");
        let holder = other.mutex(&name).lock().await.expect("a lock");
        {
            let mutex = locks.mutex(&name);
            let mut acquiring = pin!(mutex.lock());
            assert!(poll_unconditionally(acquiring.as_mut(), 12).await.is_none(), "another client holds the lock");
            let _ = holder.release().await.expect("a release");
            ended += u32::from(poll_woken(acquiring.as_mut(), times).await.is_some());
        }
        context.wait_until_free(&name).await;
        if ended == crate::short_leases::repetitions(1, 3) {
            break;
        }
    }
    locks.flush().await.expect("nothing left to release");
    assert_eq!(locks.held_count(), 0);
}

/// Cancels a multi-lock of which one lock is held.
pub async fn of_several_locks(context: &TestContext) {
    let (locks, other) = (open_slow_client(context).await, context.open_locks().await);
    for times in (0..MAX_POLLS).step_by(STEP) {
        let names = [context.unique_name("several"), context.unique_name("several"), context.unique_name("several")];
        let last = names.iter().max().expect("three names");
        let all = locks.multi_lock(names.iter().map(String::as_str));
        if times % 2 == 0 {
            drop(poll_woken(all.lock(), times).await);
        } else {
            let holder = other.mutex(last).lock().await.expect("a lock");
            assert!(poll_unconditionally(all.lock(), times).await.is_none(), "another client holds one lock");
            drop(holder);
        }
        for name in &names {
            context.wait_until_free(name).await;
        }
    }
    locks.flush().await.expect("nothing left to release");
    assert_eq!(locks.held_count(), 0);
}

/// Cancels a release.
pub async fn of_a_release(context: &TestContext) {
    let locks = open_slow_client(context).await;
    let mut ended = 0;
    for times in (0..MAX_POLLS).step_by(STEP) {
        let name = context.unique_name("released");
        let guard = locks.mutex(&name).lock().await.expect("a lock");
        ended += u32::from(poll_woken(guard.release(), times).await.is_some());
        context.wait_until_free(&name).await;
        if ended == crate::short_leases::repetitions(1, 3) {
            break;
        }
    }
    assert!(ended > 0, "the future never completed");
    assert_eq!(locks.held_count(), 0);
}

/// Dropping guards, requests and the client at once still releases everything.
pub async fn by_dropping_everything_at_once(context: &TestContext) {
    let other = context.open_locks().await;
    for round in 0..repetitions(8, 40) {
        let name = context.unique_name("dropped");
        let locks = context.open_locks().await;
        let guard = locks.mutex(&name).lock().await.expect("a lock");
        if round % 2 == 0 {
            assert!(poll_unconditionally(locks.mutex(&name).lock(), 3).await.is_none(), "the lock is held");
        }
        drop(locks);
        drop(guard);
        drop(other.mutex(&name).timeout(TEST_TIMEOUT).lock().await.expect("dropped claims are released"));
    }
}
