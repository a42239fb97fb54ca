//! A Redis Cluster: three masters with a replica each, and a node that can join.
//!
//! A fault of one master must not lose locks in the slots of the others: they are the fault's
//! [`ActiveFault::unaffected_locks`].

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::redis::{self, Migration, slot_of};
use leasehold_testbed::{Data, Server, try_eventually};

use super::clock::ServerClock;
use super::read_only::ReadOnlyCause;
use super::redis::server_version;
use super::unsupported_fault;
use crate::deployment::network::Network;
use crate::deployment::{ActiveFault, DeploymentOptions, RunError, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// How many masters share the slots.
const MASTERS: usize = 3;
/// How many slots there are.
const SLOTS: usize = 16_384;
/// How many nodes there are at the start: the masters, and a replica each.
const NODES: usize = MASTERS * 2;
/// The longest wait for the cluster to recover.
const RECOVERY_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// How long a master must be unreachable before it is replaced, for faults that replace it.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// How long a master must be unreachable before it is replaced, for faults that must not replace
/// it: longer than any of them.
const LONG_DOWN_AFTER: Duration = Duration::from_secs(30);

/// A Redis Cluster of three masters with a replica each.
pub(in crate::deployment) struct ClusterServers {
    cluster: redis::Cluster,
    /// The address of the node that the fault `grow` lets join; `None`: there is none.
    spare_addr: Option<SocketAddr>,
    /// The wall clock of each node; empty: no fault moves them.
    node_clocks: Vec<ServerClock>,
    /// The locks of this run: the workers' names for them, and their slots.
    lock_slots: Vec<(String, u16)>,
    /// The anchor locks, which are held during the whole run: their names and slots.
    anchor_slots: Vec<(String, u16)>,
    /// The index of the master that was hit last, and a lock's slot that it owned.
    target_master: (usize, u16),
    /// The moves of slots that have begun and not finished.
    migrations: Vec<Migration>,
    /// The slots to move back when the fault ends, each with the index of its former master.
    moved_slots: Vec<(u16, usize)>,
    /// How long a node may be unreachable before the others replace it.
    down_after: Duration,
    /// The options of the URL, with their `?`.
    options: String,
    has_safeguards: bool,
    ttl: Duration,
}

impl ClusterServers {
    pub(super) async fn start(options: &DeploymentOptions) -> Result<Self, RunError> {
        let mut node_template = redis::Redis::new();
        if options.has_fault(FaultKind::Crash) {
            node_template = node_template.args(&["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let clocks = (0..NODES).map(|_| ServerClock::for_options(options, false));
        let clocks: Vec<ServerClock> = clocks.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let down_after = if options.has_fault(FaultKind::Failover) { DOWN_AFTER } else { LONG_DOWN_AFTER };
        let node =
            |at: usize| clocks.get(at).iter().fold(node_template.clone(), |node, clock| node.clock(clock.clock()));
        let mut set = redis::Cluster::start_with_node_timeout(MASTERS, NODES / MASTERS - 1, down_after, node).await?;
        let spare = match options.has_fault(FaultKind::Grow) {
            true => Some(set.start_spare_node(node_template).await?),
            false => None,
        };
        Ok(Self {
            cluster: set,
            spare_addr: spare,
            node_clocks: clocks,
            lock_slots: Vec::new(),
            anchor_slots: Vec::new(),
            target_master: (0, 0),
            migrations: Vec::new(),
            moved_slots: Vec::new(),
            down_after,
            options: options.url_options(),
            has_safeguards: options.has_safeguards,
            ttl: options.ttl,
        })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        format!("{}{}", self.cluster.url(), self.options)
    }

    /// The addresses of the servers that get a proxy.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        let nodes = self.cluster.nodes().iter().take(NODES).map(Server::addr);
        nodes.chain(self.spare_addr).collect()
    }

    /// The versions that the servers report, such as `redis-server 7.0.15`.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        Ok(vec![server_version(self.cluster.nodes()[0].addr()).await?])
    }

    /// Names for the run's locks, one on each master, by the initial slots.
    pub(super) fn lock_names(&mut self, base: &str, prefix: &str) -> Vec<String> {
        self.lock_slots = names_per_master(base, prefix);
        self.anchor_slots.clear();
        self.lock_slots.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Names for anchor locks, one on each master, by the initial slots.
    pub(super) fn anchor_names(&mut self, base: &str) -> Vec<String> {
        let anchors = names_per_master(base, "");
        self.anchor_slots.extend(anchors.iter().cloned());
        anchors.into_iter().map(|(name, _)| name).collect()
    }

    /// The index of the master that owns a slot; retried until a node answers.
    async fn slot_owner(&self, slot: u16) -> Result<usize, RunError> {
        Ok(try_eventually("owner of a slot", RECOVERY_TIMEOUT, || self.cluster.owner_of(slot)).await?)
    }

    /// The index of a random master with a lock of this run, and that lock's slot.
    async fn choose_master(&self, rng: &mut Rng) -> Result<(usize, u16), RunError> {
        let slots: Vec<u16> = self.lock_slots.iter().map(|(_, slot)| *slot).collect();
        let slot = rng.choose(&slots).copied().unwrap_or_default();
        Ok((self.slot_owner(slot).await?, slot))
    }

    /// The names of the locks that are not on the master that was hit.
    async fn locks_elsewhere(&self) -> Result<Vec<String>, RunError> {
        let mut elsewhere = Vec::new();
        for (name, slot) in self.lock_slots.iter().chain(&self.anchor_slots) {
            if self.slot_owner(*slot).await? != self.target_master.0 {
                elsewhere.push(name.clone());
            }
        }
        Ok(elsewhere)
    }

    /// The names of the run's locks and anchor locks.
    fn all_locks(&self) -> Vec<String> {
        self.lock_slots.iter().chain(&self.anchor_slots).map(|(name, _)| name.clone()).collect()
    }

    /// Begins a fault. Fails if these servers cannot have it.
    pub(super) async fn begin_fault(
        &mut self,
        fault: FaultKind,
        network: Option<&Network>,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        self.target_master = self.choose_master(rng).await?;
        let ((hit, _), ttl) = (self.target_master, self.ttl);
        let target = format!("{}, a master", format::server_name(hit, NODES));
        let elsewhere = self.locks_elsewhere().await?;
        match fault {
            FaultKind::Crash => {
                silence_half_of_server(network, hit, rng);
                self.cluster.kill_node(hit)?;
                let duration = rng.duration_in(Duration::ZERO, (ttl * 3 / 2).min(self.down_after / 4));
                Ok(ActiveFault::new(target, duration).with_unaffected_locks(elsewhere))
            }
            FaultKind::Failover => Ok(self.fail_over(target, network, rng).await?.with_unaffected_locks(elsewhere)),
            FaultKind::Hang => {
                self.cluster.nodes_mut()[hit].pause()?;
                let duration = rng.duration_in(ttl * 6 / 5, ttl * 5 / 2).min(self.down_after / 2);
                Ok(ActiveFault::new(target, duration).with_unaffected_locks(elsewhere))
            }
            FaultKind::ReadOnly => {
                ReadOnlyCause::TooFewReplicas.apply(self.cluster.nodes()[hit].addr()).await?;
                let target = format!("{target}: {}", ReadOnlyCause::TooFewReplicas.description());
                Ok(ActiveFault::new(target, rng.duration_in(ttl, ttl * 3)).with_unaffected_locks(elsewhere))
            }
            FaultKind::Clock => {
                let clock = self.node_clocks.get_mut(hit).ok_or_else(|| unsupported_fault(fault))?;
                let jump = clock.jump(fault, rng)?;
                tokio::time::sleep(rng.duration_in(ttl / 4, ttl / 2)).await;
                let to = self.move_locks_away(rng).await?;
                let target = format!("{target}: {jump}; and its locks move to {}", format::server_name(to, NODES));
                Ok(ActiveFault::new(target, rng.duration_in(ttl / 2, ttl * 2)))
            }
            FaultKind::Reshard => self.reshard(rng).await,
            FaultKind::Grow => self.grow(rng).await,
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Kills the master after it made grants that its replica does not have.
    async fn fail_over(
        &mut self,
        target: String,
        network: Option<&Network>,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        let hit = self.target_master.0;
        self.cluster.cut_replication(hit).await?;
        let a_while = if self.has_safeguards {
            rng.duration_in(Duration::from_millis(300), Duration::from_millis(900))
        } else {
            self.ttl
        };
        tokio::time::sleep(a_while).await;
        silence_half_of_server(network, hit, rng);
        let killed = self.cluster.kill_node(hit);
        // The replica must resume even if the kill failed.
        self.cluster.resume_replicas()?;
        killed?;
        Ok(ActiveFault::new(target, rng.duration_in(Duration::ZERO, Duration::from_millis(500))).with_others_serving())
    }

    /// Moves all locks of the master that was hit to another one; returns the index of the latter.
    async fn move_locks_away(&mut self, rng: &mut Rng) -> Result<usize, RunError> {
        let to = self.another_master(self.target_master.0, rng).await?;
        for (_, slot) in self.lock_slots.clone() {
            if self.slot_owner(slot).await? == self.target_master.0 {
                self.cluster.migrate_slot(slot, to).await?;
            }
        }
        Ok(to)
    }

    /// The index of a random master other than `excluded`.
    async fn another_master(&self, excluded: usize, rng: &mut Rng) -> Result<usize, RunError> {
        let mut masters = Vec::new();
        for share in 0..MASTERS {
            // The owner of the first slot of each third. A fault is unlikely to have moved that
            // slot.
            let owner = self.slot_owner((share * SLOTS).div_ceil(MASTERS) as u16).await?;
            if owner != excluded && !masters.contains(&owner) {
                masters.push(owner);
            }
        }
        rng.choose(&masters).copied().ok_or_else(|| RunError::transient("the cluster has only one master"))
    }

    /// Begins to move the locks' slots to other masters, and leaves them between both for a while.
    async fn reshard(&mut self, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        let ttl = self.ttl;
        let mut moved = Vec::new();
        for (_, slot) in self.lock_slots.clone() {
            let to = self.another_master(self.slot_owner(slot).await?, rng).await?;
            let migration = self.cluster.begin_migration(slot, to).await?;
            // Half of the slots' keys move at once: clients are redirected to them with `ASK`.
            if rng.one_in(2) {
                self.cluster.move_keys(&migration).await?;
            }
            moved.push(format!("slot {slot} to {}", format::server_name(to, NODES)));
            self.migrations.push(migration);
        }
        Ok(ActiveFault::new(moved.join(", "), rng.duration_in(ttl / 2, ttl * 2))
            .with_unaffected_locks(self.all_locks()))
    }

    /// Lets a node join that no client knows, and moves the locks' slots to it.
    async fn grow(&mut self, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        let joined = self.cluster.join_spare_node().await?;
        for (_, slot) in self.lock_slots.clone() {
            self.moved_slots.push((slot, self.slot_owner(slot).await?));
            self.cluster.migrate_slot(slot, joined).await?;
        }
        let duration = rng.duration_in(self.ttl / 2, self.ttl * 2);
        Ok(ActiveFault::new("a new node, which gets the locks".to_owned(), duration)
            .with_unaffected_locks(self.all_locks()))
    }

    /// Whether another node owns the slot of the master that was hit.
    pub(super) async fn can_others_serve(&self) -> bool {
        let (hit, slot) = self.target_master;
        self.cluster.owner_of(slot).await.is_ok_and(|owner| owner != hit)
    }

    /// Ends the active fault, and waits until the servers respond. Returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let (hit, slot) = self.target_master;
        match fault {
            FaultKind::Crash => {
                self.cluster.nodes_mut()[hit].restart(Data::Keep).await?;
                self.cluster.wait_until_settled(RECOVERY_TIMEOUT).await?;
                Ok("it responds again".to_owned())
            }
            FaultKind::Failover => {
                let new = self.cluster.wait_for_failover(slot, RECOVERY_TIMEOUT).await?;
                self.cluster.nodes_mut()[hit].restart(Data::Keep).await?;
                self.cluster.wait_until_settled(RECOVERY_TIMEOUT).await?;
                Ok(format!("{} is a master now", format::server_name(new, NODES)))
            }
            FaultKind::Hang => {
                self.cluster.nodes_mut()[hit].resume()?;
                self.cluster.wait_until_settled(RECOVERY_TIMEOUT).await?;
                Ok("it is running again".to_owned())
            }
            FaultKind::ReadOnly => {
                ReadOnlyCause::TooFewReplicas.revert(self.cluster.nodes()[hit].addr()).await?;
                Ok("it accepts writes again".to_owned())
            }
            FaultKind::Clock => {
                self.node_clocks.get(hit).map(ServerClock::offset_note).ok_or_else(|| unsupported_fault(fault))
            }
            FaultKind::Reshard => {
                for migration in std::mem::take(&mut self.migrations) {
                    self.cluster.finish_migration(migration).await?;
                }
                Ok("they have moved".to_owned())
            }
            FaultKind::Grow => {
                for (slot, home) in std::mem::take(&mut self.moved_slots) {
                    self.cluster.migrate_slot(slot, home).await?;
                }
                self.cluster.remove_last_node().await?;
                Ok("the slots are back, and the node has left".to_owned())
            }
            _ => Err(unsupported_fault(fault)),
        }
    }
}

/// Makes half of the connections to this node pass no more data, without closing them.
fn silence_half_of_server(network: Option<&Network>, node: usize, rng: &mut Rng) {
    if let Some(network) = network {
        network.silence_half_of_server(node, rng);
    }
}

/// Makes a lock name for each master from `base`, with its slot, by the initial slots. `prefix` is
/// what the engine puts before each name.
fn names_per_master(base: &str, prefix: &str) -> Vec<(String, u16)> {
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
                names_per_master(base, "cron:").iter().map(|(_, slot)| usize::from(*slot) * MASTERS / SLOTS).collect();
            assert_eq!(shares, [0, 1, 2]);
        }
        let (name, slot) = names_per_master("a", "cron:").remove(0);
        assert_eq!(slot, slot_of(&format!("cron:{name}")));
    }
}
