//! A clock that a test moves by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::moment::{Moment, nanos};
use super::{Clock, START, Source};

#[derive(Debug)]
pub(super) struct Manual {
    now: AtomicU64,
    moved: Notify,
}

impl Manual {
    pub(super) fn now(&self) -> Moment {
        Moment(self.now.load(Ordering::SeqCst))
    }

    /// Waits until the clock shows `at`.
    pub(super) async fn reach(&self, at: Moment) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.now() >= at {
                return;
            }
            moved.await;
        }
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that shows one hour after its start.
    pub fn new() -> Self {
        Self(Arc::new(Manual { now: AtomicU64::new(START.0), moved: Notify::new() }))
    }

    /// The clock to hand in.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Moves the time forward and wakes those who slept until then.
    pub fn advance(&self, by: Duration) {
        self.0.now.fetch_add(nanos(by), Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }
}
