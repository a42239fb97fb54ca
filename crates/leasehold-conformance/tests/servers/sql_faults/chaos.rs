//! Everything at once: clients that take and give back, while connections are killed and the server dies and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Token;
use leasehold::clock::{Clock, Moment};
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use tokio::task::JoinSet;

use crate::sql_faults::site::{BOTH, Site, lock, locks};

/// A time during which somebody believed to hold the lock.
struct Held {
    token: Token,
    from: Moment,
    to: Moment,
}

async fn client(url: String, stop: Arc<AtomicBool>, grants: Arc<AtomicUsize>) -> Vec<Held> {
    let locks = locks(&url, Duration::from_secs(2)).await;
    let clock = Clock::system();
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(guard) = locks.mutex("a").wait(Duration::from_secs(5)).lock().await else { continue };
        let from = clock.now();
        let _ = guard.protect(clock.sleep_until(from.after(Duration::from_millis(10)))).await;
        let to = if guard.is_held() { clock.now() } else { clock.now().min(guard.deadline()) };
        held.push(Held { token: guard.token(), from, to });
        grants.fetch_add(1, Ordering::Relaxed);
        let _ = guard.release().await;
    }
    held
}

/// Nobody ever holds beside another, and tokens rise with the grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_whatever_dies() {
    for kind in BOTH {
        let mut site = Site::new(kind).await;
        let _ = lock(&site.locks(Duration::from_secs(1)).await, "a").await.release().await.expect("a release");
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..5 {
            clients.spawn(client(site.url(), Arc::clone(&stop), Arc::clone(&grants)));
        }
        let clock = Clock::system();
        for round in 0..12 {
            clock.sleep_until(clock.now().after(Duration::from_millis(400))).await;
            match round % 4 {
                3 => site.crash().await,
                _ => site.kill_connections().await,
            }
        }
        eventually(SOON * 2, || async {
            let grants = grants.load(Ordering::Relaxed);
            if grants > 30 { Ok(()) } else { Err(format!("{kind:?}: {grants} grants")) }
        })
        .await;
        stop.store(true, Ordering::Relaxed);
        let mut held: Vec<Held> = clients.join_all().await.into_iter().flatten().collect();
        held.sort_by_key(|held| held.from);
        println!("{kind:?}: {} grants", held.len());
        assert!(held.len() > 30, "{kind:?}: only {} grants", held.len());
        for pair in held.windows(2) {
            assert!(pair[0].to <= pair[1].from, "{kind:?}: two at once for {:?}", pair[0].to.since(pair[1].from));
            assert!(pair[0].token < pair[1].token, "{kind:?}: token {} after {}", pair[1].token, pair[0].token);
        }
    }
}

/// A server that is killed with `kill -9` and restarted forgets no lease, and gives no token twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_forgets_nothing() {
    for kind in BOTH {
        let mut site = Site::new(kind).await;
        let (one, two) = (site.locks(Duration::from_secs(60)).await, site.locks(Duration::from_secs(60)).await);
        let mut token = Token(0);
        for _ in 0..3 {
            let guard = lock(&one, "a").await;
            assert!(guard.token() > token);
            token = guard.token();
            let waiter = two.clone();
            let waiting = tokio::spawn(async move { lock(&waiter, "a").await });
            crate::sql_faults::site::queued(&one, "a", 1).await;
            site.crash().await;
            assert!(guard.is_held() && !waiting.is_finished(), "{kind:?}");
            let _ = guard.release().await.expect("a release");
            let next = waiting.await.expect("no panic");
            assert!(next.token() > token, "{kind:?}");
            token = next.token();
            let _ = next.release().await.expect("a release");
        }
    }
}
