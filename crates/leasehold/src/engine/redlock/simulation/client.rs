//! One client: it acquires the lock, holds it for a while, and releases it, again and again.

use std::sync::Arc;
use std::time::Duration;

use super::world::World;
use crate::core::guard::{Guard, LeaseWatcher};
use crate::logic::lease::call_timeout;
use crate::types::{ErrorKind, Owner};
use crate::{Locks, Mutex};

/// How much longer than its wait a call may take, for an answer that is on its way.
const GRACE: Duration = Duration::from_millis(250);

pub(super) const LOCK: &str = "a";

pub(super) async fn run_client(world: Arc<World>, client: usize, locks: Locks) {
    let owner = world.with_rng(|rng| rng.happens(250)).then(Owner::new);
    for _ in 0..world.plan.rounds {
        let (pause, wait) =
            world.with_rng(|rng| (rng.duration(world.plan.ttl / 2), rng.duration(world.plan.ttl * 3 / 2)));
        world.clock.sleep(pause).await;
        let mut mutex = locks.mutex(LOCK).timeout(wait);
        if let Some(owner) = &owner {
            mutex = mutex.owner(owner);
        }
        let Some(guard) = acquire(&world, client, &mutex, wait).await else { continue };
        let number = world.checker().record_grant(client, owner, guard.token(), guard.watcher());
        let loss_check = tokio::spawn(check_loss(Arc::clone(&world), client, guard.watcher()));
        world.record_event(|| format!("{client} holds {:?} until {:?}", guard.token(), guard.deadline()));
        if owner.is_some() && world.with_rng(|rng| rng.happens(500)) {
            reenter(&world, client, &mutex, owner).await;
        }
        let hold = world.with_rng(|rng| {
            let max_duration = world.plan.ttl * rng.choose(&[1, 1, 3]);
            rng.duration(max_duration)
        });
        match world.clock.timeout(hold, guard.lost()).await {
            Ok(_) => loss_check.await.expect("no panic"),
            Err(_) => loss_check.abort(),
        }
        world.checker().record_end(number);
        release(&world, client, guard).await;
    }
    // Dropped guards have been released, or have expired.
    let start = world.clock.now();
    let settled = locks.flush().await.is_ok();
    let elapsed = world.clock.now().duration_since(start);
    world.checker().check_duration(
        if settled { "settled" } else { "not settled" },
        elapsed,
        call_timeout(world.plan.ttl),
    );
}

/// Acquires the lock, by one of the calls there are.
async fn acquire(world: &World, client: usize, mutex: &Mutex, wait: Duration) -> Option<Guard> {
    let (action, start) = (world.with_rng(|rng| rng.between(0, 10)), world.clock.now());
    world.record_event(|| format!("{client} requests the lock, by method {action}, for {wait:?}"));
    let (answer, max_duration) = match action {
        0..2 => (mutex.try_lock().await, call_timeout(world.plan.ttl)),
        2 => {
            // It drops its request.
            let timeout = world.with_rng(|rng| rng.duration(world.plan.ttl / 4));
            world.checker().count("cancelled");
            return world.clock.timeout(timeout, mutex.lock()).await.ok().and_then(Result::ok);
        }
        _ => (mutex.lock().await.map(Some), wait + GRACE),
    };
    let elapsed = world.clock.now().duration_since(start);
    world.record_event(|| format!("{client} receives {answer:?} after {elapsed:?}"));
    let call = match &answer {
        Ok(Some(_)) => "granted",
        Ok(None) => "busy",
        Err(error) if error.kind() == ErrorKind::Timeout => "timeouts",
        Err(error) if error.kind() == ErrorKind::Unavailable => "unavailable",
        Err(_) => "other errors",
    };
    world.checker().check_duration(call, elapsed, max_duration);
    answer.ok().flatten()
}

/// The same owner acquires the lock once more, and releases that.
async fn reenter(world: &World, client: usize, mutex: &Mutex, owner: Option<Owner>) {
    if let Ok(Some(inner)) = mutex.try_lock().await {
        let number = world.checker().record_grant(client, owner, inner.token(), inner.watcher());
        world.clock.sleep(world.plan.ttl / 20).await;
        world.checker().record_end(number);
        release(world, client, inner).await;
    }
}

/// The holder learns of a loss by the deadline.
async fn check_loss(world: Arc<World>, client: usize, watch: LeaseWatcher) {
    let reason = watch.lost().await;
    let late = world.clock.now().duration_since(watch.deadline());
    world.record_event(|| format!("{client} has lost it: {reason:?}"));
    world.checker().check_duration("losses", late, Duration::ZERO);
}

async fn release(world: &World, client: usize, guard: Guard) {
    if world.with_rng(|rng| rng.happens(300)) {
        world.record_event(|| format!("{client} drops it"));
        return drop(guard);
    }
    let (start, deadline) = (world.clock.now(), guard.deadline());
    let outcome = guard.release().await;
    world.record_event(|| format!("{client} has given it back: {outcome:?}"));
    // The last request is sent by the deadline.
    let max_duration = deadline.duration_since(start) + call_timeout(world.plan.ttl);
    world.checker().check_duration("releases", world.clock.now().duration_since(start), max_duration);
}
