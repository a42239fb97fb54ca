//! One Redis server, or a master with a replica and the Sentinels that replace it.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{self, SentinelSet};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::ServerClock;
use super::out_of_memory::{FullMemory, command, info_section};
use super::read_only::ReadOnlyCause;
use super::unsupported_fault;
use crate::deployment::network::Network;
use crate::deployment::{ActiveFault, DeploymentOptions, RunError, UrlOption, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The longest wait for the servers to recover.
const RECOVERY_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// Sentinels replace a master that is unreachable for this long: longer than a healthy server may
/// wait for the processor on a busy machine.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// Sentinels replace an unreachable master after this time if its replacement must come before the
/// leases expire.
const SHORT_DOWN_AFTER: Duration = Duration::from_secs(1);
/// The longest outage of a master that Sentinels must not replace.
const MAX_MASTER_OUTAGE: Duration = Duration::from_millis(300);
/// The size of the small disk for the server's data.
const DISK_BYTES: u64 = 64 * 1024 * 1024;
/// Redis compacts its append-only file from this size on.
const AOF_REWRITE_SIZE: &str = "8mb";

/// A single Redis server, or a set with Sentinels.
pub(in crate::deployment) struct RedisServers {
    servers: Topology,
    /// The wall clock of each server; empty: no fault moves them.
    server_clocks: Vec<ServerClock>,
    /// Whether the fault `clock` also replaces the master by a replica.
    replaces_master: bool,
    /// The active fault `evict`.
    full_memory: Option<FullMemory>,
    /// The active fault `read-only`.
    read_only: Option<ReadOnlyCause>,
    /// The index of the server that was hit last.
    target: usize,
    /// The index of the master, and the Sentinels' configuration epoch, at the start of the run.
    baseline: Option<(usize, u64)>,
    /// The options of the URL, with their `?`.
    options: String,
    has_safeguards: bool,
    ttl: Duration,
}

enum Topology {
    Single(Server),
    Sentinel(SentinelSet),
}

impl RedisServers {
    /// Starts one server or, with `has_sentinels`, a master with a replica and Sentinels.
    pub(super) async fn start(options: &DeploymentOptions, has_sentinels: bool) -> Result<Self, RunError> {
        let mut server_template = redis::Redis::new();
        if options.has_fault(FaultKind::Crash) || options.has_fault(FaultKind::DiskFull) {
            let durable =
                ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-min-size", AOF_REWRITE_SIZE];
            server_template = server_template.args(&durable);
        }
        if options.has_fault(FaultKind::DiskFull) {
            server_template = server_template.disk(DISK_BYTES);
        }
        let mut clocks = Vec::new();
        let mut node = || {
            let clock = ServerClock::for_options(options, false)?;
            let node = clock.iter().fold(server_template.clone(), |node, clock| node.clock(clock.clock()));
            clocks.extend(clock);
            Ok::<_, RunError>(node)
        };
        let servers = if has_sentinels {
            // In a negative control, and with `replicas`, the replacement must come before the
            // leases expire.
            let soon = !options.has_safeguards || options.option == Some(UrlOption::Replicas);
            let down_after = if soon { SHORT_DOWN_AFTER } else { DOWN_AFTER };
            let (master, replica) = (node()?, node()?);
            Topology::Sentinel(SentinelSet::start_each(&master, &[replica], down_after).await?)
        } else {
            Topology::Single(node()?.start().await?)
        };
        Ok(Self {
            servers,
            server_clocks: clocks,
            replaces_master: options.option == Some(UrlOption::Replicas),
            full_memory: None,
            read_only: None,
            target: 0,
            baseline: None,
            options: options.url_options(),
            has_safeguards: options.has_safeguards,
            ttl: options.ttl,
        })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        match &self.servers {
            Topology::Single(server) => format!("{}{}", server.url(), self.options),
            Topology::Sentinel(set) => format!("{}{}", set.url(), self.options),
        }
    }

    /// The addresses of the servers that get a proxy.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Topology::Single(server) => vec![server.addr()],
            Topology::Sentinel(set) => set.nodes().iter().map(Server::addr).collect(),
        }
    }

    /// The addresses of the Sentinels; empty for a single server.
    pub(super) fn sentinels(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Topology::Single(_) => Vec::new(),
            Topology::Sentinel(set) => set.sentinel_addrs(),
        }
    }

    /// The versions that the servers report, such as `redis-server 7.0.15`.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        Ok(vec![server_version(self.server(0).addr()).await?])
    }

    /// The server with this index.
    fn server(&self, at: usize) -> &Server {
        match &self.servers {
            Topology::Single(server) => server,
            Topology::Sentinel(set) => &set.nodes()[at],
        }
    }

    /// The server with this index.
    fn server_mut(&mut self, at: usize) -> &mut Server {
        match &mut self.servers {
            Topology::Single(server) => server,
            Topology::Sentinel(set) => &mut set.nodes_mut()[at],
        }
    }

    /// The index of the master, as the Sentinels report it.
    async fn current_master(&self) -> Result<usize, RunError> {
        match &self.servers {
            Topology::Single(_) => Ok(0),
            Topology::Sentinel(set) => Ok(set.master().await?),
        }
    }

    /// The index of the master; retried until a Sentinel answers.
    async fn await_master(&self) -> Result<usize, RunError> {
        Ok(try_eventually("reply of a Sentinel", RECOVERY_TIMEOUT, || self.current_master()).await?)
    }

    /// The index of the master, and the Sentinels' configuration epoch. `None` for a single server,
    /// and in a negative control, in which an unplanned fail-over only adds a violation of the
    /// expected kind.
    async fn master_and_epoch(&self) -> Result<Option<(usize, u64)>, RunError> {
        match &self.servers {
            Topology::Sentinel(set) if self.has_safeguards => {
                Ok(Some(try_eventually("reply of a Sentinel", RECOVERY_TIMEOUT, || set.master_and_epoch()).await?))
            }
            _ => Ok(None),
        }
    }

    /// Records the current master, with which
    /// [`check_no_foreign_failover`](Self::check_no_foreign_failover) compares later.
    pub(super) async fn save_baseline(&mut self) -> Result<(), RunError> {
        self.baseline = self.master_and_epoch().await?;
        Ok(())
    }

    /// Fails if the Sentinels replaced a master that no fault had hit: the checker cannot know
    /// which locks were lost then.
    pub(super) async fn check_no_foreign_failover(&self) -> Result<(), RunError> {
        match (self.baseline, self.master_and_epoch().await?) {
            (Some(known), Some(now)) if known != now => Err(RunError::transient(format!(
                "the Sentinels replaced {} by {} without a fault: on a busy machine it did not respond for {DOWN_AFTER:?}",
                format::server_name(known.0, self.addrs().len()),
                format::server_name(now.0, self.addrs().len()),
            ))),
            _ => Ok(()),
        }
    }

    /// The server with this index in words, for the description of a fault.
    fn server_name(&self, at: usize) -> String {
        match &self.servers {
            Topology::Single(_) => "the server".to_owned(),
            Topology::Sentinel(set) => format!("{}, the master", format::server_name(at, set.nodes().len())),
        }
    }

    /// Begins a fault. Fails if these servers cannot have it.
    pub(super) async fn begin_fault(
        &mut self,
        fault: FaultKind,
        network: Option<&Network>,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        self.check_no_foreign_failover().await?;
        self.target = self.await_master().await?;
        let (hit, ttl) = (self.target, self.ttl);
        let target = self.server_name(hit);
        let max_outage = if matches!(self.servers, Topology::Sentinel(_)) { MAX_MASTER_OUTAGE } else { ttl * 3 / 2 };
        match fault {
            FaultKind::Crash => {
                self.server_mut(hit).kill()?;
                Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, max_outage)))
            }
            FaultKind::Wipe => {
                self.server_mut(hit).kill()?;
                // It must restart long before the leases that it lost would have expired.
                Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, (ttl / 4).min(MAX_MASTER_OUTAGE))))
            }
            FaultKind::Failover => self.fail_over(target, network, rng).await,
            FaultKind::Clock | FaultKind::Ahead => {
                let clock = self.server_clocks.get_mut(hit).ok_or_else(|| unsupported_fault(fault))?;
                let target = format!("{target}: {}", clock.jump(fault, rng)?);
                if fault == FaultKind::Clock && self.replaces_master {
                    return self.replace_master_with_slow_clock(target, rng).await;
                }
                Ok(ActiveFault::new(target, rng.duration_in(ttl / 2, ttl * 2)))
            }
            FaultKind::ReadOnly => {
                // Sentinels would reconfigure a replica of a master that does not exist.
                let cause = match self.servers {
                    Topology::Single(_) => ReadOnlyCause::random(rng),
                    Topology::Sentinel(_) => ReadOnlyCause::TooFewReplicas,
                };
                cause.apply(self.server(hit).addr()).await?;
                self.read_only = Some(cause);
                Ok(ActiveFault::new(format!("{target}: {}", cause.description()), rng.duration_in(ttl, ttl * 3)))
            }
            FaultKind::Evict => {
                self.full_memory =
                    Some(FullMemory::fill(self.server(hit).addr(), !self.has_safeguards, ttl, rng).await?);
                Ok(ActiveFault::new(target, rng.duration_in(ttl, ttl * 3)))
            }
            FaultKind::DiskFull => {
                self.server(hit).disk().ok_or_else(|| unsupported_fault(fault))?.fill()?;
                Ok(ActiveFault::new(target, rng.duration_in(ttl, ttl * 2)))
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Kills the master after it made grants that no replica has.
    async fn fail_over(
        &mut self,
        target: String,
        network: Option<&Network>,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        let (has_safeguards, ttl) = (self.has_safeguards, self.ttl);
        let Topology::Sentinel(set) = &mut self.servers else { return Err(unsupported_fault(FaultKind::Failover)) };
        set.cut_replication().await?;
        // Workers continue for a while; the fail-over loses all grants of that time.
        let a_while =
            if has_safeguards { rng.duration_in(Duration::from_millis(300), Duration::from_millis(900)) } else { ttl };
        tokio::time::sleep(a_while).await;
        if let Some(network) = network {
            network.silence_half_of_connections(rng);
        }
        let killed = set.kill_master().await;
        // The replicas must resume even if the kill failed.
        set.resume_replicas()?;
        killed?;
        Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, Duration::from_millis(500))).with_others_serving())
    }

    /// Kills the master, whose clock was set back, after it renewed leases. A replica replaces it
    /// that has all grants, and whose clock is ahead of the master's.
    async fn replace_master_with_slow_clock(&mut self, target: String, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        // Meanwhile leases are renewed by the clock that was set back.
        tokio::time::sleep(rng.duration_in(self.ttl / 4, self.ttl / 2)).await;
        let Topology::Sentinel(set) = &mut self.servers else { return Err(unsupported_fault(FaultKind::Clock)) };
        set.kill_master().await?;
        let target = format!("{target}; and it is replaced by its replica");
        Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, Duration::from_millis(500))).with_others_serving())
    }

    /// Whether the Sentinels have promoted a server that was not hit.
    pub(super) async fn can_others_serve(&self) -> bool {
        self.current_master().await.is_ok_and(|master| master != self.target)
    }

    /// Ends the active fault, and waits until the servers respond. Returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let hit = self.target;
        match fault {
            FaultKind::Crash => {
                self.server_mut(hit).restart(Data::Keep).await?;
                self.await_stable_master().await
            }
            FaultKind::Wipe => {
                self.server_mut(hit).restart(Data::Wipe).await?;
                self.await_stable_master().await
            }
            FaultKind::Failover => self.finish_failover(fault).await,
            FaultKind::Clock if self.replaces_master => self.finish_failover(fault).await,
            FaultKind::Clock | FaultKind::Ahead => {
                self.server_clocks.get(hit).map(ServerClock::offset_note).ok_or_else(|| unsupported_fault(fault))
            }
            FaultKind::ReadOnly => {
                let cause = self.read_only.take().ok_or_else(|| unsupported_fault(fault))?;
                cause.revert(self.server(hit).addr()).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::Evict => {
                let evicted_count = self.full_memory.take().ok_or_else(|| unsupported_fault(fault))?.free().await?;
                Ok(format!("{evicted_count} keys were evicted"))
            }
            FaultKind::DiskFull => {
                self.server(hit).disk().ok_or_else(|| unsupported_fault(fault))?.free()?;
                let had_ended = !self.server_mut(hit).is_running()?;
                if had_ended {
                    self.server_mut(hit).restart(Data::Keep).await?;
                }
                let settled = self.await_stable_master().await?;
                Ok(if had_ended { format!("it had ended, and was restarted; {settled}") } else { settled })
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Waits until another server is the master, and restarts the old one as its replica. Returns a
    /// note.
    async fn finish_failover(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let hit = self.target;
        let Topology::Sentinel(set) = &mut self.servers else { return Err(unsupported_fault(fault)) };
        set.wait_for_failover(RECOVERY_TIMEOUT).await?;
        self.server_mut(hit).restart(Data::Keep).await?;
        self.await_stable_master().await
    }

    /// Waits until the set has one master, which the other server follows. Returns a note.
    async fn await_stable_master(&mut self) -> Result<String, RunError> {
        let (hit, all) = (self.target, self.addrs());
        if matches!(self.servers, Topology::Single(_)) {
            return Ok("it responds again".to_owned());
        }
        let master = self.await_master().await?;
        if master != hit
            && let (Some(old), Some(new)) = (all.get(hit), all.get(master))
        {
            // The Sentinels would send the same command some seconds later. If they send it just
            // now, they close all connections to the old master, so the command is retried.
            let port = new.port().to_string();
            let words = ["REPLICAOF", "127.0.0.1", &port];
            try_eventually("old master that follows the new one", RECOVERY_TIMEOUT, || command(*old, &words)).await?;
        }
        if let Topology::Sentinel(set) = &self.servers {
            set.wait_until_settled(RECOVERY_TIMEOUT).await?;
        }
        let master = self.await_master().await?;
        if self.baseline.is_some() {
            self.save_baseline().await?;
        }
        Ok(format!("{} is the master now", format::server_name(master, all.len())))
    }
}

/// The version that the server reports: `redis-server 7.0.15`.
pub(super) async fn server_version(addr: SocketAddr) -> Result<String, RunError> {
    let facts = info_section(addr, "server").await?;
    Ok(format!("redis-server {}", facts.get("redis_version").map_or("of unknown version", String::as_str)))
}
