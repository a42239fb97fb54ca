//! A server that others' leases come to, by a fail-over or with a slot that moves: its clock is another one, and it may be one that a
//! waiter's client has not heard of.

use std::sync::Arc;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, Released, Renewal};
use leasehold::{Claim, Mode};
use leasehold_testbed::redis::{Redis, Reply};
use leasehold_testbed::{Server, WallClock, eventually, redis};

use crate::redis_deployments::deployment::{BOUND, LONG, raw, text};
use crate::redis_faults::site::claim;

/// Further than a lease.
const AHEAD: i64 = 2 * LONG.as_secs() as i64;

/// An engine without a keeper.
async fn engine(server: &Server) -> Arc<dyn Engine> {
    leasehold::engine::open(&server.url(), &Clock::system()).await.expect("an engine")
}

async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>, queue: bool) -> Answer {
    Arc::clone(engine).attempt(Arc::clone(claim), queue).await.expect("an answer")
}

async fn granted(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    let answer = attempt(engine, claim, false).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

/// Others are not let in, and the lease ends within its TTL.
async fn busy(engine: &Arc<dyn Engine>, name: &str) {
    match attempt(engine, &claim(name, Mode::Exclusive, LONG), false).await {
        Answer::Busy { recheck } => assert!(recheck.is_some_and(|left| left <= LONG), "{name}: {recheck:?}"),
        other => panic!("{name}: {other:?}"),
    }
}

async fn renewed(engine: &Arc<dyn Engine>, claims: &[&Arc<Claim>]) {
    let claims = claims.iter().map(|claim| Arc::clone(claim)).collect();
    let answers = Arc::clone(engine).renew(claims).await.expect("answers");
    assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed(_))), "{answers:?}");
}

/// A server whose clock is ahead.
fn ahead() -> WallClock {
    let clock = WallClock::new().expect("a clock");
    clock.move_to(AHEAD).expect("a moved clock");
    clock
}

/// The lease on a lock of its own, on one that is shared, on one that another waits for; and 16 that are renewed together.
struct Scene {
    alone: Arc<Claim>,
    shared: Arc<Claim>,
    wanted: Arc<Claim>,
    many: Vec<Arc<Claim>>,
}

impl Scene {
    async fn new(engine: &Arc<dyn Engine>) -> Self {
        let exclusive = |name: &str| claim(name, Mode::Exclusive, LONG);
        let (alone, shared, wanted) = (exclusive("alone"), claim("shared", Mode::Shared, LONG), exclusive("wanted"));
        let many: Vec<_> = (0..16).map(|number| exclusive(&format!("many {number}"))).collect();
        for claim in [&alone, &shared, &wanted].into_iter().chain(&many) {
            granted(engine, claim).await;
        }
        let waits = attempt(engine, &exclusive("wanted"), true).await;
        assert!(matches!(waits, Answer::Queued { .. }), "{waits:?}");
        renewed(engine, &many.iter().collect::<Vec<_>>()).await;
        Self { alone, shared, wanted, many }
    }

    /// What another server has of it: nobody else gets in, and all who hold go on.
    async fn goes_on(&self, engine: &Arc<dyn Engine>) {
        for name in ["alone", "shared", "wanted", "many 3"] {
            busy(engine, name).await;
        }
        renewed(engine, &[&self.alone, &self.shared, &self.wanted]).await;
        renewed(engine, &self.many.iter().collect::<Vec<_>>()).await;
        busy(engine, "alone").await;
    }
}

async fn offset(server: &Server) -> String {
    let info = text(raw(server.addr(), &["INFO", "replication"]).await);
    info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).expect("an offset").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_clock_is_ahead_takes_over() {
    let clock = ahead();
    let master = redis::start().await.expect("a master");
    let replica = redis::replica_of(&master).clock(&clock).start().await.expect("a replica");
    let scene = Scene::new(&engine(&master).await).await;
    eventually(BOUND, || async {
        let offsets = (offset(&master).await, offset(&replica).await);
        if offsets.0 == offsets.1 { Ok(()) } else { Err(format!("{offsets:?}")) }
    })
    .await;
    raw(replica.addr(), &["REPLICAOF", "NO", "ONE"]).await;
    let engine = engine(&replica).await;
    scene.goes_on(&engine).await;
    // What nobody renews any more ends by this server's clock.
    clock.move_to(AHEAD + LONG.as_secs() as i64 + 1).expect("a moved clock");
    for name in ["alone", "shared", "many 3"] {
        granted(&engine, &claim(name, Mode::Exclusive, LONG)).await;
    }
}

/// What a slot's move does with a key, between two servers that need no cluster for it.
async fn moved(from: &Server, to: &Server, name: &str) {
    let (port, key) = (to.port().to_string(), format!("leasehold:l{{{name}}}"));
    let moved = raw(from.addr(), &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
    assert_eq!(moved, Reply::Simple("OK".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_moves_to_a_node_whose_clock_is_ahead() {
    let clock = ahead();
    let (from, to) = (redis::start().await.expect("a node"), Redis::new().clock(&clock).start().await.expect("a node"));
    let (old, new) = (engine(&from).await, engine(&to).await);
    let (alone, shared) = (claim("alone", Mode::Exclusive, LONG), claim("shared", Mode::Shared, LONG));
    for (name, held) in [("alone", &alone), ("shared", &shared)] {
        granted(&old, held).await;
        moved(&from, &to, name).await;
        busy(&new, name).await;
        renewed(&new, &[held]).await;
    }
    clock.move_to(AHEAD + LONG.as_secs() as i64 + 1).expect("a moved clock");
    granted(&new, &claim("alone", Mode::Exclusive, LONG)).await;
}

/// A waiter whose client does not listen at the lock's new node, since it has not heard of the move, keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_when_its_lock_moves() {
    let clock = WallClock::new().expect("a clock");
    let (from, to) = (redis::start().await.expect("a node"), Redis::new().clock(&clock).start().await.expect("a node"));
    let (old, new) = (engine(&from).await, engine(&to).await);
    let [first, waiter, next, late] = ["a"; 4].map(|name| claim(name, Mode::Exclusive, LONG));
    granted(&old, &first).await;
    for claim in [&waiter, &next] {
        let answer = attempt(&old, claim, true).await;
        assert!(matches!(answer, Answer::Queued { .. }), "{answer:?}");
    }
    moved(&from, &to, "a").await;
    assert_eq!(Arc::clone(&new).release(first).await.expect("an answer"), Released::Released);
    let overtakes = attempt(&new, &late, true).await;
    assert!(matches!(overtakes, Answer::Queued { ahead: 1, .. }), "{overtakes:?}");
    // It hears that it was granted when it looks for itself, and so does the next one.
    granted(&new, &waiter).await;
    assert_eq!(Arc::clone(&new).release(waiter).await.expect("an answer"), Released::Released);
    granted(&new, &next).await;
    // One that is never heard of again is in the way for no longer than its time.
    let [dead, behind] = ["b"; 2].map(|name| claim(name, Mode::Exclusive, LONG));
    granted(&old, &dead).await;
    assert!(matches!(attempt(&old, &behind, true).await, Answer::Queued { .. }));
    moved(&from, &to, "b").await;
    busy(&new, "b").await;
    clock.move_to(LONG.as_secs() as i64 + 1).expect("a moved clock");
    granted(&new, &claim("b", Mode::Exclusive, LONG)).await;
}
