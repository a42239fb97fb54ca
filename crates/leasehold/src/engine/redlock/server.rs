//! How a node is reached: a trait, and its implementation for a Redis server. Tests implement it in
//! memory, as [`AcceptorState`](crate::logic::acceptor::AcceptorState) specifies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};

use super::node::NodeListener;
use super::wire::Scripts;
use crate::clock::Instant;
use crate::redis_client::keys::auxiliary_key;
use crate::redis_client::values::bytes;
use crate::redis_client::{Address, Config, Link, LinkListener, LiveConnection, Message, Target, Topology, error};
use crate::types::{Error, ErrorKind, Result};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Acquire,
    StoreToken,
    Renew,
    Release,
    ForceRelease,
    /// Returns the server's time, and starts strict mode's cool-down where it has restarted.
    Probe,
}

/// One request, for all nodes.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: RequestKind,
    pub(super) keys: Vec<String>,
    pub(super) arguments: Vec<Vec<u8>>,
    /// Whether the outcome is known: nodes that have not been asked so far are not asked any more.
    pub(super) is_decided: AtomicBool,
}

impl Request {
    pub(super) fn new(kind: RequestKind, keys: Vec<String>, arguments: Vec<Vec<u8>>) -> Arc<Self> {
        Arc::new(Self { kind, keys, arguments, is_decided: AtomicBool::new(false) })
    }

    /// Fails if the answer is no longer needed.
    pub(super) fn ensure_undecided(&self) -> Result<()> {
        match self.is_decided.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the others have decided").retryable()),
            false => Ok(()),
        }
    }

    fn add_arguments(&self, command: &mut Cmd, live: &LiveConnection, config: &Config) {
        for key in &self.keys {
            command.arg(key);
        }
        if config.strict.is_some() {
            command.arg(auxiliary_key(&config.prefix, 'e', None));
        }
        for argument in &self.arguments {
            command.arg(argument);
        }
        if let Some(max_lease) = config.strict {
            command.arg(&*live.run_id).arg(max_lease.as_micros() as u64);
        }
    }
}

/// One server, which is asked for votes. It notifies its [`NodeListener`] whenever it is reached. The
/// caller decides how long to wait for an answer: a request that it drops may have been done all
/// the same.
pub(super) trait Server: Send + Sync {
    /// Waits until the server is reached, or the reason why not is known.
    fn wait_reached(&self) -> BoxFuture<'_, Result<()>>;

    /// Whether the server is reached.
    fn is_up(&self) -> bool;

    /// Records that a lease with this TTL, which ends at `deadline`, is due for renewal: the pauses
    /// between attempts to connect stay short until then.
    fn note_renewal_due(&self, _ttl: Duration, _deadline: Instant) {}

    /// Sends a request as soon as the server is reached, unless the answer is no longer needed by
    /// then.
    fn send<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>>;

    /// Sends commands in a row.
    fn send_commands<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>>;
}

/// The address of a node.
pub(super) fn address_of(config: &Config) -> Address {
    match &config.topology {
        Topology::Single(address) => address.clone(),
        Topology::Sentinel(..) | Topology::Cluster(_) => unreachable!("a node is one server: the URL was checked"),
    }
}

/// A Redis server, and the connection to it.
pub(super) struct RedisServer {
    address: Address,
    config: Arc<Config>,
    scripts: Arc<Scripts>,
    link: Link,
}

impl LinkListener for NodeListener {
    fn on_message(&self, info: PushInfo) {
        // A majority decides: what one node reports is checked with all.
        let (PushKind::Message, [_, text]) = (info.kind, &info.data[..]) else { return };
        match bytes(text).and_then(Message::read) {
            Some(Message::ForceReleased(message)) => self.on_force_released(message.claim),
            Some(Message::ReleaseRequested(message)) => self.on_release_requested(message.claim),
            _ => {}
        }
    }

    /// No lock needs the inbox: it reports force releases sooner, and carries requests to release.
    fn needs_inbox(&self) -> bool {
        false
    }

    fn on_connected(&self, _: &LiveConnection, _again: bool) {
        self.on_reached();
    }

    fn on_disconnected(&self) {}

    fn on_slots_moved(&self) {}
}

impl RedisServer {
    /// Begins to connect.
    pub(super) fn new(config: &Arc<Config>, scripts: &Arc<Scripts>, inbox: &str, listener: Arc<NodeListener>) -> Self {
        let (address, config) = (address_of(config), Arc::clone(config));
        // The servers do not inherit leases from each other, so only strict mode needs their runs.
        let strict = config.strict.is_some();
        let link = Link::new(&config, Target::Fixed(address.clone()), &scripts.all_scripts(), inbox, strict, listener);
        Self { address, config, scripts: Arc::clone(scripts), link }
    }
}

impl Server for RedisServer {
    fn wait_reached(&self) -> BoxFuture<'_, Result<()>> {
        async { self.link.connection().await.map(drop) }.boxed()
    }

    fn is_up(&self) -> bool {
        self.link.is_up()
    }

    fn note_renewal_due(&self, ttl: Duration, deadline: Instant) {
        self.link.note_renewal_due(ttl, deadline);
    }

    fn send<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>> {
        async {
            let live = self.link.connection().await?;
            request.ensure_undecided()?;
            let fill_command = |command: &mut Cmd| request.add_arguments(command, &live, &self.config);
            let keys = request.keys.len() + usize::from(self.config.strict.is_some());
            let answer = self.link.run_script(&live, self.scripts.for_kind(request.kind), keys, &fill_command).await;
            answer.map_err(|cause| error::step_error(&self.address, cause))
        }
        .boxed()
    }

    fn send_commands<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>> {
        async {
            let live = self.link.connection().await?;
            let answers = self.link.send_commands(&live, pipeline).await;
            answers.map_err(|cause| error::step_error(&self.address, cause))
        }
        .boxed()
    }
}
