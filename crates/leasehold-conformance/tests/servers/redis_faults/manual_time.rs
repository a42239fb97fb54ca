//! Time that passes when the test says so: a server's wall clock, and the clock of its clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, Result};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{WallClock, eventually};
use tokio::task::JoinHandle;

/// A TTL whose heartbeats come later than the end of a lease of [`LONG`].
pub(crate) const LONGER: Duration = Duration::from_secs(6 * LONG_TTL.as_secs());

// What happens within `SOON` under a TTL of `LONG` was not done by a renewal or a heartbeat that was due by its turn.
const _: () = assert!(LONG_TTL.as_millis() / 4 > TEST_TIMEOUT.as_millis());

/// The clock of a server and that of its clients. Both go on together.
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

    /// A server that goes by it.
    pub(crate) fn redis_config(&self) -> Redis {
        Redis::new().clock(&self.server_clock)
    }

    /// The clients' clock.
    pub(crate) fn clients_clock(&self) -> Clock {
        self.client_clock.clock()
    }

    /// So much time passes, in whole seconds.
    pub(crate) fn advance(&self, time: Duration) {
        let passed = self.passed_secs.fetch_add(time.as_secs(), Ordering::SeqCst) + time.as_secs();
        self.server_clock.set_offset(i64::try_from(passed).expect("a sensible time")).expect("a moved clock");
        self.client_clock.advance(time);
    }

    /// The guard of a waiter whose timer is over. One that had not gone to rest when the clock moved counts from then on: a
    /// little more time passes for it, but not so much that a heartbeat under [`LONGER`] is due.
    pub(crate) async fn advance_until_granted(&self, waiter: JoinHandle<Result<Guard>>) -> Guard {
        let mut look = 0;
        eventually(TEST_TIMEOUT, || {
            look += 1;
            let granted = waiter.is_finished();
            // For one whose look failed, and that tries again after a pause.
            self.client_clock.advance(Duration::from_millis(200));
            if !granted && (50..150).contains(&look) {
                self.advance(Duration::from_secs(5));
            }
            async move { if granted { Ok(()) } else { Err("not granted so far") } }
        })
        .await;
        waiter.await.expect("no panic").expect("the lock")
    }
}

/// A client that goes by this clock, and does not give up a slow connection. One whose clock stands still would try again after a pause
/// on that clock.
pub(crate) async fn patient_client(url: &str, ttl: Duration, clock: Clock) -> Locks {
    let mark = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{mark}connect-timeout=300s");
    Locks::builder().ttl(ttl).clock(clock).open(&url).await.expect("a client")
}

/// A third of a lease of [`LONG`] passes, by which all of them are due, and each is renewed. A renewal that was on its way when the
/// clock moved counts as unanswered, and is tried again a tenth of the lease later.
pub(crate) async fn pass_and_renew<'a>(guards: impl IntoIterator<Item = &'a Guard>, advance: impl Fn(Duration)) {
    let guards: Vec<_> = guards.into_iter().map(|guard| (guard, guard.deadline())).collect();
    advance(LONG_TTL / 3);
    let mut look = 0;
    eventually(TEST_TIMEOUT, || {
        look += 1;
        let late = guards.iter().find(|(guard, before)| guard.deadline() <= *before || !guard.is_held());
        // Four tenths at the most: no lease ends.
        if late.is_some() && look % 50 == 0 && look <= 200 {
            advance(LONG_TTL / 10);
        }
        let late = late.map(|(guard, _)| format!("not renewed: {guard:?}, {:?}", guard.lost_reason()));
        async move { late.map_or(Ok(()), Err) }
    })
    .await;
}

/// Time passes in small steps until the condition holds: far less than a lease in all.
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
