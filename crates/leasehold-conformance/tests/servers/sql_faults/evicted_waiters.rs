//! A waiter is evicted while its client has no connection. Its request ends with that: it does not queue again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{AcquireReply, Engine, ReleaseReply};
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Locks, Mode};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::{Proxy, eventually};

use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, ShiftedClock, acquire, until_queued};

/// A waiter whose client is behind a proxy, and the holder, a client of its own.
struct Scene {
    site: Fixture,
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

async fn ask(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> leasehold::Result<AcquireReply> {
    Arc::clone(engine).attempt(Arc::clone(claim), true).await
}

async fn give_back(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> ReleaseReply {
    Arc::clone(engine).release(Arc::clone(claim)).await.expect("a release")
}

impl Scene {
    async fn new(kind: DatabaseKind) -> Self {
        let (site, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = site.proxy().await;
        let near = leasehold::registry::open(&patient_url(&site.url()), &ahead.clock()).await.expect("an engine");
        let far = leasehold::registry::open(&patient_url(&site.url_at(proxy.addr())), &ahead.clock())
            .await
            .expect("an engine");
        let scene = Self { site, near, far, proxy, ahead, held: claim("a"), waits: claim("a") };
        assert!(matches!(ask(&scene.near, &scene.held).await, Ok(AcquireReply::Granted(_))), "{kind:?}");
        let queued = ask(&scene.far, &scene.waits).await;
        assert!(matches!(queued, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {queued:?}");
        scene
    }

    /// Cuts the waiter off, and waits until it has asked in vain.
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

    /// How many evictions the row has.
    async fn kept(&self) -> usize {
        let rows = self.site.query_as_admin(&format!("SELECT state FROM {} WHERE name = 'a'", self.site.table())).await;
        let state = rows[0][0].as_ref().expect("a state");
        let state: serde_json::Value = serde_json::from_str(state).expect("JSON");
        state["evicted"].as_array().map_or(0, Vec::len)
    }
}

/// It asks for the lock again, which would queue it anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_has_asked_in_vain_does_not_queue_again() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || ask(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let view = Arc::clone(&scene.near).inspect(scene.waits.name().clone()).await.expect("a view");
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}: {view:?}");
        // Its request ends with a release. The row then keeps nothing of it, and another claim of the same client queues.
        assert_eq!(scene.kept().await, 1, "{kind:?}");
        assert_eq!(give_back(&scene.far, &scene.waits).await, ReleaseReply::Absent, "{kind:?}");
        assert_eq!(scene.kept().await, 0, "{kind:?}");
        let other = ask(&scene.far, &claim("a")).await;
        assert!(matches!(other, Ok(AcquireReply::Queued { ahead: 0, .. })), "{kind:?}: {other:?}");
    }
}

/// Others have the lock meanwhile, each in its own turn: none of them overwrites what the waiter must find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turns_of_others_do_not_hide_the_eviction() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        give_back(&scene.near, &scene.held).await;
        let mut last = None;
        for _ in 0..3 {
            let next = claim("a");
            let Ok(AcquireReply::Granted(grant)) = ask(&scene.near, &next).await else {
                panic!("{kind:?}: it is free")
            };
            assert!(last.is_none_or(|last| last < grant.token), "{kind:?}");
            last = Some(grant.token);
            assert_eq!(give_back(&scene.near, &next).await, ReleaseReply::Released, "{kind:?}");
        }
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || ask(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
        let list = Arc::clone(&scene.near).list(String::new()).await.expect("a list");
        assert!(list.is_empty(), "{kind:?}: an eviction is no claim: {list:?}");
        // Once its client knows, the next acquire needs one statement again.
        assert_eq!(give_back(&scene.far, &scene.waits).await, ReleaseReply::Absent, "{kind:?}");
        let busy = format!("SELECT busy FROM {} WHERE name = 'a'", scene.site.table());
        assert_eq!(scene.site.number(&busy).await, 0, "{kind:?}");
    }
}

/// It was granted the lock while it was cut off, and then evicted: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_granted_unawares_does_not_queue_again() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        assert_eq!(give_back(&scene.near, &scene.held).await, ReleaseReply::Released);
        scene.evict().await;
        scene.proxy.refuse(false);
        assert_eq!(
            eventually(TEST_TIMEOUT, || ask(&scene.far, &scene.waits)).await,
            AcquireReply::ForceReleased,
            "{kind:?}"
        );
    }
}

/// So much time has passed on its clock that its position could have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_looks_late_is_told() {
    for kind in BOTH {
        let scene = Scene::new(kind).await;
        scene.cut().await;
        scene.evict().await;
        scene.ahead.advance(LASTING * 5 / 6);
        scene.proxy.refuse(false);
        let look = || Arc::clone(&scene.far).wait(Arc::clone(&scene.waits), Duration::ZERO);
        assert_eq!(eventually(TEST_TIMEOUT, look).await, AcquireReply::ForceReleased, "{kind:?}");
    }
}

/// The whole request: it ends with the eviction's error when the line is back, though the lock is free by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_ends_with_the_eviction() {
    for kind in BOTH {
        let (site, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let proxy = site.proxy().await;
        let (near, far) = (site.open_locks(LASTING).await, ahead.open_locks(&site.url_at(proxy.addr()), LASTING).await);
        let held = acquire(&near, "a").await;
        let waits = tokio::spawn(async move { far.mutex("a").timeout(LASTING * 2).lock().await });
        until_queued(&near, "a", 1).await;
        let evicted = near.inspect("a").await.expect("a view").waiters[0].claim;
        proxy.refuse(true);
        proxy.cut();
        refused(&proxy, &ahead).await;
        near.force_release("a", evicted).await.expect("an eviction");
        let _ = held.release().await.expect("a release");
        proxy.refuse(false);
        let ended = eventually(TEST_TIMEOUT, || async {
            // Its pauses end.
            ahead.advance(Duration::from_secs(1));
            if waits.is_finished() { Ok(()) } else { Err("it goes on") }
        });
        ended.await;
        let ended = waits.await.expect("no panic").map(drop);
        assert_eq!(ended.expect_err("it was evicted").kind(), ErrorKind::ForceReleased, "{kind:?}");
        assert!(is_clean(&near).await, "{kind:?}");
    }
}

/// Waits until heartbeats of the waiter have failed.
async fn refused(proxy: &Proxy, ahead: &ShiftedClock) {
    let before = proxy.counts().refused;
    // A heartbeat is due after a third of the TTL.
    ahead.advance(LASTING * 2 / 5);
    eventually(TEST_TIMEOUT, || async {
        let tried = proxy.counts().refused - before;
        if tried >= 20 { Ok(()) } else { Err(format!("{tried} connections were tried")) }
    })
    .await;
}

async fn is_clean(locks: &Locks) -> bool {
    let view = locks.inspect("a").await.expect("a view");
    view.holders.is_empty() && view.waiters.is_empty() && view.damage.is_none()
}
