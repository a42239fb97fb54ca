//! One ZooKeeper, or an ensemble of three.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::zookeeper::{self, Ensemble};
use leasehold_testbed::{Data, Server};

use super::left::{self, Left};
use super::unfit;
use crate::deploy::{Setup, Strike, Trouble, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// How many members there are if one of them is hit.
const MEMBERS: usize = 3;
/// Ends the wait for members that do not recover.
const BOUND: Duration = leasehold_testbed::BOUND;
/// The parent path of the locks.
const PATH: &str = "/verify";

pub(in crate::deploy) struct Zookeeper {
    servers: Servers,
    hit: usize,
    ttl: Duration,
}

enum Servers {
    One(Server),
    Three(Ensemble),
}

impl Zookeeper {
    pub(super) async fn start(setup: &Setup) -> Result<Self, Trouble> {
        let hits_one = [FaultKind::Leader, FaultKind::Partition, FaultKind::Crash];
        let servers = if hits_one.iter().any(|fault| setup.wants(*fault)) {
            Servers::Three(Ensemble::start(MEMBERS).await?)
        } else {
            Servers::One(zookeeper::start().await?)
        };
        Ok(Self { servers, hit: 0, ttl: setup.ttl })
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.addrs().iter().map(SocketAddr::to_string).collect();
        format!("zookeeper://{}{PATH}", hosts.join(","))
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Servers::One(server) => vec![server.addr()],
            Servers::Three(ensemble) => ensemble.servers().iter().map(Server::addr).collect(),
        }
    }

    pub(super) async fn left(&self) -> Result<Left, Trouble> {
        left::nodes(&self.addrs(), PATH).await
    }

    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        let mut versions = Vec::new();
        for addr in self.addrs() {
            let answer = zookeeper::ask(addr, "srvr").await?;
            let line = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")).unwrap_or_default();
            let number = line.split(['-', ',']).next().unwrap_or_default();
            versions.push(format!("zookeeper {number}"));
        }
        versions.dedup();
        Ok(versions)
    }

    pub(super) async fn begin(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<Strike, Trouble> {
        let Servers::Three(ensemble) = &mut self.servers else { return Err(unfit(fault)) };
        let leader = ensemble.leader().await?;
        let any = dice.below(MEMBERS as u64) as usize;
        self.hit = match fault {
            FaultKind::Leader => leader,
            FaultKind::Partition if dice.one_in(2) => leader,
            _ => any,
        };
        let role = if self.hit == leader { ", the leader" } else { ", a follower" };
        let target = format!("{}{role}", words::server(self.hit, MEMBERS));
        match fault {
            FaultKind::Leader | FaultKind::Crash => {
                ensemble.server_mut(self.hit).kill()?;
                Ok(Strike::new(target, Strike::while_others_serve(self.ttl, dice)).served())
            }
            FaultKind::Partition => {
                ensemble.cut_off(self.hit);
                let target = format!("{target}: cut off from the others, and not from its clients");
                Ok(Strike::new(target, dice.time(self.ttl * 6 / 5, self.ttl * 5 / 2)).served())
            }
            _ => Err(unfit(fault)),
        }
    }

    /// Whether one of the members that were not hit leads: then a majority follows it.
    pub(super) async fn others_serve(&self) -> bool {
        for (at, addr) in self.addrs().into_iter().enumerate() {
            if at != self.hit && zookeeper::ask(addr, "srvr").await.is_ok_and(|answer| answer.contains("Mode: leader"))
            {
                return true;
            }
        }
        false
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let Servers::Three(ensemble) = &mut self.servers else { return Err(unfit(fault)) };
        match fault {
            FaultKind::Leader | FaultKind::Crash => ensemble.server_mut(self.hit).restart(Data::Keep).await?,
            FaultKind::Partition => ensemble.heal(self.hit),
            _ => return Err(unfit(fault)),
        }
        ensemble.settled(BOUND).await?;
        Ok(format!("{} leads now", words::server(ensemble.leader().await?, MEMBERS)))
    }
}
