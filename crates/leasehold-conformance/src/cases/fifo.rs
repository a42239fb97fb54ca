//! First come, first served.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Mode;
use leasehold::engine::AcquireReply;
use leasehold_testbed::eventually;
use tokio::task::JoinSet;

use crate::protocol::LockRequest;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// Claims are granted one by one in the order of their requests, and know how many are ahead of
/// them.
pub async fn claims_are_granted_in_the_order_of_arrival(context: &TestContext) {
    let engine = context.open_engine().await;
    let claims: Vec<_> = (0..5).map(|_| context.new_claim("a", Mode::Exclusive, None, LONG_TTL)).collect();
    for (place, claim) in claims.iter().enumerate() {
        let answer = Arc::clone(&engine).attempt(Arc::clone(claim), true).await.expect("an answer");
        match place.checked_sub(1) {
            None => assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}"),
            Some(before) => {
                assert!(matches!(answer, AcquireReply::Queued { ahead, .. } if ahead == before), "{answer:?}")
            }
        }
    }
    for next in 1..claims.len() {
        Arc::clone(&engine).release(Arc::clone(&claims[next - 1])).await.expect("a release");
        context.wait_granted(&engine, &claims[next]).await;
        for (ahead, behind) in claims[next + 1..].iter().enumerate() {
            let answer = Arc::clone(&engine).wait(Arc::clone(behind), Duration::ZERO).await.expect("an answer");
            assert!(matches!(answer, AcquireReply::Queued { ahead: before, .. } if before == ahead), "{answer:?}");
        }
    }
    Arc::clone(&engine).release(Arc::clone(&claims[4])).await.expect("a release");
}

/// Tasks of two clients are granted in the order in which they began to wait.
pub async fn tasks_are_granted_in_the_order_of_arrival(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let first = clients[0].mutex("a").lock().await.expect("a lock");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for place in 0..8 {
        let (locks, order) = (clients[place % 2].clone(), Arc::clone(&order));
        tasks.spawn(async move {
            let guard = locks.mutex("a").lock().await.expect("a lock");
            order.lock().expect("no panic").push((place, guard.token()));
            let _ = guard.release().await.expect("a release");
        });
        context.wait_for_waiters("a", place + 1).await;
    }
    let _ = first.release().await.expect("a release");
    tasks.join_all().await;
    let order = order.lock().expect("no panic").clone();
    assert!(order.is_sorted(), "{order:?}");
}

/// Processes are granted in the order in which they began to wait.
pub async fn processes_are_granted_in_the_order_of_arrival(context: &TestContext) {
    let locks = context.open_locks().await;
    let first = locks.mutex("a").lock().await.expect("a lock");
    let mut actors = Vec::new();
    for place in 0..4 {
        let mut actor = context.spawn_actor(LONG_TTL).await;
        actor.send(&crate::protocol::ActorCommand::Lock(LockRequest::exclusive("a"))).await;
        context.wait_for_waiters("a", place + 1).await;
        actors.push(actor);
    }
    let mut last = (first.token().0, 0);
    let _ = first.release().await.expect("a release");
    for actor in &mut actors {
        let (token, at) = actor.wait_granted("a").await;
        assert!(token > last.0 && at > last.1, "token {token} at {at} comes after {last:?}");
        last = (token, at);
        assert_eq!(actor.release("a").await, "released");
    }
}

