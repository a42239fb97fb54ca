//! Time under the test's control: a server's wall clock and its clients' clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, Result};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{WallClock, eventually};
use tokio::task::JoinHandle;

/// A TTL so long that its first heartbeat is due only after a lease of [`LONG_TTL`] has ended.
pub(crate) const LONGER: Duration = Duration::from_secs(6 * LONG_TTL.as_secs());

// What happens within `TEST_TIMEOUT` under a TTL of `LONG_TTL` is not due to a scheduled renewal or
// heartbeat.
const _: () = assert!(LONG_TTL.as_millis() / 4 > TEST_TIMEOUT.as_millis());

/// The clock of a server and of its clients, which advance together.
pub(crate) struct ManualTime {
    server_clock: WallClock,
    client_clock: ManualClock,
    passed_secs: AtomicU64,
}

impl ManualTime {
    pub(crate) fn new() -> Self {
        Self {
            server_clock: WallClock::new().expect("a clock"),
            client_clock: ManualClock::running(),
            passed_secs: AtomicU64::new(0),
        }
    }

    /// A server that uses this clock.
    pub(crate) fn redis_config(&self) -> Redis {
        Redis::new().clock(&self.server_clock)
    }

    /// The clients' clock.
    pub(crate) fn clients_clock(&self) -> Clock {
        self.client_clock.clock()
    }

    /// Advances both clocks by whole seconds.
    pub(crate) fn advance(&self, time: Duration) {
        let passed = self.passed_secs.fetch_add(time.as_secs(), Ordering::SeqCst) + time.as_secs();
        self.server_clock.set_offset(i64::try_from(passed).expect("an offset in range")).expect("a moved clock");
        self.client_clock.advance(time);
    }

    /// The guard of a waiter whose timer is due. A waiter that was not idle when the clock moved
    /// starts its timer later: a little more time passes for it, but less than a heartbeat interval
    /// under [`LONGER`].
    pub(crate) async fn advance_until_granted(&self, waiter: JoinHandle<Result<Guard>>) -> Guard {
        let mut poll = 0;
        eventually(TEST_TIMEOUT, || {
            poll += 1;
            let granted = waiter.is_finished();
            // Lets a failed attempt retry after its back-off.
            self.client_clock.advance(Duration::from_millis(200));
            if !granted && (50..150).contains(&poll) {
                self.advance(Duration::from_secs(5));
            }
            async move { if granted { Ok(()) } else { Err("not granted so far") } }
        })
        .await;
        waiter.await.expect("no panic").expect("the lock")
    }
}

/// Opens a client that uses this clock and tolerates a slow connection. With a stopped clock, a
/// connection timeout would never be retried.
pub(crate) async fn patient_client(url: &str, ttl: Duration, clock: Clock) -> Locks {
    let mark = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{mark}connect-timeout=300s");
    Locks::builder().ttl(ttl).clock(clock).open(&url).await.expect("a client")
}

/// A third of a lease of [`LONG_TTL`] passes, and each lease is renewed. A renewal in flight when
/// the clock moves counts as timed out and is retried a tenth of the lease later.
pub(crate) async fn pass_and_renew<'a>(guards: impl IntoIterator<Item = &'a Guard>, advance: impl Fn(Duration)) {
    let guards: Vec<_> = guards.into_iter().map(|guard| (guard, guard.deadline())).collect();
    advance(LONG_TTL / 3);
    let mut poll = 0;
    eventually(TEST_TIMEOUT, || {
        poll += 1;
        let late = guards.iter().find(|(guard, before)| guard.deadline() <= *before || !guard.is_held());
        // At most four tenths in total, so no lease expires.
        if late.is_some() && poll % 50 == 0 && poll <= 200 {
            advance(LONG_TTL / 10);
        }
        let late = late.map(|(guard, _)| format!("not renewed: {guard:?}, {:?}", guard.lost_reason()));
        async move { late.map_or(Ok(()), Err) }
    })
    .await;
}

/// Advances the clock in small steps until the condition holds; the total is far less than a lease.
pub(crate) async fn advance_until<E: std::fmt::Display>(
    clock: &ManualClock,
    mut condition: impl FnMut() -> std::result::Result<(), E>,
) {
    eventually(TEST_TIMEOUT, || {
        let seen = condition();
        clock.advance(Duration::from_millis(200));
        async { seen }
    })
    .await;
}
