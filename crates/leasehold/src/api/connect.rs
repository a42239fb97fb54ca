//! Opens an engine that may be unreachable for a moment: a server restarts, or an ensemble elects a
//! leader.
//!
//! Every error that the engine marks as retryable is retried, with growing pauses, until the
//! caller's timeout. A bad URL, a wrong password or a server of another product fails at once,
//! because waiting does not help. With Redis the wrong product is retried, too, because its port
//! may answer before Redis does.

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

/// The pause after the first failed attempt to open an engine; later pauses are longer.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two attempts to open an engine.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How much longer than the timeout the last attempt may take: its own error is more specific than
/// a timeout.
const REPLY_GRACE: Duration = Duration::from_millis(250);

/// The function that [`Builder::register`](crate::Builder::register) got: it opens an engine that
/// is not part of this crate.
pub(crate) type Opener = Box<dyn Fn(EngineUrl, Clock) -> BoxFuture<'static, Result<Arc<dyn Engine>>> + Send + Sync>;

/// The function that [`Builder::on_unreachable`](crate::Builder::on_unreachable) got.
type ErrorCallback = Box<dyn Fn(&Error) + Send + Sync>;

/// How to open an engine that may be unreachable.
#[derive(Default)]
pub(crate) struct ConnectOptions {
    /// How long to retry; zero: a single attempt, which may take any time.
    pub(crate) timeout: Duration,
    /// Called with the first error, before the second attempt.
    pub(crate) on_unreachable: Option<ErrorCallback>,
    /// The schemes of engines that are not part of this crate, each with the function that opens
    /// it.
    pub(crate) registered: Vec<(String, Opener)>,
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl ConnectOptions {
    /// Opens the engine at `url`, with retries until the timeout. Returns the last attempt's error.
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
            tracing::debug!(%error, "the engine could not be opened; trying again");
            last = Some(error);
            let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
            clock.sleep(backoff::pause(failures, FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE, random_bits).min(left)).await;
            failures += 1;
        }
    }

    /// Opens the engine once, within the `left` rest of the timeout; `None`: it took longer.
    async fn attempt(&self, url: &str, clock: &Clock, left: Duration) -> Option<Result<Arc<dyn Engine>>> {
        let opening = self.open_once(url, clock);
        if self.timeout.is_zero() {
            return Some(opening.await);
        }
        clock.timeout(left.saturating_add(REPLY_GRACE), opening).await.ok()
    }

    /// Opens the engine once, by a registered function or as a part of this crate, without a limit.
    async fn open_once(&self, url: &str, clock: &Clock) -> Result<Arc<dyn Engine>> {
        let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let Some((_, open)) = self.registered.iter().find(|(registered, _)| *registered == scheme) else {
            return registry::open(url, clock).await;
        };
        let url = EngineUrl::parse(url)?.read_password_files()?;
        open(url.clone(), clock.clone()).await.map_err(|error| url.add_location(error))
    }

    /// The error if the first attempt took longer than the timeout. The attempt has no error of its
    /// own, so this finds out whether a server of the right product listens at all.
    async fn timeout_error(&self, url: &str, clock: &Clock) -> Error {
        let new = |cause: &str| {
            let message = format!(
                "could not be reached within {:?}{cause}; run `leasehold doctor` to find the reason",
                self.timeout
            );
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
