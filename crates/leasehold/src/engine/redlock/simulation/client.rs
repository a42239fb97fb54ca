//! One client: it acquires the lock, holds it for a while, and releases it, again and again.

use std::sync::Arc;
use std::time::Duration;

use super::world::World;
use crate::claim::Owner;
use crate::error::ErrorKind;
use crate::guard::{Guard, Watch};
use crate::logic::lease::call_timeout;
use crate::{Locks, Mutex};

/// How much longer than its wait a call may take, for an answer that is on its way.
const GRACE: Duration = Duration::from_millis(250);

pub(super) const LOCK: &str = "a";

pub(super) async fn live(world: Arc<World>, client: usize, locks: Locks) {
    let owner = world.draw(|dice| dice.happens(250)).then(Owner::new);
    for _ in 0..world.plan.rounds {
        let (pause, wait) = world.draw(|dice| (dice.time(world.plan.ttl / 2), dice.time(world.plan.ttl * 3 / 2)));
        world.clock.sleep(pause).await;
        let mut mutex = locks.mutex(LOCK).wait(wait);
        if let Some(owner) = &owner {
            mutex = mutex.owner(owner);
        }
        let Some(guard) = take(&world, client, &mutex, wait).await else { continue };
        let number = world.judge().granted(client, owner, guard.token(), guard.watch());
        let told = tokio::spawn(told(Arc::clone(&world), client, guard.watch()));
        world.event(|| format!("{client} holds {:?} until {:?}", guard.token(), guard.deadline()));
        if owner.is_some() && world.draw(|dice| dice.happens(500)) {
            again(&world, client, &mutex, owner).await;
        }
        let hold = world.draw(|dice| {
            let most = world.plan.ttl * dice.one_of(&[1, 1, 3]);
            dice.time(most)
        });
        match world.clock.timeout(hold, guard.lost()).await {
            Ok(_) => told.await.expect("no panic"),
            Err(_) => told.abort(),
        }
        world.judge().ended(number);
        give_back(&world, client, guard).await;
    }
    // Dropped guards have been released, or have expired.
    let start = world.clock.now();
    let settled = locks.settle().await.is_ok();
    let took = world.clock.now().since(start);
    world.judge().took(if settled { "settled" } else { "not settled" }, took, call_timeout(world.plan.ttl));
}

/// Acquires the lock, by one of the calls there are.
async fn take(world: &World, client: usize, mutex: &Mutex, wait: Duration) -> Option<Guard> {
    let (way, start) = (world.draw(|dice| dice.between(0, 10)), world.clock.now());
    world.event(|| format!("{client} asks, in way {way}, for {wait:?}"));
    let (answer, most) = match way {
        0..2 => (mutex.try_lock().await, call_timeout(world.plan.ttl)),
        2 => {
            // It drops its request.
            let patience = world.draw(|dice| dice.time(world.plan.ttl / 4));
            world.judge().count("cancelled");
            return world.clock.timeout(patience, mutex.lock()).await.ok().and_then(Result::ok);
        }
        _ => (mutex.lock().await.map(Some), wait + GRACE),
    };
    let took = world.clock.now().since(start);
    world.event(|| format!("{client} is told {answer:?} after {took:?}"));
    let call = match &answer {
        Ok(Some(_)) => "taken",
        Ok(None) => "busy",
        Err(error) if error.kind() == ErrorKind::Timeout => "timeouts",
        Err(error) if error.kind() == ErrorKind::Unavailable => "unavailable",
        Err(_) => "other errors",
    };
    world.judge().took(call, took, most);
    answer.ok().flatten()
}

/// The same owner acquires the lock once more, and releases that.
async fn again(world: &World, client: usize, mutex: &Mutex, owner: Option<Owner>) {
    if let Ok(Some(inner)) = mutex.try_lock().await {
        let number = world.judge().granted(client, owner, inner.token(), inner.watch());
        world.clock.sleep(world.plan.ttl / 20).await;
        world.judge().ended(number);
        give_back(world, client, inner).await;
    }
}

/// The holder learns of a loss by the deadline.
async fn told(world: Arc<World>, client: usize, watch: Watch) {
    let reason = watch.lost().await;
    let late = world.clock.now().since(watch.deadline());
    world.event(|| format!("{client} has lost it: {reason:?}"));
    world.judge().took("losses", late, Duration::ZERO);
}

async fn give_back(world: &World, client: usize, guard: Guard) {
    if world.draw(|dice| dice.happens(300)) {
        world.event(|| format!("{client} drops it"));
        return drop(guard);
    }
    let (start, deadline) = (world.clock.now(), guard.deadline());
    let outcome = guard.release().await;
    world.event(|| format!("{client} has given it back: {outcome:?}"));
    // The last request is sent by the deadline.
    let most = deadline.since(start) + call_timeout(world.plan.ttl);
    world.judge().took("releases", world.clock.now().since(start), most);
}
