//! A future is dropped at every await point: nothing is left behind.

use std::pin::pin;
use std::task::Poll;

use leasehold::Locks;
use leasehold_testbed::eventually;

use crate::brief::times;
use crate::flaky::{Fault, Method};
use crate::world::{LONG, SOON, World};

/// The most polls that are tried; more than any of the futures has await points.
const MOST: u32 = 40;
/// From one number of polls to the next.
const STEP: usize = times(3, 1) as usize;

/// Polls a future so many times, each time after it was woken, and drops it; its output, if that came first.
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

/// Polls a future so many times, woken or not, and drops it: one that waits for somebody else is dropped later and later.
async fn poll_anyway<F: Future>(future: F, times: u32) -> Option<F::Output> {
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

/// A client whose every call has many await points before and after its effect.
async fn slow(world: &World) -> Locks {
    let (locks, flaky) = world.flaky(LONG).await;
    for method in [Method::Attempt, Method::Wait, Method::Release] {
        flaky.always(method, Fault::Yield(3));
    }
    locks
}

/// Asking for a lock that is free.
pub async fn on_a_free_lock(world: &World) {
    let locks = slow(world).await;
    let mut ended = 0;
    for times in (0..MOST).step_by(STEP) {
        let name = world.name("free");
        let done = poll_woken(locks.mutex(&name).lock(), times).await;
        ended += u32::from(done.is_some());
        drop(done);
        world.until_free(&name).await;
        if ended == crate::brief::times(1, 3) {
            break;
        }
    }
    assert!(ended > 0, "the future never came to its end");
    locks.settle().await.expect("nothing left to give back");
    assert_eq!(locks.held(), 0);
}

/// Asking for a lock that somebody holds all the while.
pub async fn on_a_held_lock(world: &World) {
    let (locks, other) = (slow(world).await, world.locks().await);
    for times in (0..MOST / 2).step_by(STEP) {
        let name = world.name("held");
        let holder = other.mutex(&name).lock().await.expect("a lock");
        let done = poll_anyway(locks.mutex(&name).lock(), times).await;
        assert!(done.is_none(), "somebody else holds it");
        if world.capabilities().inspection {
            eventually(SOON, || async {
                let view = world.view(&name).await;
                if view.waiters.is_empty() { Ok(()) } else { Err(format!("still in the queue: {view:?}")) }
            })
            .await;
        }
        assert!(holder.is_held());
        let _ = holder.release().await.expect("a release");
        world.until_free(&name).await;
    }
}

/// Asking for a lock that is handed over while it is asked for.
pub async fn during_the_hand_over(world: &World) {
    let (locks, other) = (slow(world).await, world.locks().await);
    let mut ended = 0;
    for times in (0..MOST).step_by(STEP) {
        let name = world.name("handed over");
        let holder = other.mutex(&name).lock().await.expect("a lock");
        {
            let mutex = locks.mutex(&name);
            let mut asking = pin!(mutex.lock());
            assert!(poll_anyway(asking.as_mut(), 12).await.is_none(), "somebody else holds it");
            let _ = holder.release().await.expect("a release");
            ended += u32::from(poll_woken(asking.as_mut(), times).await.is_some());
        }
        world.until_free(&name).await;
        if ended == crate::brief::times(1, 3) {
            break;
        }
    }
    locks.settle().await.expect("nothing left to give back");
    assert_eq!(locks.held(), 0);
}

/// Asking for several locks, of which one is held.
pub async fn of_several_locks(world: &World) {
    let (locks, other) = (slow(world).await, world.locks().await);
    for times in (0..MOST).step_by(STEP) {
        let names = [world.name("several"), world.name("several"), world.name("several")];
        let last = names.iter().max().expect("three names");
        let all = locks.all(names.iter().map(String::as_str));
        if times % 2 == 0 {
            drop(poll_woken(all.lock(), times).await);
        } else {
            let holder = other.mutex(last).lock().await.expect("a lock");
            assert!(poll_anyway(all.lock(), times).await.is_none(), "somebody else holds one");
            drop(holder);
        }
        for name in &names {
            world.until_free(name).await;
        }
    }
    locks.settle().await.expect("nothing left to give back");
    assert_eq!(locks.held(), 0);
}

/// Giving a lock back.
pub async fn of_a_release(world: &World) {
    let locks = slow(world).await;
    let mut ended = 0;
    for times in (0..MOST).step_by(STEP) {
        let name = world.name("given back");
        let guard = locks.mutex(&name).lock().await.expect("a lock");
        ended += u32::from(poll_woken(guard.release(), times).await.is_some());
        world.until_free(&name).await;
        if ended == crate::brief::times(1, 3) {
            break;
        }
    }
    assert!(ended > 0, "the future never came to its end");
    assert_eq!(locks.held(), 0);
}

/// Guards, requests and the client itself are dropped at once: what they had is given back all the same.
pub async fn by_dropping_everything_at_once(world: &World) {
    let other = world.locks().await;
    for round in 0..times(8, 40) {
        let name = world.name("dropped");
        let locks = world.locks().await;
        let guard = locks.mutex(&name).lock().await.expect("a lock");
        if round % 2 == 0 {
            assert!(poll_anyway(locks.mutex(&name).lock(), 3).await.is_none(), "it is held");
        }
        drop(locks);
        drop(guard);
        drop(other.mutex(&name).wait(SOON).lock().await.expect("what was dropped is given back"));
    }
}
