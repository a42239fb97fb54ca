//! The shop example, in memory and on Redis. Leasehold's strategies show no stale price; only their
//! strong modes guarantee it. Detecting stale prices needs seconds of load, so that part runs
//! nightly.

use std::time::Duration;

#[cfg(feature = "nightly")]
use crate::cache::fixture::redis_server;
use crate::cache::shop::Shop;
#[cfg(feature = "nightly")]
use crate::cache::shop::{NAMES, is_strong};

#[cfg(feature = "nightly")]
async fn check_example(url: String) {
    let shop = Shop { url, time: Duration::from_millis(1500) };
    let mut wrong = 0;
    for name in NAMES {
        let shown = shop.run_strategy(name).await.unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {shown:?}");
        assert!(shown.reads > 0 && shown.writes > 0 && shown.loads > 0, "{name}: {shown:?}");
        if is_strong(name) {
            assert_eq!(shown.stale, 0, "{name}: {shown:?}");
        } else {
            wrong += shown.stale;
        }
    }
    assert!(wrong > 0, "the controls are never stale, so the load shows nothing");
    assert_eq!(shop.count_loads_of_crowd(1000).await.expect("a crowd"), 1);
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory() {
    check_example("memory:".to_owned()).await;
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    check_example(redis_server().await.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_causes_one_load() {
    let shop = Shop { url: "memory:".to_owned(), time: Duration::ZERO };
    assert_eq!(shop.count_loads_of_crowd(1000).await.expect("a crowd"), 1, "{shop:?}");
}
