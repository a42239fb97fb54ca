//! Which server has a lock: the single one, the master that the Sentinels name, or a node of the
//! cluster.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, ErrorKind as Native, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::config::{Address, Config, Topology};
use super::error;
use super::keys::{self, SLOTS};
use super::link::{Link, LinkListener, LiveConnection, Target};
use super::script::CachedScript;
use super::sentinel::Sentinels;
use super::values;
use crate::engine::Claim;
use crate::types::{Error, ErrorKind, Result};

/// How many redirects of the cluster a request follows at most.
const MAX_REDIRECTS: usize = 5;
/// How long to wait for one node's map before the next node is asked, too.
const HEAD_START: Duration = Duration::from_millis(100);
/// The shortest pause between two reads of the cluster's map.
const MAP_PAUSE: Duration = Duration::from_millis(100);

/// The servers.
#[derive(Debug)]
pub struct Nodes {
    routing: Routing,
}

#[derive(Debug)]
enum Routing {
    Single(Arc<Link>),
    Cluster(Arc<ClusterMap>, JoinHandle<()>),
}

/// The data needed to open a link.
#[derive(Clone)]
pub struct LinkFactory {
    pub config: Arc<Config>,
    pub scripts: Vec<Arc<CachedScript>>,
    /// Notified when a cluster's map is found to be wrong.
    pub map_stale: Arc<Notify>,
    pub inbox: String,
    /// Whether scripts need the server's run.
    pub needs_run_id: bool,
    pub listener: Arc<dyn LinkListener>,
}

impl LinkFactory {
    fn open_link(&self, target: Target) -> Arc<Link> {
        let owner = Arc::clone(&self.listener);
        Arc::new(Link::new(&self.config, target, &self.scripts, &self.inbox, self.needs_run_id, owner))
    }
}

/// A cluster's map, as far as this client knows it.
struct ClusterMap {
    link_factory: LinkFactory,
    seeds: Vec<Address>,
    slot_table: Mutex<SlotTable>,
}

#[derive(Default)]
struct SlotTable {
    /// Which node has each slot.
    slots: Vec<Option<Address>>,
    /// Whether a slot has moved since the owner was last notified.
    has_moved: bool,
    links: HashMap<Address, Arc<Link>>,
}

impl std::fmt::Debug for ClusterMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.slot_table().links.keys()).finish()
    }
}

impl Nodes {
    /// Connects.
    ///
    /// # Errors
    /// If no server responds.
    pub async fn open(link_factory: LinkFactory) -> Result<Self> {
        let nodes = Self::start(link_factory).await?;
        if let Routing::Single(link) = &nodes.routing {
            link.connection().await?;
        }
        Ok(nodes)
    }

    /// Begins to connect; waits only for a cluster's map.
    ///
    /// # Errors
    /// If no node of the cluster responds.
    pub async fn start(link_factory: LinkFactory) -> Result<Self> {
        let target = match &link_factory.config.topology {
            Topology::Single(address) => Target::Fixed(address.clone()),
            Topology::Sentinel(addresses, name) => Target::Master(Arc::new(Sentinels::new(addresses, name))),
            Topology::Cluster(seeds) => {
                let seeds = seeds.clone();
                let map = Arc::new(ClusterMap { link_factory, seeds, slot_table: Mutex::default() });
                map.refresh().await?;
                let task = tokio::spawn(refresh_when_stale(Arc::clone(&map)));
                return Ok(Self { routing: Routing::Cluster(map, task) });
            }
        };
        Ok(Self { routing: Routing::Single(link_factory.open_link(target)) })
    }

    /// The slot of a key; `None` without a cluster.
    pub fn slot(&self, key: &str) -> Option<u16> {
        matches!(self.routing, Routing::Cluster(..)).then(|| keys::slot(key))
    }

    /// The link to the server that has this slot.
    pub fn link(&self, slot: Option<u16>) -> Result<Arc<Link>> {
        match &self.routing {
            Routing::Single(link) => Ok(Arc::clone(link)),
            Routing::Cluster(map, _) => map.link(slot.unwrap_or_default()),
        }
    }