/// An attempt without queueing is not granted while another claim waits, not even during a
/// hand-off.
pub async fn no_claim_bypasses_the_queue(context: &TestContext) {
    let engine = context.open_engine().await;
    let [holder, waiter, barger] = [(); 3].map(|()| context.new_claim("a", Mode::Exclusive, None, LONG_TTL));
    let attempt = |claim: &Arc<leasehold::Claim>, queue| Arc::clone(&engine).attempt(Arc::clone(claim), queue);
    assert!(matches!(attempt(&holder, false).await, Ok(AcquireReply::Granted(_))));
    assert!(matches!(attempt(&waiter, true).await, Ok(AcquireReply::Queued { ahead: 0, .. })));
    assert!(matches!(attempt(&barger, false).await, Ok(AcquireReply::Busy { .. })));
    Arc::clone(&engine).release(holder).await.expect("a release");
    let answer = attempt(&barger, false).await;
    assert!(matches!(answer, Ok(AcquireReply::Busy { .. })), "{answer:?}");
    context.wait_granted(&engine, &waiter).await;
    Arc::clone(&engine).release(waiter).await.expect("a release");
}

/// A waiter without a heartbeat for a TTL does not block the waiters behind it, whether its grant
/// is due or not.
pub async fn an_expired_waiter_is_skipped(context: &TestContext) {
    tokio::join!(
        check_expired_waiter_is_skipped(context, "granted at once", false),
        check_expired_waiter_is_skipped(context, "expired", true)
    );
}

async fn check_expired_waiter_is_skipped(context: &TestContext, name: &str, has_expired: bool) {
    let (engine, locks) = (context.open_engine().await, context.open_locks().await);
    let holder = context.new_claim(name, Mode::Exclusive, None, LONG_TTL);
    let expiring = context.new_claim(name, Mode::Exclusive, None, context.short_ttl());
    Arc::clone(&engine).attempt(Arc::clone(&holder), true).await.expect("an answer");
    eventually(TEST_TIMEOUT, || Arc::clone(&engine).attempt(Arc::clone(&expiring), true)).await;
    if has_expired {
        context.sleep(context.short_ttl()).await;
    }
    let next = tokio::spawn({
        let mutex = locks.mutex(name);
        async move { mutex.lock().await }
    });
    if context.capabilities().inspection && !has_expired {
        // It queues behind the expiring claim, and must not wait for the first holder's long lease.
        eventually(TEST_TIMEOUT, || async {
            let view = context.inspect(name).await;
            let waits = view.waiters.iter().any(|waiter| waiter.claim != expiring.id);
            if waits { Ok(()) } else { Err(format!("the next claim should wait: {view:?}")) }
        })
        .await;
    }
    Arc::clone(&engine).release(holder).await.expect("a release");
    let granted = tokio::time::timeout(TEST_TIMEOUT, next).await.expect("the next claim is granted");
    let guard = granted.expect("no panic").expect("a lock");
    let _ = guard.release().await.expect("a release");
}

/// A waiter with a bounded wait longer than its TTL sends heartbeats, keeps its position past a
/// TTL, and acquires the lock. A busy machine may pause for a whole TTL and lose the position; then
/// another round must succeed.
pub async fn a_wait_longer_than_the_ttl_keeps_its_position(context: &TestContext) {
    let (waits, others) = (context.open_locks_with_ttl(context.short_ttl()).await, context.open_locks().await);
    eventually(TEST_TIMEOUT, async || {
        let name = context.unique_name("long");
        let held = others.mutex(&name).lock().await.map_err(|error| error.to_string())?;
        let wait = |locks: &leasehold::Locks| {
            let mutex = locks.mutex(&name).timeout(TEST_TIMEOUT);
            tokio::spawn(async move {
                let guard = mutex.lock().await?;
                let token = guard.token();
                guard.release().await.map(|_| token)
            })
        };
        let first = wait(&waits);
        context.wait_for_waiters(&name, 1).await;
        let second = wait(&others);
        context.wait_for_waiters(&name, 2).await;
        context.sleep(context.short_ttl() * 3 / 2).await;
        let _ = held.release().await.map_err(|error| error.to_string())?;
        let first = first.await.expect("no panic").expect("a lock before the timeout");
        let second = second.await.expect("no panic").expect("a lock");
        if first < second { Ok(()) } else { Err(format!("overtaken: token {first}, the next waiter's {second}")) }
    })
    .await;
}
