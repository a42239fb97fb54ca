//! Opens an engine that may be unreachable for a moment: a server restarts, or an ensemble elects a
//! leader.
//!
//! Every error that the engine marks as retryable is retried, with growing pauses, until the
//! caller's timeout. A bad URL or a wrong password fails at once, because waiting does not help. So
//! does a server of another kind, except for Redis, whose port may answer before Redis does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::clock::Clock;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
use crate::engine::Product;
use crate::engine::{Engine, EngineUrl};
use crate::logic::backoff;
use crate::registry;
use crate::types::{Error, ErrorKind, Result};

/// The first pause between two attempts, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How much longer than the timeout the last attempt may take: its own error is more specific than a
/// timeout.
const REPLY_GRACE: Duration = Duration::from_millis(250);

/// Opens an engine that is not part of this crate.
pub(crate) type Opener = Box<dyn Fn(EngineUrl, Clock) -> BoxFuture<'static, Result<Arc<dyn Engine>>> + Send + Sync>;

/// A callback for an error.
type ErrorCallback = Box<dyn Fn(&Error) + Send + Sync>;

/// How to open an engine that may be unreachable.
#[derive(Default)]
pub(crate) struct ConnectOptions {
    /// How long to retry; zero: not at all.
    pub(crate) timeout: Duration,
    /// Called with the first error, before the second attempt.
    pub(crate) on_unreachable: Option<ErrorCallback>,
    /// Engines that are not part of this crate, by their schemes.
    pub(crate) registered: Vec<(String, Opener)>,
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl ConnectOptions {
    /// Opens the engine at `url`.
    pub(crate) async fn open(&self, url: &str, clock: &Clock) -> Result<Arc<dyn Engine>> {
        let end = clock.now().saturating_add(self.timeout);
        let mut last = None;
        let mut failures = 0;
        loop {
            let error = match self.attempt(url, clock, end.duration_since(clock.now())).await {
                Some(Ok(engine)) => return Ok(engine),
                Some(Err(error)) => error,
                None => {
                    let error = match last {
                        Some(error) => error,
                        None => self.timeout_error(url, clock).await,
                    };
                    return Err(error);
                }
            };
            let left = end.duration_since(clock.now());
            if !error.is_retryable() || left.is_zero() {
                return Err(error);
            }
            if let Some(callback) = self.on_unreachable.as_ref().filter(|_| failures == 0) {
                callback(&error);
            }
            tracing::debug!(%error, "retrying the engine");
            last = Some(error);
            let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
            clock.sleep(backoff::pause(failures, RETRY_PAUSES.0, RETRY_PAUSES.1, random_bits).min(left)).await;
            failures += 1;
        }
    }

    /// One attempt; `None`: it did not complete in time.
    async fn attempt(&self, url: &str, clock: &Clock, left: Duration) -> Option<Result<Arc<dyn Engine>>> {
        let opening = self.open_once(url, clock);
        if self.timeout.is_zero() {
            return Some(opening.await);
        }
        clock.timeout(left.saturating_add(REPLY_GRACE), opening).await.ok()
    }

    async fn open_once(&self, url: &str, clock: &Clock) -> Result<Arc<dyn Engine>> {
        let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let Some((_, open)) = self.registered.iter().find(|(registered, _)| *registered == scheme) else {
            return registry::open(url, clock).await;
        };
        let url = EngineUrl::parse(url)?.read_password_files()?;
        open(url.clone(), clock.clone()).await.map_err(|error| url.add_location(error))
    }

    /// The error if the first attempt did not complete in time. The attempt has no cause to report,
    /// so this checks whether a server listens at all.
    async fn timeout_error(&self, url: &str, clock: &Clock) -> Error {
        let new = |cause: &str| {
            let message = format!("could not be reached within {:?}{cause}; `leasehold doctor` says why", self.timeout);
            Error::new(ErrorKind::Unavailable, message).retryable()
        };
        let Ok(url) = EngineUrl::parse(url) else { return new("") };
        #[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
        let cause = match Product::from_url(&url) {
            Some(product) => product.explain_timeout(&url, clock).await,
            None => String::new(),
        };
        #[cfg(not(any(feature = "mysql", feature = "postgres", feature = "zookeeper")))]
        let (cause, _) = (String::new(), clock);
        new(&cause).at_url(url.location())
    }
}
