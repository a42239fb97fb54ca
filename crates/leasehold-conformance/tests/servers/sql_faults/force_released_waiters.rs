//! A waiter is force-released while its client is disconnected. Its request fails, and it does not
//! queue again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{AcquireReply, Engine, ReleaseReply};
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Locks, Mode};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::{Proxy, eventually};

use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, ShiftedClock, acquire, until_queued};

/// A waiter whose client is behind a proxy, and a holder in another client.
struct DisconnectedWaiter {
    fixture: Fixture,
    holder_client: Arc<dyn Engine>,
    waiter_client: Arc<dyn Engine>,
    /// Before the waiter's client.
    proxy: Proxy,
    /// The clock of both clients.
    ahead: ShiftedClock,
    /// The holder's claim.
    held: Arc<Claim>,
    /// The waiter's claim.
    waits: Arc<Claim>,
}

fn claim(name: &str) -> Arc<Claim> {
    let (name, holder) = (LockName::new(name).expect("a name"), Arc::new(Holder::this_process()));
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, None, LASTING, holder))))
}

async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> leasehold::Result<AcquireReply> {
    Arc::clone(engine).attempt(Arc::clone(claim), true).await
}

async fn release(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> ReleaseReply {
    Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release")
}

impl DisconnectedWaiter {
    async fn new(kind: DatabaseKind) -> Self {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = fixture.proxy().await;
        let holder_client =
            leasehold::registry::open(&patient_url(&fixture.url()), &ahead.clock()).await.expect("an engine");
        let waiter_client = leasehold::registry::open(&patient_url(&fixture.url_at(proxy.addr())), &ahead.clock())
            .await
            .expect("an engine");
        let setup = Self { fixture, holder_client, waiter_client, proxy, ahead, held: claim("a"), waits: claim("a") };
        assert!(matches!(attempt(&setup.holder_client, &setup.held).await, Ok(AcquireReply::Granted(_))), "{kind:?}");
        let queued = attempt(&setup.waiter_client, &setup.waits).await;
        assert!(matches!(queued, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {queued:?}");
        setup
    }

    /// Disconnects the waiter and waits until one of its requests has failed.
    async fn cut(&self) {
        self.proxy.refuse(true);
        self.proxy.cut();
        eventually(TEST_TIMEOUT, || async {
            match Arc::clone(&self.waiter_client).wait(Arc::clone(&self.waits), Duration::ZERO).await {
                Err(_) => Ok(()),
                answer => Err(format!("{answer:?}, though there is no connection")),
            }
        })
        .await;
    }

    /// Force-releases the waiter.
    async fn force_release(&self) {
        let (name, id) = (self.waits.name().clone(), self.waits.id);
        let force_released =
            Arc::clone(&self.holder_client).force_release(name, id, String::new()).await.expect("a force release");
        assert!(force_released.contender.is_some());
    }

    /// How many force releases the lock's row has on record.
    async fn force_release_count(&self) -> usize {
        let rows =
            self.fixture.query_as_admin(&format!("SELECT state FROM {} WHERE name = 'a'", self.fixture.table())).await;
        let state = rows[0][0].as_ref().expect("a state");
        let state: serde_json::Value = serde_json::from_str(state).expect("JSON");
        state["force_released"].as_array().map_or(0, Vec::len)
    }
}

/// A waiter that retries the acquire must not queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_attempt_failed_does_not_queue_again() {
    for kind in BOTH {
        let setup = DisconnectedWaiter::new(kind).await;
        setup.cut().await;
        setup.force_release().await;
        setup.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&setup.waiter_client, &setup.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let view = Arc::clone(&setup.holder_client).inspect(setup.waits.name().clone()).await.expect("a view");
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}: {view:?}");
        // The failed request ends with a release. The row then keeps no trace of it, and another
        // claim of the same client can queue.
        assert_eq!(setup.force_release_count().await, 1, "{kind:?}");
        assert_eq!(release(&setup.waiter_client, &setup.waits).await, ReleaseReply::Absent, "{kind:?}");
        assert_eq!(setup.force_release_count().await, 0, "{kind:?}");
        let other = attempt(&setup.waiter_client, &claim("a")).await;
        assert!(matches!(other, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {other:?}");
    }
}

/// Other claims hold the lock meanwhile, one after another: none of them overwrites the force
/// release that the waiter must find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_grants_do_not_hide_the_force_release() {
    for kind in BOTH {
        let setup = DisconnectedWaiter::new(kind).await;
        setup.cut().await;
        setup.force_release().await;
        release(&setup.holder_client, &setup.held).await;
        let mut last = None;
        for _ in 0..3 {
            let next = claim("a");
            let Ok(AcquireReply::Granted(grant)) = attempt(&setup.holder_client, &next).await else {
                panic!("{kind:?}: the lock is free")
            };
            assert!(last.is_none_or(|last| last < grant.token), "{kind:?}");
            last = Some(grant.token);
            assert_eq!(release(&setup.holder_client, &next).await, ReleaseReply::Released, "{kind:?}");
        }
        setup.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&setup.waiter_client, &setup.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let list = Arc::clone(&setup.holder_client).list(String::new()).await.expect("a list");
        assert!(list.is_empty(), "{kind:?}: a force release is not a claim: {list:?}");
        // Once its client has seen the force release, the next acquire takes one statement again.
        assert_eq!(release(&setup.waiter_client, &setup.waits).await, ReleaseReply::Absent, "{kind:?}");
        let busy = format!("SELECT busy FROM {} WHERE name = 'a'", setup.fixture.table());
        assert_eq!(setup.fixture.number(&busy).await, 0, "{kind:?}");
    }
}

/// A waiter is granted the lock while it is disconnected, and then force-released: it does not
/// queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_granted_while_disconnected_does_not_queue_again() {
    for kind in BOTH {
        let setup = DisconnectedWaiter::new(kind).await;
        setup.cut().await;
        assert_eq!(release(&setup.holder_client, &setup.held).await, ReleaseReply::Released);
        setup.force_release().await;
        setup.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&setup.waiter_client, &setup.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
    }
}

/// On the waiter's clock, its queue entry could already have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_heartbeat_reports_the_force_release() {
    for kind in BOTH {
        let setup = DisconnectedWaiter::new(kind).await;
        setup.cut().await;
        setup.force_release().await;
        setup.ahead.advance(LASTING * 5 / 6);
        setup.proxy.refuse(false);
        let heartbeat = || Arc::clone(&setup.waiter_client).wait(Arc::clone(&setup.waits), Duration::ZERO);
        assert_eq!(eventually(TEST_TIMEOUT, heartbeat).await, AcquireReply::ForceReleased, "{kind:?}");
    }
}

