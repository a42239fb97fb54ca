//! Clocks that are set back.

use leasehold_conformance::world::SOON;
use leasehold_testbed::{WallClock, eventually};

use crate::site::{BOTH, SHORT, Site, is_free, lock};

/// The database's clock goes back by an hour while a lock is held: nobody else gets in while it is renewed, the token still
/// rises, and a holder that is gone then is gone after its TTL, not after an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_neither_lets_two_in_nor_keeps_a_lock_for_an_hour() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let (one, proxy) = site.proxied(SHORT).await;
        let two = site.locks(SHORT).await;
        let guard = lock(&one, "a").await;
        let token = guard.token();
        clock.move_to(-3600).expect("a moved clock");
        let before = guard.deadline();
        eventually(SOON, || async {
            assert!(!is_free(&two, "a").await, "{kind:?}: it is held");
            if guard.deadline() > before { Ok(()) } else { Err("not renewed") }
        })
        .await;
        assert!(guard.is_held(), "{kind:?}");
        // Now it is gone, and its lease was written after the clock went back; before that, ours would have begun in the future.
        proxy.freeze(true);
        let next = lock(&two, "a").await;
        assert!(!guard.is_held(), "{kind:?}");
        assert!(next.token() > token, "{kind:?}: {} after {token}", next.token());
    }
}

/// The same, and the holder is gone before it could renew on the clock that was set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_begins_in_the_future_lasts_no_longer_than_its_ttl() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let (one, proxy) = site.proxied(SHORT).await;
        let two = site.locks(SHORT).await;
        let guard = lock(&one, "a").await;
        proxy.freeze(true);
        clock.move_to(-3600).expect("a moved clock");
        let next = lock(&two, "a").await;
        assert!(!guard.is_held() && next.token() > guard.token(), "{kind:?}");
    }
}
