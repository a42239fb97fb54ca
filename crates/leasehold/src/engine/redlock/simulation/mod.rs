//! The whole engine in virtual time: clients with the real acquire loop, keeper and engine, servers
//! that follow [`Ballots`](crate::logic::ballots::Ballots), and a network that loses, delays and
//! duplicates messages.

mod cell;
mod client;
mod directed;
mod judge;
mod network;
mod world;

use std::sync::Arc;

use futures_util::future::join_all;

use self::client::LOCK;
use self::world::{Plan, World};
use crate::virtual_time::{self, Dice, Report};

/// One run: its report, and a hash of all its events.
fn run(seed: u64, logs: bool) -> (Report, u64) {
    let mut dice = Dice::new(seed);
    let plan = Plan::draw(&mut dice);
    virtual_time::run(seed, async {
        let world = World::new(plan, dice, logs);
        world.event(|| format!("{plan:?}"));
        let mut clients = Vec::new();
        for client in 0..plan.clients {
            clients.push(world.client(client).await);
        }
        world.be_calm(false);
        let faults = tokio::spawn(Arc::clone(&world).faults(plan.ttl * 3));
        let lives = clients.iter().enumerate().map(|(at, locks)| client::live(Arc::clone(&world), at, locks.clone()));
        join_all(lives.map(tokio::spawn)).await.into_iter().for_each(|life| life.expect("no panic"));
        faults.await.expect("no panic");
        afterwards(&world).await;
        let mut judge = world.judge();
        let trace = judge.trace;
        (judge.end(), trace)
    })
}

/// After the faults, all claims expire: a TTL after all guards were dropped and all messages have
/// arrived, no node has a claim, and the lock can be acquired.
async fn afterwards(world: &Arc<World>) {
    world.event(|| "all faults are over".into());
    world.be_calm(true);
    let plan = world.plan;
    // Nodes may hang, and their clocks may be slow; and a client retries a release for a TTL.
    world.clock.sleep(plan.latest * 2 + plan.ttl * 4).await;
    for cell in 0..plan.nodes {
        let left = world.cell(cell).live(world.clock.now());
        if !left.is_empty() {
            world.judge().breach(format!("node {cell} still has {left:?}"));
        }
    }
    let locks = world.client(plan.clients).await;
    let fresh = locks.mutex(LOCK).wait(plan.ttl).lock().await;
    match fresh {
        Ok(guard) => drop(world.judge().granted(plan.clients, None, guard.token(), guard.watch())),
        Err(error) => world.judge().breach(format!("nobody holds it, and it cannot be had: {error}")),
    }
}

#[test]
fn every_promise_holds() {
    let enough = [("grants", 1_000), ("losses", 30), ("re-entries", 80), ("timeouts", 200), ("faults", 700)];
    virtual_time::many("every_promise_holds", 400, |seed, logs| run(seed, logs).0, &enough);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..10 {
        let ((one, trace), (again, same)) = (run(seed, true), run(seed, true));
        assert_eq!(one.log, again.log, "seed {seed}");
        assert_eq!((trace, one.counts), (same, again.counts), "seed {seed}");
        assert_ne!(trace, run(seed + 1, true).1);
    }
}
