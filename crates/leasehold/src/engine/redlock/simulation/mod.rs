//! The whole engine in virtual time: clients with the real acquire loop, keeper and engine, servers
//! that follow [`AcceptorState`](crate::logic::acceptor::AcceptorState), and a network that loses,
//! delays and duplicates messages.

mod checker;
mod client;
mod network;
mod server;
mod single_faults;
mod world;

use std::sync::Arc;

use futures_util::future::join_all;

use self::client::LOCK;
use self::world::{Plan, World};
use crate::virtual_time::{self, Report, Rng};

/// One run: its report, and a hash of all its events.
fn run(seed: u64, logs: bool) -> (Report, u64) {
    let mut rng = Rng::new(seed);
    let plan = Plan::random(&mut rng);
    virtual_time::run_seed(seed, async {
        let world = World::new(plan, rng, logs);
        world.record_event(|| format!("{plan:?}"));
        let mut clients = Vec::new();
        for client in 0..plan.clients {
            clients.push(world.client(client).await);
        }
        world.set_calm(false);
        let faults = tokio::spawn(Arc::clone(&world).inject_faults(plan.ttl * 3));
        let lives =
            clients.iter().enumerate().map(|(at, locks)| client::run_client(Arc::clone(&world), at, locks.clone()));
        join_all(lives.map(tokio::spawn)).await.into_iter().for_each(|life| life.expect("no panic"));
        faults.await.expect("no panic");
        check_recovery(&world).await;
        let mut checker = world.checker();
        let trace = checker.event_hash;
        (checker.take_report(), trace)
    })
}

/// After the faults, all claims expire: a TTL after all guards were dropped and all messages have
/// arrived, no node has a claim, and the lock can be acquired.
async fn check_recovery(world: &Arc<World>) {
    world.record_event(|| "all faults are over".into());
    world.set_calm(true);
    let plan = world.plan;
    // Nodes may hang, and their clocks may be slow; and a client retries a release for a TTL.
    world.clock.sleep(plan.late_delay * 2 + plan.ttl * 4).await;
    for node in 0..plan.nodes {
        let left = world.server(node).live_claims(world.clock.now());
        if !left.is_empty() {
            world.checker().record_breach(format!("node {node} still has {left:?}"));
        }
    }
    let locks = world.client(plan.clients).await;
    let fresh = locks.mutex(LOCK).timeout(plan.ttl).lock().await;
    match fresh {
        Ok(guard) => drop(world.checker().record_grant(plan.clients, None, guard.token(), guard.watcher())),
        Err(error) => world.checker().record_breach(format!("no client holds it, and it cannot be acquired: {error}")),
    }
}

#[test]
fn every_guarantee_holds() {
    let enough = [("grants", 1_000), ("losses", 30), ("re-entries", 80), ("timeouts", 200), ("faults", 700)];
    virtual_time::run_many_seeds("every_guarantee_holds", 400, |seed, logs| run(seed, logs).0, &enough);
}

#[test]
fn one_seed_determines_one_run() {
    for seed in 0..10 {
        let ((one, trace), (again, same)) = (run(seed, true), run(seed, true));
        assert_eq!(one.log, again.log, "seed {seed}");
        assert_eq!((trace, one.counts), (same, again.counts), "seed {seed}");
        assert_ne!(trace, run(seed + 1, true).1);
    }
}
