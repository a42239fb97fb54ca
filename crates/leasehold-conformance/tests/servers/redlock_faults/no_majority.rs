//! Three of five servers are dead: everybody hears it in words that help, nobody holds anything, and all is well when
//! they are back.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::flaky::{FlakyEngine, Method};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, PATIENT, ShiftedClock, connected_engine, lock, release};

/// Shorter than the library waits for a server that says nothing.
const WAIT: Duration = Duration::from_secs(3);
const DEAD: [usize; 3] = [0, 2, 4];

/// A client whose clock stands still: no answer is late, and a wait ends when the test says so.
struct Still {
    locks: Locks,
    hand: ManualClock,
    flaky: Arc<FlakyEngine>,
}

impl Still {
    async fn new(site: &Fixture) -> Self {
        let hand = ManualClock::new();
        let url = site.url(&format!("{PATIENT}&connect-timeout=300s"));
        let flaky = Arc::new(FlakyEngine::new(connected_engine(&url, &hand.clock()).await));
        let engine: Arc<dyn leasehold::engine::Engine> = Arc::clone(&flaky) as _;
        let locks = Locks::builder().ttl(LASTING).clock(hand.clock()).open_engine(engine);
        Self { locks, hand, flaky }
    }

    /// Time passes in which nothing happens, so that a connection that breaks is made again at once.
    fn rests(&self) {
        self.hand.advance(Duration::from_secs(1));
    }

    /// Waits for the lock in vain.
    async fn waits(&self, name: &str) -> Error {
        let calls = || self.flaky.call_count(Method::Attempt);
        let (before, mutex) = (calls(), self.locks.mutex(name).timeout(WAIT));
        let waiting = tokio::spawn(async move { mutex.lock().await });
        // It asks again when it has heard from enough servers. Its pause passes; its wait does not, nor does the time for an answer.
        eventually(TEST_TIMEOUT, || async {
            self.hand.advance(Duration::from_millis(2));
            let asked = calls() - before;
            if asked > 1 { Ok(()) } else { Err(format!("asked {asked} times")) }
        })
        .await;
        assert!(!waiting.is_finished(), "it could have come back");
        // A call that is under way has a moment more.
        self.hand.advance(WAIT + Duration::from_secs(1));
        timeout(TEST_TIMEOUT, waiting).await.expect("its wait is over").expect("no panic").expect_err("no majority")
    }
}

/// The error says how many are needed, and who is missing.
fn assert_names_missing_nodes(site: &Fixture, error: &Error) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("3 of 5 nodes must answer"), "{text}");
    assert!(!text.contains("somebody else holds it"), "nobody knows that: {text}");
    for at in DEAD {
        let address = site.server(at).addr().to_string();
        assert!(text.contains(&format!("{address} cannot be reached")), "it does not name {address}: {text}");
    }
}

async fn assert_every_call_fails(site: &Fixture, still: &Still) {
    let locks = &still.locks;
    for name in ["free", "held"] {
        assert_names_missing_nodes(site, &locks.mutex(name).try_lock().await.expect_err("no majority"));
        assert_names_missing_nodes(site, &still.waits(name).await);
        assert_names_missing_nodes(site, &locks.inspect(name).await.expect_err("no majority"));
    }
    assert_names_missing_nodes(site, &locks.list("").await.expect_err("no majority"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_dead_servers_are_an_error_and_grant_nothing() {
    let mut site = Fixture::new().await;
    let ahead = ShiftedClock::new();
    let (locks, other, still) = (site.locks_with_clock(&ahead).await, site.locks().await, Still::new(&site).await);
    let held = lock(&locks, "held").await;
    still.rests();
    site.kill(&DEAD);
    let killed = locks.clock().now();
    // The first to write to one that has just died may hear of it from its old connection.
    still.locks.mutex("first").try_lock().await.expect_err("no majority");
    assert_every_call_fails(&site, &still).await;
    let error = Locks::builder().clock(still.hand.clock()).open(&site.url("")).await.expect_err("no majority");
    assert_names_missing_nodes(&site, &error);
    ahead.advance(LASTING);
    timeout(TEST_TIMEOUT, held.lost()).await.expect("it hears that it is lost");
    let deadline = held.deadline();
    assert!(deadline <= killed.saturating_add(LASTING), "nobody could renew it: {:?}", deadline.duration_since(killed));
    assert!(!held.is_held());
    for name in ["free", "held"] {
        still.waits(name).await;
    }
    let error = held.release().await;
    assert!(!matches!(error, Ok(leasehold::ReleaseOutcome::Released)), "it was lost: {error:?}");
    site.restart(&DEAD, Data::Wipe).await;
    let again = site.locks().await;
    eventually(TEST_TIMEOUT, || async { other.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        release(lock(&again, name).await).await;
        release(lock(&other, name).await).await;
        site.until_claim_counts(name, 0).await;
    }
}
