//! The network between a client and a server: messages that are late, lost or duplicated, and
//! connections that break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{Pipeline, Value};
use tokio::sync::{Notify, oneshot};

use super::super::node::NodeListener;
use super::super::server::{Request, Server};
use super::world::World;
use crate::types::{Error, ErrorKind, Result};

/// How long a client takes to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(30);

/// What happens to one message and its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) request_delay: Option<Duration>,
    pub(super) reply_delay: Option<Duration>,
    /// The message arrives a second time, this much later.
    pub(super) duplicate_after: Option<Duration>,
}

/// A connection that may be up, and its number. (Not a `watch`: that wakes waiters in an order of
/// its own.)
#[derive(Debug, Default)]
struct ConnectionState {
    current: Mutex<(bool, u64)>,
    changed: Notify,
}

impl ConnectionState {
    fn current(&self) -> (bool, u64) {
        *self.current.lock().expect("one thread")
    }

    fn set(&self, up: bool, number: u64) {
        *self.current.lock().expect("one thread") = (up, number);
        self.changed.notify_waiters();
    }

    async fn wait_until(&self, condition: impl Fn((bool, u64)) -> bool) -> (bool, u64) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.current();
            if condition(now) {
                return now;
            }
            changed.await;
        }
    }
}

/// The connection of one client to one server.
#[derive(Debug)]
pub(super) struct SimulatedConnection {
    world: Arc<World>,
    client: usize,
    server: usize,
    state: Arc<ConnectionState>,
}

impl SimulatedConnection {
    /// Begins to connect.
    pub(super) fn new(world: &Arc<World>, client: usize, server: usize, listener: Arc<NodeListener>) -> Self {
        let connection = Arc::<ConnectionState>::default();
        tokio::spawn(keep_connected(Arc::clone(world), client, server, Arc::clone(&connection), listener));
        Self { world: Arc::clone(world), client, server, state: connection }
    }

    /// The number of the connection, as soon as there was one.
    async fn wait_connected(&self) -> Result<u64> {
        let (up, number) = self.state.wait_until(|(_, number)| number > 0).await;
        if up { Ok(number) } else { Err(self.disconnected_error()) }
    }

    fn disconnected_error(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("node {} is not reached", self.server)).retryable()
    }

    /// Waits for an answer on this connection, for ever if it is lost.
    async fn receive<T>(&self, number: u64, receiver: oneshot::Receiver<T>) -> Result<T> {
        tokio::select! {
            biased;
            Ok(answer) = receiver => Ok(answer),
            _ = self.state.wait_until(|now| now != (true, number)) => Err(self.disconnected_error().effect_unknown()),
        }
    }
}

/// Connects, and reconnects after each break.
async fn keep_connected(
    world: Arc<World>,
    client: usize,
    server: usize,
    state: Arc<ConnectionState>,
    listener: Arc<NodeListener>,
) {
    let mut number = 0;
    // One reference is the network's own.
    while Arc::strong_count(&state) > 1 {
        if world.can_connect(client, server) {
            number += 1;
            state.set(true, number);
            listener.on_reached();
            world.wait_disconnected(client, server).await;
        }
        state.set(false, number.max(1));
        world.clock.sleep(RECONNECT_PAUSE).await;
    }
}

/// Carries a request to the server and its answer back. A message that was sent always arrives,
/// even if the caller is dropped.
async fn deliver(
    world: Arc<World>,
    client: usize,
    server: usize,
    request: Arc<Request>,
    reply: oneshot::Sender<Value>,
) {
    let Delivery { request_delay, reply_delay, duplicate_after: doubled } = world.choose_delivery();
    let Some(request_delay) = request_delay else { return };
    world.clock.sleep(request_delay).await;
    let Some(answer) = world.serve(client, server, &request).await else { return };
    if let Some(later) = doubled {
        let (world, request) = (Arc::clone(&world), Arc::clone(&request));
        tokio::spawn(async move {
            world.clock.sleep(later).await;
            world.serve(client, server, &request).await;
        });
    }
    let Some(reply_delay) = reply_delay else { return };
    world.clock.sleep(reply_delay).await;
    let _ = reply.send(answer);
}

impl Server for SimulatedConnection {
    fn wait_reached(&self) -> BoxFuture<'_, Result<()>> {
        async { self.wait_connected().await.map(drop) }.boxed()
    }

    fn is_up(&self) -> bool {
        self.state.current().0
    }

    fn send<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>> {
        async {
            let number = self.wait_connected().await?;
            request.ensure_undecided()?;
            let (sender, receiver) = oneshot::channel();
            tokio::spawn(deliver(Arc::clone(&self.world), self.client, self.server, Arc::clone(request), sender));
            self.receive(number, receiver).await
        }
        .boxed()
    }

    fn send_commands<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>> {
        async {
            self.wait_connected().await?;
            Ok(self.world.identify(self.server))
        }
        .boxed()
    }
}
