//! The background thread of the blocking API: it runs the keeper and every call, so that no
//! caller's thread runs a tokio runtime.

use std::convert::Infallible;
use std::sync::{Arc, mpsc};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::types::{Error, ErrorKind, Result};

/// The thread, which ends when this handle is dropped. The locks and guards of one `Locks` share
/// it.
#[derive(Debug)]
pub(super) struct BackgroundThread {
    /// Spawns tasks on the thread.
    handle: Handle,
    pub(super) clock: Clock,
    /// The engine's name, for errors.
    pub(super) engine: &'static str,
    /// The engine's URL, for errors.
    pub(super) url: String,
    /// Never sends: dropping it ends the thread.
    _keep_alive: oneshot::Sender<Infallible>,
}

impl BackgroundThread {
    /// Starts a thread, opens the locks on it, and returns them with the thread's handle.
    pub(super) fn spawn<F>(open: impl FnOnce() -> F + Send + 'static) -> Result<(crate::Locks, Arc<Self>)>
    where
        F: Future<Output = Result<crate::Locks>>,
    {
        let (opened, answer) = mpsc::sync_channel(1);
        let (shutdown_sender, shutdown_receiver) = oneshot::channel();
        let body = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(start_error(error)))),
            };
            runtime.block_on(async move {
                let locks = open().await;
                let keeper_end = |locks: &crate::Locks| {
                    (locks.shared.manager.subscribe_end(), locks.clock().clone(), locks.shared.ttl)
                };
                let keeper_end = locks.as_ref().ok().map(keeper_end);
                drop(opened.send(locks.map(|locks| (locks, Handle::current()))));
                let _: Result<Infallible, _> = shutdown_receiver.await;
                if let Some((mut end, clock, ttl)) = keeper_end {
                    // The channel never sends: it closes when the keeper has released everything.
                    // After a TTL the claims have expired at the engine.
                    let _ = clock.timeout(ttl, end.changed()).await;
                }
            });
        };
        std::thread::Builder::new().name("leasehold".into()).spawn(body).map_err(start_error)?;
        let (locks, handle) = answer.recv().map_err(|_| thread_ended_error())??;
        let (clock, engine, url) = (locks.clock().clone(), locks.capabilities().engine, locks.url());
        Ok((locks, Arc::new(Self { handle, clock, engine, url, _keep_alive: shutdown_sender })))
    }

    /// Runs an async call on the thread, blocks until it is done, and returns its result; `Closed`
    /// if it panicked.
    pub(super) fn call<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let (result_sender, result_receiver) = mpsc::sync_channel(1);
        // If the caller has stopped waiting, the result is dropped, and a guard in it releases its
        // lock.
        self.handle.spawn(async move { drop(result_sender.send(call.await)) });
        result_receiver.recv().unwrap_or_else(|_| Err(thread_ended_error().at_engine(self.engine).at_url(&self.url)))
    }
}

/// The error if the thread or its runtime could not be started.
fn start_error(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the background thread could not be started").retryable().caused_by(error)
}

/// The error of a call that panicked on the thread.
fn thread_ended_error() -> Error {
    Error::new(ErrorKind::Closed, "the background thread panicked during this call").effect_unknown()
}
