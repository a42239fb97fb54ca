//! Time that passes when the test says so: a server's wall clock, and the clock of its clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, Result};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{WallClock, eventually};
use tokio::task::JoinHandle;

/// A TTL whose heartbeats come later than the end of a lease of [`LONG`].
pub(crate) const LONGER: Duration = Duration::from_secs(6 * LONG.as_secs());

// What happens within `SOON` under a TTL of `LONG` was not done by a renewal or a heartbeat that was due by its turn.
const _: () = assert!(LONG.as_millis() / 4 > SOON.as_millis());

/// The clock of a server and that of its clients. Both go on together.
pub(crate) struct Time {
    wall: WallClock,
    hand: ManualClock,
    passed: AtomicU64,
}

impl Time {
    pub(crate) fn new() -> Self {
        Self { wall: WallClock::new().expect("a clock"), hand: ManualClock::new(), passed: AtomicU64::new(0) }
    }

    /// A server that goes by it.
    pub(crate) fn redis(&self) -> Redis {
        Redis::new().clock(&self.wall)
    }

    /// The clients' clock.
    pub(crate) fn clock(&self) -> Clock {
        self.hand.clock()
    }

    /// So much time passes, in whole seconds.
    pub(crate) fn pass(&self, time: Duration) {
        let passed = self.passed.fetch_add(time.as_secs(), Ordering::SeqCst) + time.as_secs();
        self.wall.move_to(i64::try_from(passed).expect("a sensible time")).expect("a moved clock");
        self.hand.advance(time);
    }

    /// The guard of a waiter whose timer is over. One that had not gone to rest when the clock moved counts from then on: a
    /// little more time passes for it, but not so much that a heartbeat under [`LONGER`] is due.
    pub(crate) async fn granted(&self, waits: JoinHandle<Result<Guard>>) -> Guard {
        let mut look = 0;
        eventually(SOON, || {
            look += 1;
            let granted = waits.is_finished();
            // For one whose look failed, and that tries again after a pause.
            self.hand.advance(Duration::from_millis(200));
            if !granted && (50..150).contains(&look) {
                self.pass(Duration::from_secs(5));
            }
            async move { if granted { Ok(()) } else { Err("not granted so far") } }
        })
        .await;
        waits.await.expect("no panic").expect("the lock")
    }
}

/// A client that goes by this clock, and does not give up a slow connection. One whose clock stands still would try again after a pause
/// on that clock.
pub(crate) async fn timed(url: &str, ttl: Duration, clock: Clock) -> Locks {
    let mark = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{mark}connect-timeout=300s");
    Locks::builder().ttl(ttl).clock(clock).open(&url).await.expect("a client")
}

/// A third of a lease of [`LONG`] passes, by which all of them are due, and each is renewed. A renewal that was on its way when the
/// clock moved counts as unanswered, and is tried again a tenth of the lease later.
pub(crate) async fn renewed<'a>(guards: impl IntoIterator<Item = &'a Guard>, pass: impl Fn(Duration)) {
    let guards: Vec<_> = guards.into_iter().map(|guard| (guard, guard.deadline())).collect();
    pass(LONG / 3);
    let mut look = 0;
    eventually(SOON, || {
        look += 1;
        let late = guards.iter().find(|(guard, before)| guard.deadline() <= *before || !guard.is_held());
        // Four tenths at the most: no lease ends.
        if late.is_some() && look % 50 == 0 && look <= 200 {
            pass(LONG / 10);
        }
        let late = late.map(|(guard, _)| format!("not renewed: {guard:?}, {:?}", guard.lost_reason()));
        async move { late.map_or(Ok(()), Err) }
    })
    .await;
}

/// Time passes in small steps until the condition holds: far less than a lease in all.
pub(crate) async fn until<E: std::fmt::Display>(
    hand: &ManualClock,
    mut look: impl FnMut() -> std::result::Result<(), E>,
) {
    eventually(SOON, || {
        let seen = look();
        hand.advance(Duration::from_millis(200));
        async { seen }
    })
    .await;
}
