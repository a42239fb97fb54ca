//! A waiter is evicted while its client is disconnected. Its request fails, and it does not queue
//! again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{AcquireReply, Engine, ReleaseReply};
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Locks, Mode};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::{Proxy, eventually};

use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, ShiftedClock, acquire, until_queued};

/// A waiter whose client is behind a proxy, and a holder in another client.
struct Scene {
    fixture: Fixture,
    near: Arc<dyn Engine>,
    far: Arc<dyn Engine>,
    proxy: Proxy,
    ahead: ShiftedClock,
    held: Arc<Claim>,
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

impl Scene {
    async fn new(kind: DatabaseKind) -> Self {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = fixture.proxy().await;
        let near = leasehold::registry::open(&patient_url(&fixture.url()), &ahead.clock()).await.expect("an engine");
        let far = leasehold::registry::open(&patient_url(&fixture.url_at(proxy.addr())), &ahead.clock())
            .await
            .expect("an engine");
        let scene = Self { fixture, near, far, proxy, ahead, held: claim("a"), waits: claim("a") };
        assert!(matches!(attempt(&scene.near, &scene.held).await, Ok(AcquireReply::Granted(_))), "{kind:?}");
        let queued = attempt(&scene.far, &scene.waits).await;
        assert!(matches!(queued, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {queued:?}");
        scene
    }

    /// Disconnects the waiter and waits until one of its requests has failed.
    async fn cut(&self) {
        self.proxy.refuse(true);
        self.proxy.cut();
        eventually(TEST_TIMEOUT, || async {
            match Arc::clone(&self.far).wait(Arc::clone(&self.waits), Duration::ZERO).await {
                Err(_) => Ok(()),
                answer => Err(format!("{answer:?}, though there is no connection")),
            }
        })
        .await;
    }

    async fn evict(&self) {
        let (name, id) = (self.waits.name().clone(), self.waits.id);
        let evicted = Arc::clone(&self.near).force_release(name, id, String::new()).await.expect("an eviction");
        assert!(evicted.contender.is_some());
    }

    /// Number of evictions in the row.
    async fn eviction_count(&self) -> usize {
        let rows =
            self.fixture.query_as_admin(&format!("SELECT state FROM {} WHERE name = 'a'", self.fixture.table())).await;
        let state = rows[0][0].as_ref().expect("a state");
        let state: serde_json::Value = serde_json::from_str(state).expect("JSON");
        state["evicted"].as_array().map_or(0, Vec::len)
    }
}

/// A waiter that retries the acquire must not queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_attempt_failed_does_not_queue_again() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let view = Arc::clone(&scene.near).inspect(scene.waits.name().clone()).await.expect("a view");
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}: {view:?}");
        // The failed request ends with a release. The row then keeps no trace of it, and another
        // claim of the same client can queue.
        assert_eq!(scene.eviction_count().await, 1, "{kind:?}");
        assert_eq!(release(&scene.far, &scene.waits).await, ReleaseReply::Absent, "{kind:?}");
        assert_eq!(scene.eviction_count().await, 0, "{kind:?}");
        let other = attempt(&scene.far, &claim("a")).await;
        assert!(matches!(other, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {other:?}");
    }
}

/// Other claims hold the lock meanwhile, one after another: none of them overwrites the eviction
/// that the waiter must find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_grants_do_not_hide_the_eviction() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        release(&scene.near, &scene.held).await;
        let mut last = None;
        for _ in 0..3 {
            let next = claim("a");
            let Ok(AcquireReply::Granted(grant)) = attempt(&scene.near, &next).await else {
                panic!("{kind:?}: the lock is free")
            };
            assert!(last.is_none_or(|last| last < grant.token), "{kind:?}");
            last = Some(grant.token);
            assert_eq!(release(&scene.near, &next).await, ReleaseReply::Released, "{kind:?}");
        }
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let list = Arc::clone(&scene.near).list(String::new()).await.expect("a list");
        assert!(list.is_empty(), "{kind:?}: an eviction is not a claim: {list:?}");
        // Once its client has seen the eviction, the next acquire takes one statement again.
        assert_eq!(release(&scene.far, &scene.waits).await, ReleaseReply::Absent, "{kind:?}");
        let busy = format!("SELECT busy FROM {} WHERE name = 'a'", scene.fixture.table());
        assert_eq!(scene.fixture.number(&busy).await, 0, "{kind:?}");
    }
}

/// The same for a waiter that was granted the lock while disconnected, and then evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_granted_while_disconnected_does_not_queue_again() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        assert_eq!(release(&scene.near, &scene.held).await, ReleaseReply::Released);
        scene.evict().await;
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || attempt(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
    }
}

/// On the waiter's clock, its queue entry could already have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_heartbeat_reports_the_eviction() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        scene.ahead.advance(LASTING * 5 / 6);
        scene.proxy.refuse(false);
        let heartbeat = || Arc::clone(&scene.far).wait(Arc::clone(&scene.waits), Duration::ZERO);
        assert_eq!(eventually(TEST_TIMEOUT, heartbeat).await, AcquireReply::ForceReleased, "{kind:?}");
    }
}

/// The whole request: it fails with the eviction's error after the reconnect, although the lock is
/// free by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_fails_with_the_eviction() {
    for kind in BOTH {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = fixture.proxy().await;
        let (near, far) =
            (fixture.open_locks(LASTING).await, ahead.open_locks(&fixture.url_at(proxy.addr()), LASTING).await);
        let held = acquire(&near, "a").await;
        let waits = tokio::spawn(async move { far.mutex("a").timeout(LASTING * 2).lock().await });
        until_queued(&near, "a", 1).await;
        let evicted = near.inspect("a").await.expect("a view").waiters[0].claim;
        proxy.refuse(true);
        proxy.cut();
        wait_heartbeats_refused(&proxy, &ahead).await;
        near.force_release("a", evicted).await.expect("an eviction");
        let _ = held.release().await.expect("a release");
        proxy.refuse(false);
        let ended = eventually(TEST_TIMEOUT, || async {
            // Lets its back-off end.
            ahead.advance(Duration::from_secs(1));
            if waits.is_finished() { Ok(()) } else { Err("the request has not ended") }
        });
        ended.await;
        let ended = waits.await.expect("no panic").map(drop);
        assert_eq!(ended.expect_err("the waiter was evicted").kind(), ErrorKind::ForceReleased, "{kind:?}");
        assert!(is_free(&near).await, "{kind:?}");
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
