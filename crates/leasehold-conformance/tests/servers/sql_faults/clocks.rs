//! Clocks that are set back, and servers whose clocks are apart.

use std::time::Duration;

use leasehold_conformance::world::SOON;
use leasehold_testbed::{Proxy, WallClock, eventually};

use crate::sql_faults::site::{BOTH, Kind, MIDDLE, SHORT, Site, is_free, lock, locks};

/// The database's clock goes back by an hour while a lock is held: nobody else gets in while it is renewed, the token still
/// rises, and a holder that is gone then is gone after its TTL, not after an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_neither_lets_two_in_nor_keeps_a_lock_for_an_hour() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let (one, proxy) = site.proxied(MIDDLE).await;
        let two = site.locks(MIDDLE).await;
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

/// The same for those who only try, and do not wait: it is free after a TTL, not after an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_mends_a_lease_that_begins_in_the_future() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let (one, proxy) = site.proxied(SHORT).await;
        let two = site.locks(SHORT).await;
        let guard = lock(&one, "a").await;
        proxy.freeze(true);
        clock.move_to(-3600).expect("a moved clock");
        eventually(SOON, || async { if is_free(&two, "a").await { Ok(()) } else { Err("not free") } }).await;
        assert!(!guard.is_held(), "{kind:?}");
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

/// The clock goes back while we remember a row: what is decided on it is not believed for longer than a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remembered_lease_is_not_believed_for_an_hour() {
    for kind in BOTH {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(kind, &clock).await;
        let locks = site.locks(SHORT).await;
        let first = locks.rwlock("a").read().await.expect("a lock");
        clock.move_to(-3600).expect("a moved clock");
        let second = locks.rwlock("a").read().await.expect("a lock");
        let before = first.deadline().max(second.deadline());
        eventually(SOON, || async {
            let now = leasehold::clock::Clock::system().now();
            for guard in [&first, &second] {
                assert!(
                    guard.deadline().since(now) <= SHORT,
                    "{kind:?}: believed for {:?}",
                    guard.deadline().since(now)
                );
            }
            if first.deadline().min(second.deadline()) > before { Ok(()) } else { Err("not renewed") }
        })
        .await;
    }
}

/// The next one asks a server whose clock is ahead of the holder's, as in Galera: with `clock-skew` it waits for that much longer, and without it
/// two hold. The holder's line is frozen, so that it does not renew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_apart_let_nobody_in_early() {
    for (option, is_bound) in [("", false), ("?clock-skew=3s", true)] {
        let clock = WallClock::new().expect("a clock");
        let site = Site::with_clock(Kind::MariaDb, &clock).await;
        let proxy = Proxy::start(site.server.addr()).await.expect("a proxy");
        let ttl = Duration::from_secs(10);
        let one = locks(&format!("{}{option}", site.url_at(proxy.addr())), ttl).await;
        let two = locks(&format!("{}{option}", site.url()), ttl).await;
        let guard = lock(&one, "a").await;
        proxy.freeze(true);
        clock.move_to(3).expect("a moved clock");
        let next = two.mutex("a").wait(SOON * 2).lock().await.expect("a lock");
        assert_eq!(!guard.is_held(), is_bound, "{option}: held by two?");
        assert!(next.token() > guard.token());
    }
}
