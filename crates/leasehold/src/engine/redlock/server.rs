//! How a node is reached: a trait, and its implementation for a Redis server. Tests implement it in
//! memory, as [`Ballots`](crate::logic::ballots::Ballots) specifies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};

use super::node::Ears;
use super::wire::Scripts;
use crate::clock::Moment;
use crate::engine::redis::config::{Address, Config, Topology};
use crate::engine::redis::error;
use crate::engine::redis::link::{Link, Live, Owner, Target};
use crate::engine::redis::wire::{Message, beside, bytes};
use crate::error::{Error, ErrorKind, Result};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Take,
    Write,
    Renew,
    Release,
    Evict,
    /// Returns the server's time, and starts strict mode's cool-down where it has restarted.
    Touch,
}

/// One request, for all nodes.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) keys: Vec<String>,
    pub(super) arguments: Vec<Vec<u8>>,
    /// Whether the outcome is known: nodes that have not been asked so far are not asked any more.
    pub(super) over: AtomicBool,
}

impl Request {
    pub(super) fn new(what: What, keys: Vec<String>, arguments: Vec<Vec<u8>>) -> Arc<Self> {
        Arc::new(Self { what, keys, arguments, over: AtomicBool::new(false) })
    }

    /// Fails if the answer is no longer needed.
    pub(super) fn still_wanted(&self) -> Result<()> {
        match self.over.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the others have decided").retryable()),
            false => Ok(()),
        }
    }

    fn fill(&self, command: &mut Cmd, live: &Live, config: &Config) {
        for key in &self.keys {
            command.arg(key);
        }
        if config.strict.is_some() {
            command.arg(beside(&config.prefix, 'e', None));
        }
        for argument in &self.arguments {
            command.arg(argument);
        }
        if let Some(most) = config.strict {
            command.arg(&*live.run).arg(most.as_micros() as u64);
        }
    }
}

/// One server, which is asked for votes. It notifies its [`Ears`] whenever it is reached. The
/// caller decides how long to wait for an answer: a request that it drops may have been done all
/// the same.
pub(super) trait Server: Send + Sync {
    /// Waits until the server is reached, or the reason why not is known.
    fn reached(&self) -> BoxFuture<'_, Result<()>>;

    /// Whether the server is reached.
    fn is_up(&self) -> bool;

    /// Records that a lease with this TTL, which ends at `deadline`, is due for renewal: the pauses
    /// between attempts to connect stay short until then.
    fn renews(&self, _ttl: Duration, _deadline: Moment) {}

    /// Sends a request as soon as the server is reached, unless the answer is no longer needed by
    /// then.
    fn ask<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>>;

    /// Sends commands in a row.
    fn commands<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>>;
}

/// The address of a node.
pub(super) fn address(config: &Config) -> Address {
    match &config.topology {
        Topology::Single(address) => address.clone(),
        Topology::Sentinel(..) | Topology::Cluster(_) => unreachable!("a node is one server: the URL was checked"),
    }
}

/// A Redis server, and the connection to it.
pub(super) struct Remote {
    address: Address,
    config: Arc<Config>,
    scripts: Arc<Scripts>,
    link: Link,
}

impl Owner for Ears {
    fn message(&self, info: PushInfo) {
        // A majority decides: what one node reports is checked with all.
        let (PushKind::Message, [_, text]) = (info.kind, &info.data[..]) else { return };
        match bytes(text).and_then(Message::read) {
            Some(Message::Evicted(claim, ..)) => self.evicted(claim),
            Some(Message::ReleaseRequested(claim, _)) => self.release_requested(claim),
            _ => {}
        }
    }

    /// No lock needs the inbox: it reports force releases sooner, and carries requests to release.
    fn needs_inbox(&self) -> bool {
        false
    }

    fn up(&self, _: &Live, _again: bool) {
        self.reached();
    }

    fn down(&self) {}

    fn moved(&self) {}
}

impl Remote {
    /// Begins to connect.
    pub(super) fn new(config: &Arc<Config>, scripts: &Arc<Scripts>, inbox: &str, ears: Arc<Ears>) -> Self {
        let (address, config) = (address(config), Arc::clone(config));
        // The servers inherit nothing from each other, so only strict mode needs their runs.
        let strict = config.strict.is_some();
        let link = Link::new(&config, Target::Fixed(address.clone()), &scripts.each(), inbox, strict, ears);
        Self { address, config, scripts: Arc::clone(scripts), link }
    }
}

impl Server for Remote {
    fn reached(&self) -> BoxFuture<'_, Result<()>> {
        async { self.link.live().await.map(drop) }.boxed()
    }

    fn is_up(&self) -> bool {
        self.link.is_up()
    }

    fn renews(&self, ttl: Duration, deadline: Moment) {
        self.link.renews(ttl, deadline);
    }

    fn ask<'a>(&'a self, request: &'a Arc<Request>) -> BoxFuture<'a, Result<Value>> {
        async {
            let live = self.link.live().await?;
            request.still_wanted()?;
            let fill = |command: &mut Cmd| request.fill(command, &live, &self.config);
            let keys = request.keys.len() + usize::from(self.config.strict.is_some());
            let answer = self.link.script(&live, self.scripts.of(request.what), keys, &fill).await;
            answer.map_err(|cause| error::step(&self.address, cause))
        }
        .boxed()
    }

    fn commands<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>>> {
        async {
            let live = self.link.live().await?;
            let answers = self.link.commands(&live, pipeline).await;
            answers.map_err(|cause| error::step(&self.address, cause))
        }
        .boxed()
    }
}