    /// Records that a claim's lease is due for renewal at the server that has its key.
    pub fn note_renewal_due(&self, key: &str, claim: &Claim) {
        if let Ok(link) = self.link(self.slot(key)) {
            link.note_renewal_due(claim.options.ttl, claim.deadline());
        }
    }

    /// Identifies the server that has this slot.
    pub fn server_id(&self, slot: Option<u16>) -> u64 {
        let Routing::Cluster(map, _) = &self.routing else { return 0 };
        let mut hasher = DefaultHasher::new();
        map.slot_table().slots.get(usize::from(slot.unwrap_or_default())).hash(&mut hasher);
        hasher.finish()
    }

    /// A link to every server that has locks.
    pub fn links(&self) -> Vec<Arc<Link>> {
        match &self.routing {
            Routing::Single(link) => vec![Arc::clone(link)],
            Routing::Cluster(map, _) => map.slot_table().links.values().cloned().collect(),
        }
    }

    /// The slots of the server at this address.
    pub fn slots_of(&self, address: &Address) -> Vec<u16> {
        match &self.routing {
            Routing::Single(_) => Vec::new(),
            Routing::Cluster(map, _) => map.slot_table().slots_of(address),
        }
    }

    /// A server is unreachable, or has become a replica: reads the map again.
    pub fn mark_stale(&self) {
        if let Routing::Cluster(map, _) = &self.routing {
            map.link_factory.map_stale.notify_one();
        }
    }

    /// Runs a script on the server that has the slot. `fill_command` adds the keys and the
    /// arguments, for this connection.
    pub async fn run_script(
        &self,
        slot: Option<u16>,
        script: &CachedScript,
        keys: usize,
        fill_command: &(dyn Fn(&mut Cmd, &LiveConnection) + Send + Sync),
    ) -> Result<(Value, LiveConnection)> {
        let mut link = self.link(slot)?;
        let mut is_asking = false;
        for _ in 0..MAX_REDIRECTS {
            let live = match link.connection().await {
                Ok(live) => live,
                Err(error) => {
                    self.mark_stale();
                    return Err(error);
                }
            };
            let filled = |command: &mut Cmd| fill_command(command, &live);
            let result = if is_asking {
                run_script_asking(&link, &live, script, keys, &filled).await
            } else {
                link.run_script(&live, script, keys, &filled).await
            };
            let cause = match result {
                Ok(value) => return Ok((value, live)),
                Err(cause) => cause,
            };
            match self.redirect_target(&cause, &live.address) {
                Some((next, only_once)) => (link, is_asking) = (next, only_once),
                None => return Err(error::step_error(&live.address, cause)),
            }
        }
        let message = "redirect loop: the nodes disagree on which one owns the slot; check CLUSTER NODES";
        Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME))
    }

    /// Which node the cluster redirects this client to, and whether for this request only.
    fn redirect_target(&self, cause: &RedisError, asked: &Address) -> Option<(Arc<Link>, bool)> {
        let Routing::Cluster(map, _) = &self.routing else { return None };
        let only_once = match cause.kind() {
            Native::Server(ServerErrorKind::Moved) => false,
            Native::Server(ServerErrorKind::Ask) => true,
            Native::Server(ServerErrorKind::ClusterDown | ServerErrorKind::ReadOnly) => {
                map.link_factory.map_stale.notify_one();
                return None;
            }
            Native::Server(_) => return None,
            _ => {
                map.link_factory.map_stale.notify_one();
                return None;
            }
        };
        let (location, slot) = cause.redirect_node()?;
        let (host, port) = location.rsplit_once(':')?;
        let address = Address { host: host_or_asked(host, asked), port: port.parse().ok()? };
        let mut places = map.slot_table();
        if !only_once {
            places.set(slot, &address);
            map.link_factory.map_stale.notify_one();
        }
        let link =
            places.links.entry(address.clone()).or_insert_with(|| map.link_factory.open_link(Target::Fixed(address)));
        Some((Arc::clone(link), only_once))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Routing::Cluster(_, task) = &self.routing {
            task.abort();
        }
    }
}

