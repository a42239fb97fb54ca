//! Evictions where no message is sent: the holder and the next waiter see that another has written, long before a renewal or a heartbeat is due.

use leasehold::{Effect, ErrorKind, LostReason};
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::sql_faults::site::{BOTH, LASTING, Site, lock, locks, queued};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_and_the_next_waiter_are_told_where_all_look_by_themselves() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let url = format!("{}?wake=poll", site.url());
        let (one, two, other) = (locks(&url, LASTING).await, locks(&url, LASTING).await, locks(&url, LASTING).await);
        let held = lock(&one, "a").await;
        let beside = lock(&one, "b").await;
        let next = tokio::spawn(async move { lock(&two, "a").await });
        queued(&other, "a", 1).await;
        let claim = other.inspect("a").await.expect("a view").holders[0].claim;
        let fence = other.evict("a", claim).await.expect("an eviction").token.expect("a token");
        assert_eq!(timeout(SOON, held.lost()).await.expect("it is told"), LostReason::Taken, "{kind:?}");
        let next = timeout(SOON, next).await.expect("its turn").expect("no panic");
        assert!(held.token() < fence && fence < next.token(), "{kind:?}");
        assert!(beside.is_held(), "nobody else is touched");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_removed_ends_also_where_all_look_by_themselves() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let url = format!("{}?wake=poll", site.url());
        let (one, two) = (locks(&url, LASTING).await, locks(&url, LASTING).await);
        let held = lock(&one, "a").await;
        let waits = tokio::spawn(async move { two.mutex("a").wait(LASTING).lock().await });
        queued(&one, "a", 1).await;
        let claim = one.inspect("a").await.expect("a view").waiters[0].claim;
        one.evict("a", claim).await.expect("an eviction");
        let ended = timeout(SOON, waits).await.expect("it is told").expect("no panic");
        assert_eq!(ended.expect_err("it was removed").kind(), ErrorKind::Evicted, "{kind:?}");
        queued(&one, "a", 0).await;
        assert!(held.is_held());
    }
}

/// A row that somebody deletes is no eviction: its waiter asks anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_row_is_deleted_asks_anew() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(LASTING).await, locks(&format!("{}?wake=poll", site.url()), LASTING).await);
        let held = lock(&one, "a").await;
        let waits = tokio::spawn(async move { lock(&two, "a").await });
        queued(&one, "a", 1).await;
        site.ask(&format!("DELETE FROM {}", site.table())).await;
        let next = timeout(SOON, waits).await.expect("its turn").expect("no panic");
        assert!(next.token() > held.token(), "{kind:?}");
    }
}

/// The reply to a force release is lost. The second try finds no such claim, and must not report that nothing was changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_force_release_is_an_unknown_outcome() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let one = site.locks(LASTING).await;
        let (two, proxy) = site.proxied(LASTING).await;
        eventually(SOON, || async {
            let held = lock(&one, "a").await;
            // A client that waits knows the row: its next statement writes.
            let waits = tokio::spawn({
                let two = two.clone();
                async move { while two.mutex("a").lock().await.is_err() {} }
            });
            queued(&one, "a", 1).await;
            proxy.cut_after_request();
            let forced = two.evict("a", held.claim_id()).await;
            proxy.disarm();
            timeout(SOON, waits).await.expect("its turn").expect("no panic");
            match forced {
                Err(error) if error.effect() == Effect::Unknown => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(forced) if forced.party.is_some() => Err("another statement was cut".to_owned()),
                Ok(_) => panic!("{kind:?}: it was force released, and the answer is that nothing was changed"),
            }
        })
        .await;
    }
}
