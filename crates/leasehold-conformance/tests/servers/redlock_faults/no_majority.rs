//! Three of five servers are dead: every call fails with a helpful error, no lock is held, and
//! everything works again after a restart.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::flaky::{FlakyEngine, Method};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, PATIENT, ShiftedClock, connected_engine, lock, release};

/// Shorter than the timeout for a server that does not respond.
const WAIT: Duration = Duration::from_secs(3);
const DEAD: [usize; 3] = [0, 2, 4];

/// A client with a stopped clock: no reply is late, and a wait ends when the test moves the clock.
struct StoppedClockClient {
    locks: Locks,
    manual_clock: ManualClock,
    flaky: Arc<FlakyEngine>,
}

impl StoppedClockClient {
    async fn new(fixture: &Fixture) -> Self {
        let manual_clock = ManualClock::new();
        let url = fixture.url(&format!("{PATIENT}&connect-timeout=300s"));
        let flaky = Arc::new(FlakyEngine::new(connected_engine(&url, &manual_clock.clock()).await));
        let engine: Arc<dyn leasehold::engine::Engine> = Arc::clone(&flaky) as _;
        let locks = Locks::builder().ttl(LASTING).clock(manual_clock.clock()).open_engine(engine);
        Self { locks, manual_clock, flaky }
    }

    /// Advances the clock, so that a broken connection is re-established at once.
    fn pass_idle_time(&self) {
        self.manual_clock.advance(Duration::from_secs(1));
    }

    /// Waits for the lock until the wait times out.
    async fn wait_error(&self, name: &str) -> Error {
        let calls = || self.flaky.call_count(Method::Attempt);
        let (before, mutex) = (calls(), self.locks.mutex(name).timeout(WAIT));
        let waiting = tokio::spawn(async move { mutex.lock().await });
        // The client retries once enough servers have answered. Its back-off passes, but neither
        // its wait nor a reply timeout does.
        eventually(TEST_TIMEOUT, || async {
            self.manual_clock.advance(Duration::from_millis(2));
            let attempts = calls() - before;
            if attempts > 1 { Ok(()) } else { Err(format!("{attempts} attempts")) }
        })
        .await;
        assert!(!waiting.is_finished(), "the wait ended early");
        // A call in flight gets a little more time.
        self.manual_clock.advance(WAIT + Duration::from_secs(1));
        timeout(TEST_TIMEOUT, waiting).await.expect("the wait ends").expect("no panic").expect_err("no majority")
    }
}

/// The error names the required number of nodes, and the missing ones.
fn assert_names_missing_nodes(fixture: &Fixture, error: &Error) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("3 of 5 nodes must answer"), "{text}");
    assert!(!text.contains("another claim holds it"), "the error claims a holder: {text}");
    for at in DEAD {
        let address = fixture.server(at).addr().to_string();
        assert!(text.contains(&format!("{address} cannot be reached")), "the error does not name {address}: {text}");
    }
}

async fn assert_every_call_fails(fixture: &Fixture, stopped: &StoppedClockClient) {
    let locks = &stopped.locks;
    for name in ["free", "held"] {
        assert_names_missing_nodes(fixture, &locks.mutex(name).try_lock().await.expect_err("no majority"));
        assert_names_missing_nodes(fixture, &stopped.wait_error(name).await);
        assert_names_missing_nodes(fixture, &locks.inspect(name).await.expect_err("no majority"));
    }
    assert_names_missing_nodes(fixture, &locks.list("").await.expect_err("no majority"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_dead_servers_are_an_error_and_grant_nothing() {
    let mut fixture = Fixture::new().await;
    let ahead = ShiftedClock::new();
    let (locks, other, stopped) =
        (fixture.locks_with_clock(&ahead).await, fixture.locks().await, StoppedClockClient::new(&fixture).await);
    let held = lock(&locks, "held").await;
    stopped.pass_idle_time();
    fixture.kill(&DEAD);
    let killed = locks.clock().now();
    // The first request to a dead server may learn of it only from its old connection.
    stopped.locks.mutex("first").try_lock().await.expect_err("no majority");
    assert_every_call_fails(&fixture, &stopped).await;
    let error =
        Locks::builder().clock(stopped.manual_clock.clock()).open(&fixture.url("")).await.expect_err("no majority");
    assert_names_missing_nodes(&fixture, &error);
    ahead.advance(LASTING);
    timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss");
    let deadline = held.deadline();
    assert!(
        deadline <= killed.saturating_add(LASTING),
        "the lease was renewed without a majority: {:?}",
        deadline.duration_since(killed)
    );
    assert!(!held.is_held());
    for name in ["free", "held"] {
        stopped.wait_error(name).await;
    }
    let error = held.release().await;
    assert!(!matches!(error, Ok(leasehold::ReleaseOutcome::Released)), "the lock was lost: {error:?}");
    fixture.restart(&DEAD, Data::Wipe).await;
    let again = fixture.locks().await;
    eventually(TEST_TIMEOUT, || async { other.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        release(lock(&again, name).await).await;
        release(lock(&other, name).await).await;
        fixture.until_claim_counts(name, 0).await;
    }
}