/// Runs a script on a node that is importing the slot, for one request.
async fn run_script_asking(
    link: &Link,
    live: &LiveConnection,
    script: &CachedScript,
    keys: usize,
    fill_command: &(dyn Fn(&mut Cmd) + Send + Sync),
) -> redis::RedisResult<Value> {
    let mut command = script.eval(keys);
    fill_command(&mut command);
    let mut pipeline = Pipeline::new();
    pipeline.cmd("ASKING").add_command(command);
    let mut last = Value::Nil;
    for answer in link.send_commands(live, &pipeline).await? {
        last = answer.extract_error().map_err(|cause| error::name_forbidden_command(cause, &script.script_load()))?;
    }
    Ok(last)
}

/// The host of a node, as a node names it. A node that does not know its own host name is the one
/// that was asked.
fn host_or_asked(host: &str, asked: &Address) -> String {
    match host.trim_matches(['[', ']']) {
        "" | "?" => asked.host.clone(),
        host => host.to_owned(),
    }
}

/// Reads the cluster's map again whenever it is found to be wrong.
async fn refresh_when_stale(map: Arc<ClusterMap>) {
    loop {
        map.link_factory.map_stale.notified().await;
        if let Err(error) = map.refresh().await {
            tracing::debug!(%error, "the cluster's map could not be read");
        }
        map.link_factory.config.clock.sleep(MAP_PAUSE).await;
    }
}

impl SlotTable {
    fn set(&mut self, slot: u16, address: &Address) {
        if let Some(slot_address) =
            self.slots.get_mut(usize::from(slot)).filter(|slot_address| slot_address.as_ref() != Some(address))
        {
            *slot_address = Some(address.clone());
            self.has_moved = true;
        }
    }

    fn slots_of(&self, address: &Address) -> Vec<u16> {
        (0..SLOTS)
            .filter(|slot| self.slots.get(usize::from(*slot)).is_some_and(|at| at.as_ref() == Some(address)))
            .collect()
    }
}

