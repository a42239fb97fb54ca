//! A master with replicas, and Sentinels that promote a replica when it dies.

mod sentinel_spec;
mod status;

use std::{net::SocketAddr, time::Duration};

use futures_util::future::try_join_all;

use super::{Redis, command};
use crate::{Result, Server, try_eventually};
use sentinel_spec::{MASTER_NAME, Sentinel};

/// How many Sentinels a set has.
const SENTINEL_COUNT: usize = 3;
/// The default time after which an unresponsive master counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// The time limit for a Sentinel to report the master. Only a failing test waits this long.
const REPLY_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// The time limit for a set to start. Only a failing test waits this long.
const START_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// One master, its replicas, and three Sentinels, of which two must agree that it is down.
///
/// The master counts as down if it does not respond for one second, or for [another
/// time](SentinelSet::start_with_down_after). The data nodes are numbered from 0, which is the
/// first master, and keep their numbers over a failover.
///
/// To lose the last writes in a failover reliably:
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
    /// The number of the last known master, to detect a failover.
    last_known_master: usize,
    /// The numbers of the replicas that [`SentinelSet::cut_replication`] has paused.
    paused_replicas: Vec<usize>,
}

impl SentinelSet {
    /// Starts a master with this many replicas and three Sentinels, and waits until they all know
    /// each other.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`](crate::Error::TimedOut) if they do not discover
    /// each other.
    pub async fn start(replicas: usize) -> Result<Self> {
        Self::start_with(replicas, &Redis::new()).await
    }

    /// Like [`SentinelSet::start`]; the data nodes require `password`, the Sentinels do not.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with_password(replicas: usize, password: &str) -> Result<Self> {
        Self::start_with(replicas, &Redis::new().password(password)).await
    }

    /// Like [`SentinelSet::start`], with the same settings for all data nodes.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with(replicas: usize, template: &Redis) -> Result<Self> {
        Self::start_with_down_after(replicas, template, DOWN_AFTER).await
    }

    /// Like [`SentinelSet::start_with`], with this time limit for an unresponsive master: on a busy
    /// machine, one second may be too short.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::start`].
    pub async fn start_with_down_after(replicas: usize, template: &Redis, down_after: Duration) -> Result<Self> {
        Self::start_each(template, &vec![template.clone(); replicas], down_after).await
    }

    /// Like [`SentinelSet::start_with_down_after`], with settings for each data node, such as
    /// separate clocks. All have the same password.
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

    /// The addresses of the Sentinels.
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::addr).collect()
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The Sentinels, to kill and pause.
    pub fn sentinels_mut(&mut self) -> &mut [Server] {
        &mut self.sentinels
    }

    /// The data nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The data nodes, to kill, pause and restart. Some seconds after a former master restarts, the
    /// Sentinels make it a replica.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Kills the node that the Sentinels name as master, and returns its number.
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

    /// The number of the master; retries until a Sentinel reports it.
    async fn await_master(&self) -> Result<usize> {
        try_eventually("reply of a Sentinel", REPLY_TIMEOUT, || self.master()).await
    }

    /// Cuts off the replicas, so that none of the master's later writes reaches them: they are
    /// paused, and the master drops its connections to them.
    ///
    /// The pause alone would lose no writes: the kernel buffers the master's writes for a paused
    /// replica, and delivers them when it resumes, even if the master has died meanwhile.
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

    /// Resumes the replicas that [`SentinelSet::cut_replication`] has paused. If the master is
    /// still alive, they catch up; kill it first to lose its last writes.
    ///
    /// # Errors
    ///
    /// As [`Server::resume`]; those that were killed meanwhile are skipped.
    pub fn resume_replicas(&mut self) -> Result<()> {
        command::resume_paused(&mut self.nodes, &mut self.paused_replicas)
    }
}
