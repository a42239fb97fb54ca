//! Five independent Redis servers.
//!
//! With the guard on, all faults hit the same two servers: the guarantee is that a majority of
//! correct servers is enough. If other servers were hit each time, fewer than three might keep a
//! lock before it is renewed. Their clocks only go back: a holder with just three servers, two of
//! which end its lease early, would keep only one. On request, a majority may lose its data: with
//! `strict`, those servers grant nothing during a cool-down.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis;
use leasehold_testbed::{Data, Server, WallClock};

use super::clock::{ahead, back, in_words};
use super::left::{self, Left};
use super::read_only::ReadOnly;
use super::redis::version;
use super::unfit;
use crate::deploy::{Setup, Strike, Trouble, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// How many servers there are.
const NODES: usize = 5;

pub(in crate::deploy) struct Redlock {
    servers: Vec<Server>,
    /// One per server, if they are to jump, and how many seconds it is ahead.
    clocks: Vec<(WallClock, i64)>,
    hit: Vec<usize>,
    /// Whether a majority loses its data next time, with the guard on.
    wide: bool,
    read_only: Option<ReadOnly>,
    options: String,
    guard: bool,
    ttl: Duration,
}

impl Redlock {
    pub(super) async fn start(setup: &Setup) -> Result<Self, Trouble> {
        let mut each = redis::Redis::new();
        if setup.wants(FaultKind::Crash) {
            each = each.args(&["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let (mut servers, mut clocks) = (Vec::new(), Vec::new());
        for _ in 0..NODES {
            let mut one = each.clone();
            if setup.wants(FaultKind::Clock) || setup.wants(FaultKind::Ahead) {
                let clock = WallClock::new()?;
                one = one.clock(&clock);
                clocks.push((clock, 0));
            }
            servers.push(one.start().await?);
        }
        let (options, guard, ttl) = (setup.options(), setup.guard, setup.ttl);
        Ok(Self { servers, clocks, hit: Vec::new(), wide: false, read_only: None, options, guard, ttl })
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("redlock://{}{}", hosts.join(","), self.options)
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::addr).collect()
    }

    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        let mut versions = Vec::new();
        for server in &self.servers {
            versions.push(version(server.addr()).await?);
        }
        versions.dedup();
        Ok(versions)
    }

    pub(super) async fn left(&self, locks: &[String]) -> Result<Left, Trouble> {
        let mut left = left::keys(&self.addrs()).await?;
        // By a clock that was set back, a claim may last for hours.
        if self.clocks.is_empty() {
            left.extend(left::claims(&self.addrs(), &self.options, locks).await?);
        }
        Ok(left)
    }

    /// Makes the next loss of data hit a majority.
    pub(super) fn widen(&mut self) {
        self.wide = true;
    }

    pub(super) async fn begin(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        dice: &mut Dice,
    ) -> Result<Strike, Trouble> {
        let most = minority.len() as u64;
        let wide = std::mem::take(&mut self.wide) && fault == FaultKind::Wipe;
        self.hit = match fault {
            // Three that lose data, or whose leases end early: a majority.
            FaultKind::Wipe | FaultKind::Clock if !self.guard || wide => dice.some(NODES / 2 + 1, NODES),
            _ => {
                let count = dice.between(1, most) as usize;
                dice.some(count, minority.len()).iter().filter_map(|at| minority.get(*at).copied()).collect()
            }
        };
        let target = words::servers("", "", &self.hit, NODES).trim_start().to_owned();
        let ttl = self.ttl;
        match fault {
            FaultKind::Crash | FaultKind::Wipe => {
                for at in &self.hit {
                    self.servers[*at].kill()?;
                }
                // The data must be lost before the leases expire.
                let lasts = match fault {
                    FaultKind::Wipe => dice.time(Duration::ZERO, ttl / 8),
                    _ => Strike::while_others_serve(ttl, dice),
                };
                let strike = Strike::new(target, lasts);
                Ok(if self.hit.len() <= NODES / 2 { strike.served() } else { strike })
            }
            FaultKind::Clock | FaultKind::Ahead => {
                let is_back = self.guard && fault == FaultKind::Clock;
                let seconds = if is_back { back(dice) } else { ahead(ttl, dice) };
                for at in &self.hit {
                    let (clock, ahead) = self.clocks.get_mut(*at).ok_or_else(|| unfit(fault))?;
                    *ahead += seconds;
                    clock.move_to(*ahead)?;
                }
                Ok(Strike::new(format!("{target}: {}", in_words(seconds)), dice.time(ttl / 2, ttl * 2)))
            }
            FaultKind::ReadOnly => {
                let how = ReadOnly::any(dice);
                for at in &self.hit {
                    how.begin(self.servers[*at].addr()).await?;
                }
                self.read_only = Some(how);
                Ok(Strike::new(format!("{target}: {}", how.about()), Strike::while_others_serve(ttl, dice)).served())
            }
            _ => Err(unfit(fault)),
        }
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let hit = std::mem::take(&mut self.hit);
        let data = match fault {
            FaultKind::Crash => Data::Keep,
            FaultKind::Wipe => Data::Wipe,
            FaultKind::Clock | FaultKind::Ahead => return Ok("they stay there".to_owned()),
            FaultKind::ReadOnly => {
                let how = self.read_only.take().ok_or_else(|| unfit(fault))?;
                for at in &hit {
                    how.end(self.servers[*at].addr()).await?;
                }
                return Ok("they accept writes again".to_owned());
            }
            _ => return Err(unfit(fault)),
        };
        // Together, as they were stopped.
        let hit = self.servers.iter_mut().enumerate().filter(|(at, _)| hit.contains(at));
        let back = hit.map(|(_, server)| server.restart(data));
        futures_util::future::try_join_all(back).await?;
        Ok("all answer again".to_owned())
    }
}
