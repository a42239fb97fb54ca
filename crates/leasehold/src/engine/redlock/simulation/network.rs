//! The network between a client and a server: messages that are late, lost or duplicated, and
//! connections that break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{Pipeline, Value};
use tokio::sync::{Notify, oneshot};

use super::super::node::Ears;
use super::super::server::{Request, Server};
use super::world::World;
use crate::error::{Error, ErrorKind, Result};

/// How long a client takes to reconnect.
const AGAIN: Duration = Duration::from_millis(30);

/// What happens to one message and its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) there: Option<Duration>,
    pub(super) back: Option<Duration>,
    /// The message arrives a second time, this much later.
    pub(super) doubled: Option<Duration>,
}

/// A connection that may be up, and its number. (Not a `watch`: that wakes waiters in an order of
/// its own.)
#[derive(Debug, Default)]
struct Line {
    now: Mutex<(bool, u64)>,
    changed: Notify,
}

impl Line {
    fn now(&self) -> (bool, u64) {
        *self.now.lock().expect("one thread")
    }

    fn set(&self, up: bool, number: u64) {
        *self.now.lock().expect("one thread") = (up, number);
        self.changed.notify_waiters();
    }

    async fn until(&self, so: impl Fn((bool, u64)) -> bool) -> (bool, u64) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.now();
            if so(now) {
                return now;
            }
            changed.await;
        }
    }
}

/// The connection of one client to one server.
#[derive(Debug)]
pub(super) struct Wire {
    world: Arc<World>,
    client: usize,
    cell: usize,
    line: Arc<Line>,
}

impl Wire {
    /// Begins to connect.
    pub(super) fn new(world: &Arc<World>, client: usize, cell: usize, ears: Arc<Ears>) -> Self {
        let line = Arc::<Line>::default();
        tokio::spawn(tend(Arc::clone(world), client, cell, Arc::clone(&line), ears));
        Self { world: Arc::clone(world), client, cell, line }
    }

    /// The number of the connection, as soon as there was one.
    async fn live(&self) -> Result<u64> {
        let (up, number) = self.line.until(|(_, number)| number > 0).await;
        if up { Ok(number) } else { Err(self.broken()) }
    }

    fn broken(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("node {} is not reached", self.cell)).retryable()
    }

    /// Waits for an answer on this connection, for ever if it is lost.
    async fn hear<T>(&self, number: u64, heard: oneshot::Receiver<T>) -> Result<T> {
        tokio::select! {
            biased;
            Ok(answer) = heard => Ok(answer),
            _ = self.line.until(|now| now != (true, number)) => Err(self.broken().effect_unknown()),
        }
    }
}

/// Connects, and reconnects after each break.
async fn tend(world: Arc<World>, client: usize, cell: usize, line: Arc<Line>, ears: Arc<Ears>) {
    let mut number = 0;
    // One reference is our own.
    while Arc::strong_count(&line) > 1 {
        if world.is_open(client, cell) {
            number += 1;
            line.set(true, number);
            ears.reached();
            world.until_cut(client, cell).await;
        }
        line.set(false, number.max(1));
        world.clock.sleep(AGAIN).await;
    }
}

/// Carries a request there and its answer back. Nothing cancels it: a message that was sent
/// arrives.
async fn carry(world: Arc<World>, client: usize, cell: usize, request: Arc<Request>, tell: oneshot::Sender<Value>) {
    let Fate { there, back, doubled } = world.fate();
    let Some(there) = there else { return };
    world.clock.sleep(there).await;
    let Some(answer) = world.serve(client, cell, &request).await else { return };
    if let Some(later) = doubled {
        let (world, request) = (Arc::clone(&world), Arc::clone(&request));
        tokio::spawn(async move {
            world.clock.sleep(later).await;
            world.serve(client, cell, &request).await;
        });
    }
    let Some(back) = back else { return };
    world.clock.sleep(back).await;
    let _ = tell.send(answer);
}

impl Server for Wire {
    fn reached(&self) -> BoxFuture<'_, Result<()>> {
        async { self.live().await.map(drop) }.boxed()
    }

    fn is_up(&self) -> bool {
        self.line.now().0
    }

    fn ask<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>> {
        async {
            let number = self.live().await?;
            request.still_wanted()?;
            let (tell, heard) = oneshot::channel();
            tokio::spawn(carry(Arc::clone(&self.world), self.client, self.cell, Arc::clone(request), tell));
            self.hear(number, heard).await
        }
        .boxed()
    }

    fn commands<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>> {
        async {
            self.live().await?;
            Ok(self.world.introduce(self.cell))
        }
        .boxed()
    }
}
