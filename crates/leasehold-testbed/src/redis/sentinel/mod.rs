//! A master with replicas, and Sentinels that put a replica in its place when it dies.

mod sentinel_spec;
mod status;

use std::{net::SocketAddr, time::Duration};

use futures_util::future::try_join_all;

use super::{Redis, command};
use crate::{Result, Server, try_eventually};
use sentinel_spec::{MASTER_NAME, Sentinel};

/// How many Sentinels there are.
const SENTINEL_COUNT: usize = 3;
/// After how long a silence the master is down, if nothing else is said.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// How long a Sentinel that is busy may take to say who the master is. Only a failing test waits this long.
const REPLY_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// How long a set may take to find itself. Only a failing test waits this long.
const START_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// One master, its replicas, and three Sentinels, of which two must agree that it is down.
///
/// The master is down after one second of silence, or [as long as is said](SentinelSet::start_with_down_after). The data nodes are numbered from 0, which is the
/// first master, and keep their numbers over a failover.
///
/// To lose the last writes in a failover for sure:
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use std::time::Duration;
/// use leasehold_testbed::redis::{RespClient, SentinelSet};
///
/// let mut set = SentinelSet::start(2).await?;
/// let master = set.master().await?;
/// set.cut_replication().await?;
/// let mut client = RespClient::connect(set.nodes()[master].addr()).await?;
/// client.command(&["SET", "lost", "1"]).await?;
/// set.kill_master().await?;
/// set.resume_replicas()?;
/// let new_master = set.wait_for_failover(Duration::from_secs(60)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SentinelSet {
    nodes: Vec<Server>,
    sentinels: Vec<Server>,
    password: Option<String>,
    /// The master as we last knew it: a failover means another one.
    last_known_master: usize,
    /// The replicas that [`SentinelSet::cut_replication`] has paused.
    paused_replicas: Vec<usize>,
}

impl SentinelSet {
    /// Starts a master with this many replicas and three Sentinels, and waits until they all know
    /// each other.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`](crate::Error::TimedOut) if they do not find each other.
    pub async fn start(replicas: usize) -> Result<Self> {
        Self::start_with(replicas, &Redis::new()).await
    }

    /// Like [`SentinelSet::start`]; the data nodes demand `password`, the Sentinels demand none.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with_password(replicas: usize, password: &str) -> Result<Self> {
        Self::start_with(replicas, &Redis::new().password(password)).await
    }

    /// Like [`SentinelSet::start`], with data nodes that are all alike.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with(replicas: usize, template: &Redis) -> Result<Self> {
        Self::start_with_down_after(replicas, template, DOWN_AFTER).await
    }

    /// Like [`SentinelSet::start_with`], with a master that is down after this long a silence: where the machine is busy, a second is
    /// soon over.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with_down_after(replicas: usize, template: &Redis, down_after: Duration) -> Result<Self> {
        Self::start_each(template, &vec![template.clone(); replicas], down_after).await
    }

    /// Like [`SentinelSet::start_with_down_after`], with a recipe for each data node: clocks of their own, for instance. All have the same password.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_each(master: &Redis, replicas: &[Redis], down_after: Duration) -> Result<Self> {
        let password = master.password.clone();
        let master = master.clone().start().await?;
        let following = replicas.iter().map(|replica| replica.clone().following(&master));
        let sentinel = Sentinel { master_port: master.port(), password: password.clone(), down_after };
        let (replicas, sentinels) = tokio::try_join!(
            try_join_all(following.map(Redis::start)),
            try_join_all((0..SENTINEL_COUNT).map(|_| Server::start(sentinel.clone()))),
        )?;
        let nodes = [master].into_iter().chain(replicas).collect();
        let set = Self { nodes, sentinels, password, last_known_master: 0, paused_replicas: Vec::new() };
        set.wait_until_settled(START_TIMEOUT).await?;
        Ok(set)
    }

    /// The URL by which clients find the set: all Sentinels, the password of the data nodes if they
    /// have one, and the master's name.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinel_addrs().iter().map(SocketAddr::to_string).collect();
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis+sentinel://{password}{}/{MASTER_NAME}", hosts.join(","))
    }

    /// Where the Sentinels are.
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::addr).collect()
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The Sentinels, to be killed and paused.
    pub fn sentinels_mut(&mut self) -> &mut [Server] {
        &mut self.sentinels
    }

    /// The data nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The data nodes, to be killed, paused and restarted. A former master that comes back is made
    /// a replica by the Sentinels, some seconds later.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Kills the node that the Sentinels call master, and returns its number.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::master`] and [`Server::kill`].
    pub async fn kill_master(&mut self) -> Result<usize> {
        let master = self.await_master().await?;
        self.nodes[master].kill()?;
        self.last_known_master = master;
        Ok(master)
    }

    /// The master, asked for until a Sentinel says who it is.
    async fn await_master(&self) -> Result<usize> {
        try_eventually("word of a Sentinel", REPLY_TIMEOUT, || self.master()).await
    }

    /// Cuts the replicas off, so that the master's writes from now on reach none of them: they are
    /// paused, and the master drops its connections to them.
    ///
    /// The pause alone would lose nothing: the system takes the master's writes for a paused
    /// replica, and hands them over when it goes on, even if the master has died meanwhile.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::master`] and [`Server::pause`].
    pub async fn cut_replication(&mut self) -> Result<()> {
        let master = self.await_master().await?;
        for (index, node) in self.nodes.iter_mut().enumerate().filter(|(index, _)| *index != master) {
            if node.is_awake() {
                node.pause()?;
                self.paused_replicas.push(index);
            }
        }
        command::drop_replicas(&self.nodes[master], self.password.as_deref()).await
    }

    /// Lets the replicas go on that [`SentinelSet::cut_replication`] has paused. If the master is
    /// still alive, they catch up; kill it first to lose its last writes.
    ///
    /// # Errors
    ///
    /// As [`Server::resume`]; those that were killed meanwhile do not count.
    pub fn resume_replicas(&mut self) -> Result<()> {
        command::resume_paused(&mut self.nodes, &mut self.paused_replicas)
    }
}
