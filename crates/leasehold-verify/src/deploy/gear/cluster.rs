//! A Redis Cluster: three masters with a replica each, and a node that can join.
//!
//! A fault of one master spares the others: locks in their slots must not be lost
//! ([`Strike::spares`]).

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{self, Migration, slot_of};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::Hand;
use super::read_only::ReadOnly;
use super::redis::version;
use super::unfit;
use crate::deploy::lines::Lines;
use crate::deploy::{Setup, Strike, Trouble, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// How many masters share the slots.
const MASTERS: usize = 3;
/// How many slots there are.
const SLOTS: usize = 16_384;
/// The initial nodes: the masters, and a replica each.
const NODES: usize = MASTERS * 2;
/// Ends the wait for a cluster that does not recover.
const BOUND: Duration = leasehold_testbed::BOUND;
/// How long a master must be unreachable before it is replaced, for faults that replace it.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// The same for all other faults: longer than any of them.
const PATIENT: Duration = Duration::from_secs(30);

pub(in crate::deploy) struct Cluster {
    set: redis::Cluster,
    /// The address of the node that can join; the last in the order of all nodes.
    spare: Option<SocketAddr>,
    /// One per node, if they are to jump.
    clocks: Vec<Hand>,
    /// The locks of this run, as the workers name them, with their slots.
    locks: Vec<(String, u16)>,
    /// Additional locks that are held all the time.
    anchors: Vec<(String, u16)>,
    /// The master that was hit last, and one of its slots.
    hit: (usize, u16),
    /// Slots that are half-way.
    moving: Vec<Migration>,
    /// Slots to move back when the fault ends.
    away: Vec<(u16, usize)>,
    /// How long a node may be unreachable before the others replace it.
    patience: Duration,
    options: String,
    guard: bool,
    ttl: Duration,
}

impl Cluster {
    pub(super) async fn start(setup: &Setup) -> Result<Self, Trouble> {
        let mut each = redis::Redis::new();
        if setup.wants(FaultKind::Crash) {
            each = each.args(&["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let hands = (0..NODES).map(|_| Hand::wanted(setup, false));
        let clocks: Vec<Hand> = hands.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let patience = if setup.wants(FaultKind::Failover) { DOWN_AFTER } else { PATIENT };
        let node = |at: usize| clocks.get(at).iter().fold(each.clone(), |node, hand| node.clock(hand.clock()));
        let mut set = redis::Cluster::patient(MASTERS, NODES / MASTERS - 1, patience, node).await?;
        let spare = match setup.wants(FaultKind::Grow) {
            true => Some(set.start_spare(each).await?),
            false => None,
        };
        Ok(Self {
            set,
            spare,
            clocks,
            locks: Vec::new(),
            anchors: Vec::new(),
            hit: (0, 0),
            moving: Vec::new(),
            away: Vec::new(),
            patience,
            options: setup.options(),
            guard: setup.guard,
            ttl: setup.ttl,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("{}{}", self.set.url(), self.options)
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        let nodes = self.set.nodes().iter().take(NODES).map(Server::addr);
        nodes.chain(self.spare).collect()
    }

    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        Ok(vec![version(self.set.nodes()[0].addr()).await?])
    }

    /// A name per master, by the initial slots.
    pub(super) fn names(&mut self, base: &str, prefix: &str) -> Vec<String> {
        self.locks = spread(base, prefix);
        self.anchors.clear();
        self.locks.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The same for the additional locks.
    pub(super) fn anchors(&mut self, base: &str) -> Vec<String> {
        let more = spread(base, "");
        self.anchors.extend(more.iter().cloned());
        more.into_iter().map(|(name, _)| name).collect()
    }

    /// The owner of a slot; retried until a node answers.
    async fn owner(&self, slot: u16) -> Result<usize, Trouble> {
        Ok(try_eventually("owner of a slot", BOUND, || self.set.owner_of(slot)).await?)
    }

    /// A master with a lock of this run, and that lock's slot.
    async fn choose(&self, dice: &mut Dice) -> Result<(usize, u16), Trouble> {
        let slots: Vec<u16> = self.locks.iter().map(|(_, slot)| *slot).collect();
        let slot = dice.pick(&slots).copied().unwrap_or_default();
        Ok((self.owner(slot).await?, slot))
    }

    /// The locks in the slots of other masters.
    async fn elsewhere(&self) -> Result<Vec<String>, Trouble> {
        let mut elsewhere = Vec::new();
        for (name, slot) in self.locks.iter().chain(&self.anchors) {
            if self.owner(*slot).await? != self.hit.0 {
                elsewhere.push(name.clone());
            }
        }
        Ok(elsewhere)
    }

    fn all(&self) -> Vec<String> {
        self.locks.iter().chain(&self.anchors).map(|(name, _)| name.clone()).collect()
    }

    pub(super) async fn begin(
        &mut self,
        fault: FaultKind,
        lines: Option<&Lines>,
        dice: &mut Dice,
    ) -> Result<Strike, Trouble> {
        self.hit = self.choose(dice).await?;
        let ((hit, _), ttl) = (self.hit, self.ttl);
        let target = format!("{}, a master", words::server(hit, NODES));
        let elsewhere = self.elsewhere().await?;
        match fault {
            FaultKind::Crash => {
                silence(lines, hit, dice);
                self.set.kill_node(hit)?;
                let lasts = dice.time(Duration::ZERO, (ttl * 3 / 2).min(self.patience / 4));
                Ok(Strike::new(target, lasts).sparing(elsewhere))
            }
            FaultKind::Failover => Ok(self.fail_over(target, lines, dice).await?.sparing(elsewhere)),
            FaultKind::Hang => {
                self.set.nodes_mut()[hit].pause()?;
                let lasts = dice.time(ttl * 6 / 5, ttl * 5 / 2).min(self.patience / 2);
                Ok(Strike::new(target, lasts).sparing(elsewhere))
            }
            FaultKind::ReadOnly => {
                ReadOnly::TooFewReplicas.begin(self.set.nodes()[hit].addr()).await?;
                let target = format!("{target}: {}", ReadOnly::TooFewReplicas.about());
                Ok(Strike::new(target, dice.time(ttl, ttl * 3)).sparing(elsewhere))
            }
            FaultKind::Clock => {
                let hand = self.clocks.get_mut(hit).ok_or_else(|| unfit(fault))?;
                let jump = hand.jump(fault, dice)?;
                tokio::time::sleep(dice.time(ttl / 4, ttl / 2)).await;
                let to = self.move_away(dice).await?;
                let target = format!("{target}: {jump}; and its locks move to {}", words::server(to, NODES));
                Ok(Strike::new(target, dice.time(ttl / 2, ttl * 2)))
            }
            FaultKind::Reshard => self.reshard(dice).await,
            FaultKind::Grow => self.grow(dice).await,
            _ => Err(unfit(fault)),
        }
    }

    /// The master dies with grants that its replica does not have.
    async fn fail_over(&mut self, target: String, lines: Option<&Lines>, dice: &mut Dice) -> Result<Strike, Trouble> {
        let hit = self.hit.0;
        self.set.cut_replication(hit).await?;
        let a_while =
            if self.guard { dice.time(Duration::from_millis(300), Duration::from_millis(900)) } else { self.ttl };
        tokio::time::sleep(a_while).await;
        silence(lines, hit, dice);
        let killed = self.set.kill_node(hit);
        // In any case the replica must not stay paused.
        self.set.resume_replicas()?;
        killed?;
        Ok(Strike::new(target, dice.time(Duration::ZERO, Duration::from_millis(500))).served())
    }

    /// Moves the locks of the hit master to another, completely.
    async fn move_away(&mut self, dice: &mut Dice) -> Result<usize, Trouble> {
        let to = self.another(self.hit.0, dice).await?;
        for (_, slot) in self.locks.clone() {
            if self.owner(slot).await? == self.hit.0 {
                self.set.migrate_slot(slot, to).await?;
            }
        }
        Ok(to)
    }

    /// Another master that owns a slot of the locks, or an initial slot.
    async fn another(&self, than: usize, dice: &mut Dice) -> Result<usize, Trouble> {
        let mut masters = Vec::new();
        for share in 0..MASTERS {
            // The first slot of each third; it is unlikely to be a lock's.
            let owner = self.owner((share * SLOTS).div_ceil(MASTERS) as u16).await?;
            if owner != than && !masters.contains(&owner) {
                masters.push(owner);
            }
        }
        dice.pick(&masters).copied().ok_or_else(|| Trouble::new("the cluster has one master only"))
    }

    /// The locks' slots begin to move, and stay half-way for a while.
    async fn reshard(&mut self, dice: &mut Dice) -> Result<Strike, Trouble> {
        let ttl = self.ttl;
        let mut moved = Vec::new();
        for (_, slot) in self.locks.clone() {
            let to = self.another(self.owner(slot).await?, dice).await?;
            let migration = self.set.begin_migration(slot, to).await?;
            // A key that has moved needs `ASK`; one that has not is still in its old place.
            if dice.one_in(2) {
                self.set.move_keys(&migration).await?;
            }
            moved.push(format!("slot {slot} to {}", words::server(to, NODES)));
            self.moving.push(migration);
        }
        Ok(Strike::new(moved.join(", "), dice.time(ttl / 2, ttl * 2)).sparing(self.all()))
    }

    /// A node that no client knows joins, and gets the locks' slots.
    async fn grow(&mut self, dice: &mut Dice) -> Result<Strike, Trouble> {
        let joined = self.set.join_spare().await?;
        for (_, slot) in self.locks.clone() {
            self.away.push((slot, self.owner(slot).await?));
            self.set.migrate_slot(slot, joined).await?;
        }
        let lasts = dice.time(self.ttl / 2, self.ttl * 2);
        Ok(Strike::new("a new node, which gets the locks".to_owned(), lasts).sparing(self.all()))
    }

    /// Whether the replica has been promoted.
    pub(super) async fn others_serve(&self) -> bool {
        let (hit, slot) = self.hit;
        self.set.owner_of(slot).await.is_ok_and(|owner| owner != hit)
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let (hit, slot) = self.hit;
        match fault {
            FaultKind::Crash => {
                self.set.nodes_mut()[hit].restart(Data::Keep).await?;
                self.set.settled(BOUND).await?;
                Ok("it answers again".to_owned())
            }
            FaultKind::Failover => {
                let new = self.set.failed_over(slot, BOUND).await?;
                self.set.nodes_mut()[hit].restart(Data::Keep).await?;
                self.set.settled(BOUND).await?;
                Ok(format!("{} is a master now", words::server(new, NODES)))
            }
            FaultKind::Hang => {
                self.set.nodes_mut()[hit].resume()?;
                self.set.settled(BOUND).await?;
                Ok("it goes on".to_owned())
            }
            FaultKind::ReadOnly => {
                ReadOnly::TooFewReplicas.end(self.set.nodes()[hit].addr()).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::Clock => self.clocks.get(hit).map(Hand::note).ok_or_else(|| unfit(fault)),
            FaultKind::Reshard => {
                for migration in std::mem::take(&mut self.moving) {
                    self.set.finish_migration(migration).await?;
                }
                Ok("they have moved".to_owned())
            }
            FaultKind::Grow => {
                for (slot, home) in std::mem::take(&mut self.away) {
                    self.set.migrate_slot(slot, home).await?;
                }
                self.set.leave_last().await?;
                Ok("the slots are back, and the node has left".to_owned())
            }
            _ => Err(unfit(fault)),
        }
    }
}

/// Silences half of the connections to this node.
fn silence(lines: Option<&Lines>, node: usize, dice: &mut Dice) {
    if let Some(lines) = lines {
        lines.silence_half_of(node, dice);
    }
}

/// A name per master, and its slot, by the initial slots.
fn spread(base: &str, prefix: &str) -> Vec<(String, u16)> {
    let mut found: Vec<Option<(String, u16)>> = vec![None; MASTERS];
    for number in 1.. {
        let name = format!("{base}:{number}");
        let slot = slot_of(&format!("{prefix}{name}"));
        found[usize::from(slot) * MASTERS / SLOTS].get_or_insert((name, slot));
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_master_has_a_lock() {
        for base in ["verify:mutex:1", "verify:anchor:fenced:7:3"] {
            let shares: Vec<usize> =
                spread(base, "cron:").iter().map(|(_, slot)| usize::from(*slot) * MASTERS / SLOTS).collect();
            assert_eq!(shares, [0, 1, 2]);
        }
        let (name, slot) = spread("a", "cron:").remove(0);
        assert_eq!(slot, slot_of(&format!("cron:{name}")));
    }
}
