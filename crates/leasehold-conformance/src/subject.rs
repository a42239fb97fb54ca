//! The interface that an engine's tests implement.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use leasehold::Result;
use leasehold::clock::Clock;
use leasehold::engine::{Engine, EngineUrl};

/// An engine under test.
pub trait Subject: Sync {
    /// Creates a new, empty instance that no other test uses: its own folder, server or key prefix.
    fn instance(&self) -> impl Future<Output = Instance> + Send;
}

/// Wraps a client's engine.
pub type EngineWrapper = fn(Arc<dyn Engine>) -> Arc<dyn Engine>;

/// Opens an engine that the library does not know.
pub type Open = fn(EngineUrl, Clock) -> BoxFuture<'static, Result<Arc<dyn Engine>>>;

/// One instance of an engine, which any number of clients open by its URL.
pub struct Instance {
    url: String,
    open: Option<Open>,
    wrap: Option<EngineWrapper>,
    _keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

impl Instance {
    /// An instance that clients open by this URL.
    pub fn with_url(url: impl Into<String>) -> Self {
        Self { url: url.into(), open: None, wrap: None, _keep_alive: None }
    }

    /// Makes clients open the instance with this function: for an engine that the library does not
    /// know.
    #[must_use]
    pub fn opened_by(mut self, open: Open) -> Self {
        self.open = Some(open);
        self
    }

    /// Keeps this value as long as the instance: a temporary folder, or a server.
    #[must_use]
    pub fn with_keep_alive(mut self, keep: impl Any + Send + Sync) -> Self {
        self._keep_alive = Some(Box::new(keep));
        self
    }

    /// Wraps the engine of every client.
    #[must_use]
    pub fn with_wrapper(mut self, wrap: EngineWrapper) -> Self {
        self.wrap = Some(wrap);
        self
    }

    /// The URL that this and other processes open.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens another client's engine.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        let clock = Clock::system();
        let opened = match self.open {
            Some(open) => open(EngineUrl::parse(&self.url).expect("a URL"), clock).await,
            None => leasehold::registry::open(&self.url, &clock).await,
        };
        let engine = opened.unwrap_or_else(|error| panic!("{}: {error}", self.url));
        match self.wrap {
            Some(wrap) => wrap(engine),
            None => engine,
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Instance").field(&self.url).finish()
    }
}
