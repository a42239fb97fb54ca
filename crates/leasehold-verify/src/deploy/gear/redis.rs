//! One Redis, or a master with a replica and the Sentinels that replace it.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{self, SentinelSet};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::Hand;
use super::evict::{Full, ask, facts};
use super::read_only::ReadOnly;
use super::unfit;
use crate::deploy::lines::Lines;
use crate::deploy::{Setup, Strike, Trouble, UrlOption, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// Ends the wait for a set that does not recover.
const BOUND: Duration = leasehold_testbed::BOUND;
/// Sentinels replace a master that is unreachable for this long. A server that waits for the
/// processor for a second, on a busy machine, is not gone.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// With the guard off, the data must be lost before the leases expire.
const DOWN_SOON: Duration = Duration::from_secs(1);
/// A master that must not be replaced has to be back before that.
const SHORT: Duration = Duration::from_millis(300);
/// Space for the append-only file, which is rewritten at this size.
const DISK: u64 = 64 * 1024 * 1024;
const REWRITE: &str = "8mb";

/// The servers that were started.
pub(in crate::deploy) struct Redis {
    servers: Servers,
    /// One per server, if they are to jump.
    clocks: Vec<Hand>,
    /// Whether the master is replaced after its clock was set back.
    replaced: bool,
    full: Option<Full>,
    read_only: Option<ReadOnly>,
    /// The server that was hit last.
    hit: usize,
    /// The master and the Sentinels' configuration epoch at the start of the run.
    known: Option<(usize, u64)>,
    options: String,
    guard: bool,
    ttl: Duration,
}

enum Servers {
    One(Server),
    Set(SentinelSet),
}

impl Redis {
    /// Starts one server, or with `sentinels` a set.
    pub(super) async fn start(setup: &Setup, sentinels: bool) -> Result<Self, Trouble> {
        let mut each = redis::Redis::new();
        if setup.wants(FaultKind::Crash) || setup.wants(FaultKind::DiskFull) {
            let durable = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-min-size", REWRITE];
            each = each.args(&durable);
        }
        if setup.wants(FaultKind::DiskFull) {
            each = each.disk(DISK);
        }
        let mut clocks = Vec::new();
        let mut node = || {
            let hand = Hand::wanted(setup, false)?;
            let node = hand.iter().fold(each.clone(), |node, hand| node.clock(hand.clock()));
            clocks.extend(hand);
            Ok::<_, Trouble>(node)
        };
        let servers = if sentinels {
            // The replacement must happen before the leases expire.
            let soon = !setup.guard || setup.option == Some(UrlOption::Replicas);
            let down_after = if soon { DOWN_SOON } else { DOWN_AFTER };
            let (master, replica) = (node()?, node()?);
            Servers::Set(SentinelSet::each(&master, &[replica], down_after).await?)
        } else {
            Servers::One(node()?.start().await?)
        };
        Ok(Self {
            servers,
            clocks,
            replaced: setup.option == Some(UrlOption::Replicas),
            full: None,
            read_only: None,
            hit: 0,
            known: None,
            options: setup.options(),
            guard: setup.guard,
            ttl: setup.ttl,
        })
    }

    pub(super) fn url(&self) -> String {
        match &self.servers {
            Servers::One(server) => format!("{}{}", server.url(), self.options),
            Servers::Set(set) => format!("{}{}", set.url(), self.options),
        }
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Servers::One(server) => vec![server.addr()],
            Servers::Set(set) => set.nodes().iter().map(Server::addr).collect(),
        }
    }

    pub(super) fn sentinels(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Servers::One(_) => Vec::new(),
            Servers::Set(set) => set.sentinel_addrs(),
        }
    }

    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        Ok(vec![version(self.server(0).addr()).await?])
    }

    fn server(&self, at: usize) -> &Server {
        match &self.servers {
            Servers::One(server) => server,
            Servers::Set(set) => &set.nodes()[at],
        }
    }

    fn server_mut(&mut self, at: usize) -> &mut Server {
        match &mut self.servers {
            Servers::One(server) => server,
            Servers::Set(set) => &mut set.nodes_mut()[at],
        }
    }

    async fn master(&self) -> Result<usize, Trouble> {
        match &self.servers {
            Servers::One(_) => Ok(0),
            Servers::Set(set) => Ok(set.master().await?),
        }
    }

    /// The master; retried until a Sentinel answers.
    async fn sure_master(&self) -> Result<usize, Trouble> {
        Ok(try_eventually("word of a Sentinel", BOUND, || self.master()).await?)
    }

    /// The master, and the Sentinels' configuration epoch. With the guard off it is not checked:
    /// one more fail-over would show the same.
    async fn standing(&self) -> Result<Option<(usize, u64)>, Trouble> {
        match &self.servers {
            Servers::Set(set) if self.guard => {
                Ok(Some(try_eventually("word of a Sentinel", BOUND, || set.standing()).await?))
            }
            _ => Ok(None),
        }
    }

    /// Remembers the master: from now on only our faults replace it.
    pub(super) async fn remember(&mut self) -> Result<(), Trouble> {
        self.known = self.standing().await?;
        Ok(())
    }

    /// Whether the Sentinels replaced a master that no fault had hit. The checker cannot know what
    /// was lost then.
    pub(super) async fn surprised(&self) -> Result<(), Trouble> {
        match (self.known, self.standing().await?) {
            (Some(known), Some(now)) if known != now => Err(Trouble::new(format!(
                "the Sentinels replaced {} by {} unasked: on a busy machine it had been silent for {DOWN_AFTER:?}",
                words::server(known.0, self.addrs().len()),
                words::server(now.0, self.addrs().len()),
            ))),
            _ => Ok(()),
        }
    }

    /// A description in words.
    fn name(&self, at: usize) -> String {
        match &self.servers {
            Servers::One(_) => "the server".to_owned(),
            Servers::Set(set) => format!("{}, the master", words::server(at, set.nodes().len())),
        }
    }

    pub(super) async fn begin(
        &mut self,
        fault: FaultKind,
        lines: Option<&Lines>,
        dice: &mut Dice,
    ) -> Result<Strike, Trouble> {
        self.surprised().await?;
        self.hit = self.sure_master().await?;
        let (hit, ttl) = (self.hit, self.ttl);
        let target = self.name(hit);
        let down = if matches!(self.servers, Servers::Set(_)) { SHORT } else { ttl * 3 / 2 };
        match fault {
            FaultKind::Crash => {
                self.server_mut(hit).kill()?;
                Ok(Strike::new(target, dice.time(Duration::ZERO, down)))
            }
            FaultKind::Wipe => {
                self.server_mut(hit).kill()?;
                // It must be back before the leases that it lost are over.
                Ok(Strike::new(target, dice.time(Duration::ZERO, (ttl / 4).min(SHORT))))
            }
            FaultKind::Failover => self.fail_over(target, lines, dice).await,
            FaultKind::Clock | FaultKind::Ahead => {
                let hand = self.clocks.get_mut(hit).ok_or_else(|| unfit(fault))?;
                let target = format!("{target}: {}", hand.jump(fault, dice)?);
                if fault == FaultKind::Clock && self.replaced {
                    return self.replace_behind(target, dice).await;
                }
                Ok(Strike::new(target, dice.time(ttl / 2, ttl * 2)))
            }
            FaultKind::ReadOnly => {
                // Sentinels would reconfigure a replica without a master.
                let how = match self.servers {
                    Servers::One(_) => ReadOnly::any(dice),
                    Servers::Set(_) => ReadOnly::TooFewReplicas,
                };
                how.begin(self.server(hit).addr()).await?;
                self.read_only = Some(how);
                Ok(Strike::new(format!("{target}: {}", how.about()), dice.time(ttl, ttl * 3)))
            }
            FaultKind::Evict => {
                self.full = Some(Full::begin(self.server(hit).addr(), !self.guard, ttl, dice).await?);
                Ok(Strike::new(target, dice.time(ttl, ttl * 3)))
            }
            FaultKind::DiskFull => {
                self.server(hit).disk().ok_or_else(|| unfit(fault))?.fill()?;
                Ok(Strike::new(target, dice.time(ttl, ttl * 2)))
            }
            _ => Err(unfit(fault)),
        }
    }

    /// The master dies with grants that no replica has.
    async fn fail_over(&mut self, target: String, lines: Option<&Lines>, dice: &mut Dice) -> Result<Strike, Trouble> {
        let (guard, ttl) = (self.guard, self.ttl);
        let Servers::Set(set) = &mut self.servers else { return Err(unfit(FaultKind::Failover)) };
        set.cut_replication().await?;
        // Workers go on for a while; the fail-over loses everything acknowledged in that time.
        let a_while = if guard { dice.time(Duration::from_millis(300), Duration::from_millis(900)) } else { ttl };
        tokio::time::sleep(a_while).await;
        if let Some(lines) = lines {
            lines.silence_half(dice);
        }
        let killed = set.kill_master().await;
        // In any case the replicas must not stay paused.
        set.resume_replicas()?;
        killed?;
        Ok(Strike::new(target, dice.time(Duration::ZERO, Duration::from_millis(500))).served())
    }

    /// A replica that has all grants, and whose clock is ahead, replaces the master.
    async fn replace_behind(&mut self, target: String, dice: &mut Dice) -> Result<Strike, Trouble> {
        // Leases are renewed by the clock that was set back.
        tokio::time::sleep(dice.time(self.ttl / 4, self.ttl / 2)).await;
        let Servers::Set(set) = &mut self.servers else { return Err(unfit(FaultKind::Clock)) };
        set.kill_master().await?;
        let target = format!("{target}; and it is replaced by its replica");
        Ok(Strike::new(target, dice.time(Duration::ZERO, Duration::from_millis(500))).served())
    }

    /// Whether the Sentinels have promoted another server.
    pub(super) async fn others_serve(&self) -> bool {
        self.master().await.is_ok_and(|master| master != self.hit)
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let hit = self.hit;
        match fault {
            FaultKind::Crash => {
                self.server_mut(hit).restart(Data::Keep).await?;
                self.settle().await
            }
            FaultKind::Wipe => {
                self.server_mut(hit).restart(Data::Wipe).await?;
                self.settle().await
            }
            FaultKind::Failover => self.replaced(fault).await,
            FaultKind::Clock if self.replaced => self.replaced(fault).await,
            FaultKind::Clock | FaultKind::Ahead => self.clocks.get(hit).map(Hand::note).ok_or_else(|| unfit(fault)),
            FaultKind::ReadOnly => {
                let how = self.read_only.take().ok_or_else(|| unfit(fault))?;
                how.end(self.server(hit).addr()).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::Evict => {
                let gone = self.full.take().ok_or_else(|| unfit(fault))?.end().await?;
                Ok(format!("{gone} keys were thrown away"))
            }
            FaultKind::DiskFull => {
                self.server(hit).disk().ok_or_else(|| unfit(fault))?.free()?;
                let died = !self.server_mut(hit).is_running()?;
                if died {
                    self.server_mut(hit).restart(Data::Keep).await?;
                }
                let settled = self.settle().await?;
                Ok(if died { format!("it had ended, and runs again; {settled}") } else { settled })
            }
            _ => Err(unfit(fault)),
        }
    }

    /// Waits until another server is the master, and makes the old one follow it.
    async fn replaced(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let hit = self.hit;
        let Servers::Set(set) = &mut self.servers else { return Err(unfit(fault)) };
        set.failed_over(BOUND).await?;
        self.server_mut(hit).restart(Data::Keep).await?;
        self.settle().await
    }

    /// Waits until a set has one master again, which the others follow.
    async fn settle(&mut self) -> Result<String, Trouble> {
        let (hit, all) = (self.hit, self.addrs());
        if matches!(self.servers, Servers::One(_)) {
            return Ok("it answers again".to_owned());
        }
        let master = self.sure_master().await?;
        if master != hit
            && let (Some(old), Some(new)) = (all.get(hit), all.get(master))
        {
            // The Sentinels would send the same command some seconds later; if they do so now, they
            // close every connection to it, including this one.
            let port = new.port().to_string();
            let words = ["REPLICAOF", "127.0.0.1", &port];
            try_eventually("old master that takes the new one's orders", BOUND, || ask(*old, &words)).await?;
        }
        if let Servers::Set(set) = &self.servers {
            set.settled(BOUND).await?;
        }
        let master = self.sure_master().await?;
        if self.known.is_some() {
            self.remember().await?;
        }
        Ok(format!("{} is the master now", words::server(master, all.len())))
    }
}

/// The version that the server reports.
pub(super) async fn version(addr: SocketAddr) -> Result<String, Trouble> {
    let facts = facts(addr, "server").await?;
    Ok(format!("redis-server {}", facts.get("redis_version").map_or("of unknown version", String::as_str)))
}
