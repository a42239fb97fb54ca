//! Clocks that are set back, and servers with different clocks.

use std::time::Duration;

use leasehold::Locks;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{WallClock, eventually};

use crate::sql_faults::fixture::{
    DatabaseKind, Fixture, LASTING, SHORT, ShiftedClock, acquire, is_lock_free, lock_with_retries,
};

/// A server whose clock can be set back, and a client.
struct ClockFixture {
    fixture: Fixture,
    clock: WallClock,
    other: Locks,
}

impl ClockFixture {
    async fn new(kind: DatabaseKind) -> Self {
        let clock = WallClock::new().expect("a clock");
        let fixture = Fixture::with_clock(kind, &clock).await;
        let other = fixture.open_locks(LASTING).await;
        Self { fixture, clock, other }
    }

    fn set_offset(&self, seconds: i64) {
        self.clock.set_offset(seconds).expect("a moved clock");
    }

    /// The database's clock goes back by an hour while a lock is held. The lock stays exclusive
    /// while it is renewed, tokens rise, and a dead holder's lock is free after its TTL, not after
    /// an hour.
    async fn while_a_lock_is_held(&self) {
        let (ahead, proxy, kind) = (ShiftedClock::new(), self.fixture.proxy().await, self.fixture.kind);
        let one = ahead.open_locks(&self.fixture.url_at(proxy.addr()), LASTING).await;
        let guard = acquire(&one, "held").await;
        self.set_offset(-3600);
        assert!(!is_lock_free(&self.other, "held").await, "{kind:?}: the lock is held");
        ahead.renew_now(&[&guard], LASTING).await;
        assert!(!is_lock_free(&self.other, "held").await, "{kind:?}: the lock is held");
        // The holder is cut off now. Its lease was renewed after the clock went back; otherwise it
        // would begin in the future.
        proxy.freeze(true);
        let ttl = LASTING.as_secs().cast_signed();
        self.set_offset(-3600 + ttl / 2);
        assert!(!is_lock_free(&self.other, "held").await, "{kind:?}: the lease has not expired");
        self.set_offset(-3600 + ttl + 1);
        let next = self.other.mutex("held").try_lock().await.expect("an answer").expect("the lease has expired");
        assert!(next.token() > guard.token(), "{kind:?}: {} after {}", next.token(), guard.token());
    }

    /// The clock goes back, and the holder is cut off before it could renew: the lock
    /// is free after a TTL, also for clients that only try.
    async fn while_a_holder_is_cut_off(&self) {
        let kind = self.fixture.kind;
        for (name, at) in [("cut off", None), ("future", Some(-7200)), ("tried", Some(-10_800))] {
            let (one, proxy) = self.fixture.open_through_proxy(SHORT).await;
            let guard = lock_with_retries(&one, name).await;
            proxy.freeze(true);
            if let Some(at) = at {
                self.set_offset(at);
            }
            if name == "tried" {
                eventually(TEST_TIMEOUT, || async {
                    if is_lock_free(&self.other, name).await { Ok(()) } else { Err("not free") }
                })
                .await;
            }
            let next = acquire(&self.other, name).await;
            assert!(!guard.is_held(), "{kind:?}, {name}: two holders");
            assert!(next.token() > guard.token(), "{kind:?}, {name}: {} after {}", next.token(), guard.token());
        }
    }

    /// The clock goes back while the client caches a row: decisions based on the cache do not
    /// extend a lease beyond its TTL.
    async fn while_a_row_is_cached(&self) {
        let ahead = ShiftedClock::new();
        let locks = ahead.open_locks(&self.fixture.url(), LASTING).await;
        let first = locks.rwlock("remembered").read().await.expect("a lock");
        self.set_offset(-14_400);
        let second = locks.rwlock("remembered").read().await.expect("a lock");
        for round in 0..2 {
            for guard in [&first, &second] {
                let left = guard.deadline().duration_since(locks.clock().now());
                assert!(left <= LASTING, "{:?}, {round}: valid for {left:?}", self.fixture.kind);
            }
            ahead.renew_now(&[&first, &second], LASTING).await;
        }
    }
}

async fn check_clock_set_back(kind: DatabaseKind) {
    let fixture = ClockFixture::new(kind).await;
    fixture.while_a_lock_is_held().await;
    fixture.while_a_holder_is_cut_off().await;
    fixture.while_a_row_is_cached().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_neither_admits_two_holders_nor_prolongs_a_lease_on_mariadb() {
    check_clock_set_back(DatabaseKind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_neither_admits_two_holders_nor_prolongs_a_lease_on_postgres() {
    check_clock_set_back(DatabaseKind::Postgres).await;
}

/// The next client uses a server whose clock is 150 s ahead of the holder's, as in Galera. With
/// `clock-skew` it waits that much longer; without it there are two holders. The holder's
/// connection is frozen, so it does not renew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skewed_server_clocks_grant_no_lock_early() {
    let clock = WallClock::new().expect("a clock");
    let fixture = Fixture::with_clock(DatabaseKind::MariaDb, &clock).await;
    for (name, option, is_bound) in [("plain", "", false), ("bound", "?clock-skew=150s", true)] {
        clock.set_offset(0).expect("the right time");
        let (ahead, proxy) = (ShiftedClock::new(), fixture.proxy().await);
        let one = ahead.open_locks(&format!("{}{option}", fixture.url_at(proxy.addr())), LASTING).await;
        let two = crate::sql_faults::fixture::open_locks(&format!("{}{option}", fixture.url()), LASTING).await;
        let guard = acquire(&one, name).await;
        proxy.freeze(true);
        // 500 s later on both clocks.
        ahead.advance(Duration::from_secs(500));
        clock.set_offset(500 + 150).expect("a moved clock");
        let mut next = two.mutex(name).try_lock().await.expect("an answer");
        assert!(guard.is_held(), "{option}: the lease has not expired");
        assert_eq!(next.is_none(), is_bound, "{option}: two holders");
        if is_bound {
            ahead.advance(Duration::from_secs(101));
            clock.set_offset(601 + 150).expect("a moved clock");
            next = two.mutex(name).try_lock().await.expect("an answer");
            assert!(!guard.is_held(), "{option}: the lease has expired");
        }
        assert!(next.expect("a lock").token() > guard.token());
    }
}
