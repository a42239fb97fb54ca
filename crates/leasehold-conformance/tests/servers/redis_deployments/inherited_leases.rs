//! A server inherits leases in a fail-over or a slot migration. Its clock differs, and a waiter's
//! client may not know the server.

use std::sync::Arc;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, ReleaseReply, RenewReply};
use leasehold::{Claim, Mode};
use leasehold_testbed::redis::{Redis, Reply};
use leasehold_testbed::{Server, WallClock, eventually, redis};

use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, patient_url, raw_command, text};
use crate::redis_faults::fixture::claim;

/// How far the other server's clock is ahead, in seconds: more than a lease lasts.
const AHEAD: i64 = 2 * LONG_TTL.as_secs() as i64;

/// An engine without a keeper.
async fn open_engine(server: &Server) -> Arc<dyn Engine> {
    leasehold::registry::open(&patient_url(&server.url()), &Clock::system()).await.expect("an engine")
}

async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>, queue: bool) -> AcquireReply {
    Arc::clone(engine).attempt(Arc::clone(claim), queue).await.expect("an answer")
}

async fn assert_granted(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    let answer = attempt(engine, claim, false).await;
    assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
}

/// Other claims are not granted, and the lease expires within its TTL.
async fn assert_busy(engine: &Arc<dyn Engine>, name: &str) {
    match attempt(engine, &claim(name, Mode::Exclusive, LONG_TTL), false).await {
        AcquireReply::Busy { recheck_after: recheck } => {
            assert!(recheck.is_some_and(|left| left <= LONG_TTL), "{name}: {recheck:?}")
        }
        other => panic!("{name}: {other:?}"),
    }
}

async fn assert_renewed(engine: &Arc<dyn Engine>, claims: &[&Arc<Claim>]) {
    let claims = claims.iter().map(|claim| Arc::clone(claim)).collect();
    let answers = Arc::clone(engine).renew(claims).await.expect("answers");
    assert!(answers.iter().all(|answer| matches!(answer, RenewReply::Renewed(_))), "{answers:?}");
}

/// A wall clock that is [`AHEAD`].
fn clock_ahead() -> WallClock {
    let clock = WallClock::new().expect("a clock");
    clock.set_offset(AHEAD).expect("a moved clock");
    clock
}

/// Leases on an exclusive, a shared and a contended lock, and 16 that are renewed as a group.
struct HeldLeases {
    exclusive: Arc<Claim>,
    shared: Arc<Claim>,
    contended: Arc<Claim>,
    grouped: Vec<Arc<Claim>>,
}

impl HeldLeases {
    async fn new(engine: &Arc<dyn Engine>) -> Self {
        let exclusive = |name: &str| claim(name, Mode::Exclusive, LONG_TTL);
        let (alone, shared, wanted) =
            (exclusive("alone"), claim("shared", Mode::Shared, LONG_TTL), exclusive("wanted"));
        let many: Vec<_> = (0..16).map(|number| exclusive(&format!("many {number}"))).collect();
        for claim in [&alone, &shared, &wanted].into_iter().chain(&many) {
            assert_granted(engine, claim).await;
        }
        let waits = attempt(engine, &exclusive("wanted"), true).await;
        assert!(matches!(waits, AcquireReply::Queued { .. }), "{waits:?}");
        assert_renewed(engine, &many.iter().collect::<Vec<_>>()).await;
        Self { exclusive: alone, shared, contended: wanted, grouped: many }
    }

    /// The other server grants the locks to no one else and renews all leases.
    async fn assert_still_held(&self, engine: &Arc<dyn Engine>) {
        for name in ["alone", "shared", "wanted", "many 3"] {
            assert_busy(engine, name).await;
        }
        assert_renewed(engine, &[&self.exclusive, &self.shared, &self.contended]).await;
        assert_renewed(engine, &self.grouped.iter().collect::<Vec<_>>()).await;
        assert_busy(engine, "alone").await;
    }
}

