//! A bounded number of connections, made when needed and kept.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::config::Config;
use super::error::Failure;
use super::link::{Link, Reply, Value};
use crate::error::{Error, Result};

/// The connections of one engine.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Arc<Config>,
    /// The servers, for errors.
    pub(super) server: String,
    idle: Mutex<Vec<Link>>,
    room: Arc<Semaphore>,
}

impl Pool {
    /// An empty pool, for as many as the URL says.
    pub(super) fn new(config: &Arc<Config>) -> Arc<Self> {
        Self::of(config, config.connections)
    }

    /// An empty pool for so many.
    pub(super) fn of(config: &Arc<Config>, connections: usize) -> Arc<Self> {
        let hosts: Vec<String> = config.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let room = Arc::new(Semaphore::new(connections));
        Arc::new(Self { config: Arc::clone(config), server: hosts.join(","), idle: Mutex::default(), room })
    }

    /// As [`borrow`](Self::borrow), with an error in the library's words.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Pooled> {
        self.borrow().await.map_err(|failure| self.tell(&failure))
    }

    /// A connection, as soon as one is free; those who wait are served in order.
    pub(super) async fn borrow(self: &Arc<Self>) -> Result<Pooled, Failure> {
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| Failure::Closed)?;
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|link| !link.is_closed());
            // The one used last: the others may be let go by the server.
            idle.pop()
        };
        let link = match idle {
            Some(link) => link,
            None => Link::open(&self.config).await?,
        };
        Ok(Pooled { link: Some(link), pool: Arc::clone(self), _permit: permit, done: true })
    }

    /// Runs one statement on any connection.
    pub(super) async fn run(self: &Arc<Self>, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        self.borrow().await?.run(sql, values).await
    }

    /// Lets the idle connections go: one of them was dead.
    pub(super) fn forget_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn tell(&self, failure: &Failure) -> Error {
        failure.tell(self.config.dialect, &self.server)
    }

    /// Ends all connections, also those in use when they come back.
    pub(super) async fn close(&self) {
        self.room.close();
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for link in idle {
            link.close().await;
        }
    }
}

/// A connection out of the pool; it goes back when dropped, unless it broke or a statement was left half-way.
#[derive(Debug)]
pub(super) struct Pooled {
    link: Option<Link>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
    done: bool,
}

impl Pooled {
    /// Runs one statement.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let dialect = self.pool.config.dialect;
        let Some(link) = &mut self.link else { return Err(Failure::Broken("the connection is gone".into())) };
        self.done = false;
        let result = link.run(sql, values).await;
        self.done = !result.as_ref().is_err_and(|failure| failure.is_end(dialect));
        result
    }

    /// Runs statements without values or rows.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        let dialect = self.pool.config.dialect;
        let Some(link) = &mut self.link else { return Err(Failure::Broken("the connection is gone".into())) };
        self.done = false;
        let result = link.script(sql).await;
        self.done = !result.as_ref().is_err_and(|failure| failure.is_end(dialect));
        result
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        if self.done && !link.is_closed() && !self.pool.room.is_closed() {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
    }
}