/// The whole request: it fails with the force release's error after the reconnect, although the
/// lock is free by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_fails_with_the_force_release() {
    for kind in BOTH {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = fixture.proxy().await;
        let (holder_client, waiter_client) =
            (fixture.open_locks(LASTING).await, ahead.open_locks(&fixture.url_at(proxy.addr()), LASTING).await);
        let held = acquire(&holder_client, "a").await;
        let waits = tokio::spawn(async move { waiter_client.mutex("a").timeout(LASTING * 2).lock().await });
        until_queued(&holder_client, "a", 1).await;
        let force_released = holder_client.inspect("a").await.expect("a view").waiters[0].claim;
        proxy.refuse(true);
        proxy.cut();
        wait_heartbeats_refused(&proxy, &ahead).await;
        holder_client.force_release("a", force_released).await.expect("a force release");
        let _ = held.release().await.expect("a release");
        proxy.refuse(false);
        let ended = eventually(TEST_TIMEOUT, || async {
            // Lets its back-off end.
            ahead.advance(Duration::from_secs(1));
            if waits.is_finished() { Ok(()) } else { Err("the request has not ended") }
        });
        ended.await;
        let ended = waits.await.expect("no panic").map(drop);
        assert_eq!(ended.expect_err("the waiter was force-released").kind(), ErrorKind::ForceReleased, "{kind:?}");
        assert!(is_free(&holder_client).await, "{kind:?}");
    }
}

/// Waits until the waiter's heartbeats have failed.
async fn wait_heartbeats_refused(proxy: &Proxy, ahead: &ShiftedClock) {
    let before = proxy.counts().refused;
    // A heartbeat is due after a third of the TTL.
    ahead.advance(LASTING * 2 / 5);
    eventually(TEST_TIMEOUT, || async {
        let tried = proxy.counts().refused - before;
        if tried >= 20 { Ok(()) } else { Err(format!("{tried} connections were tried")) }
    })
    .await;
}

async fn is_free(locks: &Locks) -> bool {
    let view = locks.inspect("a").await.expect("a view");
    view.holders.is_empty() && view.waiters.is_empty() && view.damage.is_none()
}
