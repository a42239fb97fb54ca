//! Looking at locks and putting holders out, with two servers down: a majority is enough, and who was put out stays out.

use std::time::Duration;

use leasehold::{LostReason, Outcome};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::site::{Site, give_back, held_beyond, lock};

const TTL: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_put_out_with_two_servers_down_stays_out() {
    let mut site = Site::durable().await;
    let (locks, other) = (site.locks(TTL).await, site.locks(TTL).await);
    for down in [[0, 1], [3, 4], [1, 3]] {
        let (held, beside) = (lock(&locks, "held").await, lock(&locks, "beside").await);
        site.until_claims("held", 1, SOON).await;
        site.kill(&down);
        let view = eventually(SOON, || other.inspect("held")).await;
        let seen: Vec<_> = view.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(seen, [Some(held.token())], "{down:?}: {view:?}");
        assert!(view.holders[0].holder.pid == std::process::id() && view.last_token == Some(held.token()));
        let listed = other.list("").await.expect("a list");
        let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["beside", "held"]);
        let evicted = other.evict("held", view.holders[0].claim).await.expect("an eviction");
        assert!(evicted.party.is_some() && evicted.token > held.token(), "{down:?}: {evicted:?}");
        // It hears of it with its next renewal, long before its lease would have ended of itself.
        assert_eq!(timeout(TTL, held.lost()).await.expect("it is told"), LostReason::Taken);
        assert!(!held.is_held());
        let next = lock(&other, "held").await;
        assert!(next.token() > evicted.token, "{down:?}");
        // The two have missed all that, and still have the old claim on record.
        site.restart(&down, Data::Keep).await;
        assert_eq!(held.release().await.expect("an outcome"), Outcome::WasLost(LostReason::Taken));
        held_beyond(&next, locks.clock().now().after(TTL * 4 / 3)).await;
        site.until_claims("held", 1, SOON).await;
        assert!(beside.is_held(), "nobody else is touched");
        let again = other.evict("held", view.holders[0].claim).await.expect("an eviction");
        assert!(again.party.is_none(), "it is gone: {again:?}");
        held_beyond(&next, locks.clock().now().after(TTL)).await;
        give_back(next).await;
        give_back(beside).await;
        for name in ["held", "beside"] {
            site.until_claims(name, 0, SOON).await;
        }
        assert!(other.list("").await.expect("a list").is_empty());
    }
}

/// A renewal of somebody who was put out brings nothing back, on any server, however often it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_who_was_put_out_bring_nothing_back() {
    let site = Site::new().await;
    let (locks, proxies) = site.proxied(TTL, "").await;
    let other = site.locks(TTL).await;
    let held = lock(&locks, "a").await;
    site.until_claims("a", 1, SOON).await;
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    // What it sends from here on arrives after the eviction.
    proxies.iter().for_each(|line| line.freeze(true));
    other.evict("a", claim).await.expect("an eviction");
    assert_eq!(site.all_claims("a").await, [0; 5]);
    let sent = |at: usize| proxies[at].counts().request_bytes;
    let before: Vec<_> = (0..5).map(sent).collect();
    timeout(SOON, held.lost()).await.expect("it hears nothing, and so it is lost");
    proxies.iter().for_each(|line| line.freeze(false));
    eventually(SOON, || async {
        let arrived = (0..5).filter(|at| sent(*at) > before[*at]).count();
        if arrived == 5 { Ok(()) } else { Err(format!("{arrived} lines have spoken again")) }
    })
    .await;
    eventually(SOON, || locks.settle()).await;
    site.until_claims("a", 0, Duration::from_millis(500)).await;
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("free");
    site.until_claims("a", 1, SOON).await;
    assert!(next.is_held());
    give_back(next).await;
}