impl ClusterMap {
    fn slot_table(&self) -> MutexGuard<'_, SlotTable> {
        self.slot_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, slot: u16) -> Result<Arc<Link>> {
        let mut places = self.slot_table();
        let Some(address) = places.slots.get(usize::from(slot)).cloned().flatten() else {
            self.link_factory.map_stale.notify_one();
            let message = format!("no node of the cluster serves slot {slot} at present");
            return Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME));
        };
        let link =
            places.links.entry(address.clone()).or_insert_with(|| self.link_factory.open_link(Target::Fixed(address)));
        Ok(Arc::clone(link))
    }

    /// Requests the map from the known nodes, and then from the seeds; the first answer counts. A
    /// node that has lost contact with the others may have an old map. Its answer counts only if no
    /// other node has a better one.
    async fn refresh(&self) -> Result<()> {
        let mut known: Vec<Address> =
            self.slot_table().links.iter().filter(|(_, link)| link.is_up()).map(|(at, _)| at.clone()).collect();
        known.extend(self.seeds.iter().filter(|seed| !known.contains(seed)).cloned().collect::<Vec<_>>());
        let (mut failed, mut uncertain) = (None, None);
        let (mut next, mut asked) = (known.iter(), FuturesUnordered::new());
        loop {
            let more = next.next().map(|address| asked.push(self.fetch_map(address))).is_some();
            // A node that hangs does not delay the answers of the others.
            let timeout = if more { HEAD_START } else { Duration::MAX };
            let answer = match self.link_factory.config.clock.timeout(timeout, asked.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(_) => continue,
            };
            match answer {
                Ok((slots, true)) => {
                    self.adopt(slots);
                    return Ok(());
                }
                Ok((slots, false)) => uncertain = uncertain.or(Some(slots)),
                Err(error) => failed = Some(error),
            }
        }
        match (uncertain, failed) {
            // The present map is as good.
            (Some(slots), _) if self.slot_table().slots.is_empty() => {
                self.adopt(slots);
                Ok(())
            }
            (None, Some(error)) => Err(error),
            _ => Err(Error::new(ErrorKind::Unavailable, "no node of the cluster can reach the others").retryable()),
        }
    }

    /// A node's map, and whether the node reports the cluster's state as good.
    async fn fetch_map(&self, address: &Address) -> Result<(Vec<Option<Address>>, bool)> {
        let timeout = self.link_factory.config.connect_timeout;
        let reply = async {
            let mut connection = super::connect::to_node(&self.link_factory.config, address, None).await?;
            let mut pipeline = Pipeline::new();
            pipeline.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
            let answers = connection.send_packed_commands(&pipeline, 0, 2).await;
            let mut answers = answers.map_err(|cause| cluster_error(address, cause))?.into_iter();
            let slots = answers.next().unwrap_or(Value::Nil).extract_error();
            let slots = slots.map_err(|cause| cluster_error(address, cause))?;
            Ok((slots, answers.next().unwrap_or(Value::Nil)))
        };
        let answer = self.link_factory.config.clock.timeout(timeout, reply).await;
        let (slots, info) =
            answer.unwrap_or_else(|_| Err(error::unreachable(address, &format!("no answer within {timeout:?}"))))?;
        let slots = parse_slots(&slots, address).ok_or_else(|| error::unexpected_answer(address, &slots))?;
        if slots.iter().all(Option::is_none) {
            let message = format!("{address} serves no slots, and knows no node that does");
            return Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME));
        }
        // A node that may not report its state is trusted.
        let info: String = redis::from_redis_value(info).unwrap_or_default();
        Ok((slots, !info.contains("cluster_state:fail")))
    }

    /// Uses a new map: opens links to new nodes, and closes those to nodes without slots.
    fn adopt(&self, slots: Vec<Option<Address>>) {
        let mut places = self.slot_table();
        let moved = std::mem::take(&mut places.has_moved) || places.slots != slots && !places.slots.is_empty();
        places.slots = slots;
        let mut current: Vec<Address> = places.slots.iter().flatten().cloned().collect();
        current.sort();
        current.dedup();
        places.links.retain(|address, _| current.contains(address));
        for address in current {
            places.links.entry(address.clone()).or_insert_with(|| self.link_factory.open_link(Target::Fixed(address)));
        }
        drop(places);
        if moved {
            self.link_factory.listener.on_slots_moved();
        }
    }
}

fn cluster_error(address: &Address, cause: RedisError) -> Error {
    if cause.to_string().contains("cluster support disabled") {
        let message = format!("{address} is not a node of a cluster; for one server write redis://{address}");
        return Error::new(ErrorKind::InvalidUrl, message).at_engine(error::NAME);
    }
    error::step_error(address, cause)
}

/// The node of each slot, from `CLUSTER SLOTS`. A node that does not know its own address is the
/// one that was asked.
pub fn parse_slots(answer: &Value, asked: &Address) -> Option<Vec<Option<Address>>> {
    let Value::Array(ranges) = answer else { return None };
    let mut slots = vec![None; SLOTS.into()];
    for range in ranges {
        let Value::Array(parts) = range else { return None };
        let [from, to, master, ..] = &parts[..] else { return None };
        let Value::Array(master) = master else { return None };
        let host = master.first().and_then(values::bytes).map(String::from_utf8_lossy).unwrap_or_default();
        let host = host_or_asked(&host, asked);
        let port = master.get(1).and_then(values::integer)?.try_into().ok()?;
        let (from, to) = (values::integer(from)?.try_into().ok()?, values::integer(to)?.try_into().ok()?);
        slots.get_mut::<std::ops::RangeInclusive<usize>>(from..=to)?.fill(Some(Address { host, port }));
    }
    Some(slots)
}
