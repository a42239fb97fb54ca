//! Five independent Redis servers.
//!
//! With the safeguards on, all faults hit the same two servers: the guarantee is that a majority of
//! correct servers is enough. If other servers were hit each time, fewer than three might keep a
//! lock before it is renewed.
//!
//! With the fault `clock` their clocks only go back: if two of a holder's three servers ended its
//! lease early, only one would keep it. On request, a majority may lose its data: with `strict`,
//! those servers grant nothing during a cool-down.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis;
use leasehold_testbed::{Data, Server, WallClock};

use super::clock::{describe_offset, jump_ahead_seconds, jump_back_seconds};
use super::leftovers::{self, Leftovers};
use super::read_only::ReadOnlyCause;
use super::redis::server_version;
use super::unsupported_fault;
use crate::deployment::{ActiveFault, DeploymentOptions, RunError, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// How many servers there are.
const NODE_COUNT: usize = 5;

/// Five independent Redis servers.
pub(in crate::deployment) struct RedlockServers {
    servers: Vec<Server>,
    /// The wall clock of each server, and how many seconds it is ahead; empty: no fault moves them.
    clocks: Vec<(WallClock, i64)>,
    /// The indices of the servers that the active fault hits.
    targets: Vec<usize>,
    /// Whether the next loss of data hits a majority, although the safeguards are on.
    hits_majority_next: bool,
    read_only: Option<ReadOnlyCause>,
    /// The options of the URL, with their `?`.
    options: String,
    has_safeguards: bool,
    ttl: Duration,
}

impl RedlockServers {
    pub(super) async fn start(deployment_options: &DeploymentOptions) -> Result<Self, RunError> {
        let mut server_template = redis::Redis::new();
        if deployment_options.has_fault(FaultKind::Crash) {
            server_template = server_template.args(&["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let (mut servers, mut clocks) = (Vec::new(), Vec::new());
        for _ in 0..NODE_COUNT {
            let mut server = server_template.clone();
            if deployment_options.has_fault(FaultKind::Clock) || deployment_options.has_fault(FaultKind::Ahead) {
                let clock = WallClock::new()?;
                server = server.clock(&clock);
                clocks.push((clock, 0));
            }
            servers.push(server.start().await?);
        }
        Ok(Self {
            servers,
            clocks,
            targets: Vec::new(),
            hits_majority_next: false,
            read_only: None,
            options: deployment_options.url_options(),
            has_safeguards: deployment_options.has_safeguards,
            ttl: deployment_options.ttl,
        })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("redlock://{}{}", hosts.join(","), self.options)
    }

    /// The addresses of the servers that get a proxy.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::addr).collect()
    }

    /// The versions that the servers report, such as `redis-server 7.0.15`.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        let mut versions = Vec::new();
        for server in &self.servers {
            versions.push(server_version(server.addr()).await?);
        }
        versions.dedup();
        Ok(versions)
    }

    /// What the servers still store although all workers have ended.
    pub(super) async fn leftovers(&self, locks: &[String]) -> Result<Leftovers, RunError> {
        let mut left = leftovers::unexpiring_keys(&self.addrs()).await?;
        // On a server whose clock was set back, a claim may last for hours.
        if self.clocks.is_empty() {
            left.extend(leftovers::leftover_claims(&self.addrs(), &self.options, locks).await?);
        }
        Ok(left)
    }

    /// Makes the next loss of data hit a majority.
    pub(super) fn hit_majority_next(&mut self) {
        self.hits_majority_next = true;
    }

    /// Begins a fault; with the safeguards on, `minority` are the indices of the servers that it
    /// may hit. Fails if these servers cannot have it.
    pub(super) async fn begin_fault(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        let hits_majority = std::mem::take(&mut self.hits_majority_next) && fault == FaultKind::Wipe;
        self.targets = match fault {
            // A majority: three servers.
            FaultKind::Wipe | FaultKind::Clock if !self.has_safeguards || hits_majority => {
                rng.choose_indices(NODE_COUNT / 2 + 1, NODE_COUNT)
            }
            _ => {
                let count = rng.in_range(1, minority.len() as u64) as usize;
                rng.choose_indices(count, minority.len()).iter().filter_map(|at| minority.get(*at).copied()).collect()
            }
        };
        let target = format::server_list("", "", &self.targets, NODE_COUNT).trim_start().to_owned();
        let ttl = self.ttl;
        match fault {
            FaultKind::Crash | FaultKind::Wipe => {
                for at in &self.targets {
                    self.servers[*at].kill()?;
                }
                // The servers must be back, empty, long before the leases expire.
                let duration = match fault {
                    FaultKind::Wipe => rng.duration_in(Duration::ZERO, ttl / 8),
                    _ => ActiveFault::outage_duration(ttl, rng),
                };
                let active_fault = ActiveFault::new(target, duration);
                Ok(if self.targets.len() <= NODE_COUNT / 2 { active_fault.with_others_serving() } else { active_fault })
            }
            FaultKind::Clock | FaultKind::Ahead => {
                let is_back = self.has_safeguards && fault == FaultKind::Clock;
                let seconds = if is_back { jump_back_seconds(rng) } else { jump_ahead_seconds(ttl, rng) };
                for at in &self.targets {
                    let (clock, ahead) = self.clocks.get_mut(*at).ok_or_else(|| unsupported_fault(fault))?;
                    *ahead += seconds;
                    clock.set_offset(*ahead)?;
                }
                Ok(ActiveFault::new(
                    format!("{target}: {}", describe_offset(seconds)),
                    rng.duration_in(ttl / 2, ttl * 2),
                ))
            }
            FaultKind::ReadOnly => {
                let cause = ReadOnlyCause::random(rng);
                for at in &self.targets {
                    cause.apply(self.servers[*at].addr()).await?;
                }
                self.read_only = Some(cause);
                Ok(ActiveFault::new(
                    format!("{target}: {}", cause.description()),
                    ActiveFault::outage_duration(ttl, rng),
                )
                .with_others_serving())
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Ends the active fault, and waits until the servers respond. Returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let hit = std::mem::take(&mut self.targets);
        let data = match fault {
            FaultKind::Crash => Data::Keep,
            FaultKind::Wipe => Data::Wipe,
            FaultKind::Clock | FaultKind::Ahead => return Ok("they stay there".to_owned()),
            FaultKind::ReadOnly => {
                let cause = self.read_only.take().ok_or_else(|| unsupported_fault(fault))?;
                for at in &hit {
                    cause.revert(self.servers[*at].addr()).await?;
                }
                return Ok("they accept writes again".to_owned());
            }
            _ => return Err(unsupported_fault(fault)),
        };
        // They restart together, as they were killed together.
        let hit = self.servers.iter_mut().enumerate().filter(|(at, _)| hit.contains(at));
        let restarts = hit.map(|(_, server)| server.restart(data));
        futures_util::future::try_join_all(restarts).await?;
        Ok("all respond again".to_owned())
    }
}