async fn replication_offset(server: &Server) -> String {
    let info = text(raw_command(server.addr(), &["INFO", "replication"]).await);
    info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).expect("an offset").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_survive_a_failover_to_a_replica_whose_clock_is_ahead() {
    let clock = clock_ahead();
    let master = redis::start().await.expect("a master");
    let replica = redis::replica_of(&master).clock(&clock).start().await.expect("a replica");
    let leases = HeldLeases::new(&open_engine(&master).await).await;
    eventually(TEST_TIMEOUT, || async {
        let offsets = (replication_offset(&master).await, replication_offset(&replica).await);
        if offsets.0 == offsets.1 { Ok(()) } else { Err(format!("{offsets:?}")) }
    })
    .await;
    raw_command(replica.addr(), &["REPLICAOF", "NO", "ONE"]).await;
    let engine = open_engine(&replica).await;
    leases.assert_still_held(&engine).await;
    // Leases that are not renewed expire by this server's clock.
    clock.set_offset(AHEAD + LONG_TTL.as_secs() as i64 + 1).expect("a moved clock");
    for name in ["alone", "shared", "many 3"] {
        assert_granted(&engine, &claim(name, Mode::Exclusive, LONG_TTL)).await;
    }
}

/// Moves a lock's key as a slot migration does, without a cluster.
async fn migrate_lock(from: &Server, to: &Server, name: &str) {
    let (port, key) = (to.port().to_string(), format!("leasehold:l{{{name}}}"));
    let moved = raw_command(from.addr(), &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
    assert_eq!(moved, Reply::Simple("OK".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_move_to_a_node_whose_clock_is_ahead() {
    let clock = clock_ahead();
    let (from, to) = (redis::start().await.expect("a node"), Redis::new().clock(&clock).start().await.expect("a node"));
    let (old, new) = (open_engine(&from).await, open_engine(&to).await);
    let (alone, shared) = (claim("alone", Mode::Exclusive, LONG_TTL), claim("shared", Mode::Shared, LONG_TTL));
    for (name, held) in [("alone", &alone), ("shared", &shared)] {
        assert_granted(&old, held).await;
        migrate_lock(&from, &to, name).await;
        assert_busy(&new, name).await;
        assert_renewed(&new, &[held]).await;
    }
    clock.set_offset(AHEAD + LONG_TTL.as_secs() as i64 + 1).expect("a moved clock");
    assert_granted(&new, &claim("alone", Mode::Exclusive, LONG_TTL)).await;
}

/// A waiter keeps its position even if its client does not know of the move and is not subscribed
/// at the new node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_position_when_its_lock_moves() {
    let clock = WallClock::new().expect("a clock");
    let (from, to) = (redis::start().await.expect("a node"), Redis::new().clock(&clock).start().await.expect("a node"));
    let (old, new) = (open_engine(&from).await, open_engine(&to).await);
    let [first, waiter, next, late] = ["a"; 4].map(|name| claim(name, Mode::Exclusive, LONG_TTL));
    assert_granted(&old, &first).await;
    for claim in [&waiter, &next] {
        let answer = attempt(&old, claim, true).await;
        assert!(matches!(answer, AcquireReply::Queued { .. }), "{answer:?}");
    }
    migrate_lock(&from, &to, "a").await;
    assert_eq!(Arc::clone(&new).release(first).await.expect("an answer"), ReleaseReply::Released);
    let answer = attempt(&new, &late, true).await;
    assert!(matches!(answer, AcquireReply::Queued { ahead: 1, .. }), "{answer:?}");
    // The waiter learns of its grant at its own next attempt, and so does the next one.
    assert_granted(&new, &waiter).await;
    assert_eq!(Arc::clone(&new).release(waiter).await.expect("an answer"), ReleaseReply::Released);
    assert_granted(&new, &next).await;
    // A dead waiter blocks the queue for no longer than its TTL.
    let [dead, behind] = ["b"; 2].map(|name| claim(name, Mode::Exclusive, LONG_TTL));
    assert_granted(&old, &dead).await;
    assert!(matches!(attempt(&old, &behind, true).await, AcquireReply::Queued { .. }));
    migrate_lock(&from, &to, "b").await;
    assert_busy(&new, "b").await;
    clock.set_offset(LONG_TTL.as_secs() as i64 + 1).expect("a moved clock");
    assert_granted(&new, &claim("b", Mode::Exclusive, LONG_TTL)).await;
}
