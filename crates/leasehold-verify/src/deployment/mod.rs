//! The engine of a run, and the faults that its servers and its network can have.
//!
//! | | |
//! |---|---|
//! | [`Deployment::start`] | our own real servers ([`LocalEngine`]): every fault that the engine can have |
//! | [`Deployment::remote`] | the user's servers: proxies before them, and never a fault on them |
//!
//! Proxies between the workers and the servers, one per server, cause the faults of the network:
//! real connections that are cut, delayed or silenced. For *partition*, as root, the workers have
//! their own network namespace, with a wire to each proxy, and the wire is disconnected
//! ([`leasehold_testbed::VirtualLinks`]). Otherwise, and where Sentinels name addresses or
//! ZooKeeper runs as an ensemble, the proxy goes silent. In an ensemble, *partition* mostly cuts
//! one member off from the others, and not from its clients, which is the harder case; proxies
//! between the members do that. Otherwise it cuts the workers off from one member, or from all.
//!
//! | fault | action | in a negative control |
//! |---|---|---|
//! | cut | connections are cut repeatedly | |
//! | lost-reply | a request arrives and its connection is cut before the reply; or no reply arrives at all | |
//! | delay | both directions are delayed, mostly within a call's timeout | |
//! | duplicate | a request arrives twice, and its connection is cut before the first reply: a client could take the second for that of its next request | |
//! | partition | silence for longer than the TTL: of the server; of a minority of Redlock's nodes; see above for ZooKeeper | |
//! | crash | SIGKILL, and a restart with the data, which was on disk before it was acknowledged | |
//! | wipe | SIGKILL, and a restart without the data; the URL has `strict`; of Redlock's nodes, one or two, or [a majority](Deployment::hit_majority_next) | no `strict`; of Redlock's nodes, a majority |
//! | failover | the replica is cut off, the master continues and is killed, the replica is promoted; the URL has `strict` | no `strict` |
//! | leader | SIGKILL of the leader | |
//! | clock | the server's wall clock is set back, and stays there; of Redlock's nodes, one or two. In a set with replicas, the master's alone: with `replicas`, a replica whose clock was not set back then replaces it; in a cluster, its slots move to such a master | ahead; of Redlock's nodes, a majority |
//! | ahead | the server's wall clock jumps ahead; of Redlock's nodes, one or two: two may then hold a lock, and their tokens distinguish them | |
//! | evict | no memory, and `noeviction`: clean errors | `volatile-ttl`: locks are evicted |
//! | disk-full | the data folder's own small disk is filled up | |
//! | read-only | a server refuses writes; of Redlock's nodes, one or two | |
//! | hang | one master of a cluster is stopped (SIGSTOP), more briefly than the others take to notice | |
//! | reshard | the slots of the locks move to other masters, and stay half-way for a while | |
//! | grow | a node joins a cluster and gets the slots of the locks; then they move back, and it leaves | |
//!
//! With crash, wipe and failover half of the connections go silent instead of closing, as in a
//! power failure. Their clients notice it only when their calls time out, while the restarted
//! server serves others. Sentinels report the master's address; proxies before the Sentinels
//! replace it with our proxy's.
//!
//! All choices come from the [`Rng`] that the caller passes.

mod engine_url;
mod format;
mod local_engine;
mod network;
mod remote;
mod run_error;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

pub use self::local_engine::{LocalEngine, UrlOption};
pub use self::remote::supported_faults;
pub use self::run_error::RunError;

use self::engine_url::EngineUrl;
use self::local_engine::{FaultDomain, fault_domain};
use self::network::Network;
use self::servers::LocalServers;
use crate::guarantees::Conditions;
use crate::history::FaultKind;
use crate::rng::Rng;
use crate::verdict::Guarantee;

/// How often to check whether other servers have taken over.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The conditions of a run.
#[derive(Clone, Debug)]
pub struct DeploymentOptions {
    /// All faults that may happen.
    pub faults: Vec<FaultKind>,
    /// Whether the safeguards are on.
    pub has_safeguards: bool,
    /// The longest lease.
    pub ttl: Duration,
    /// Whether workers are started with [`Deployment::worker_command_prefix`], and so can have
    /// their own network.
    pub isolates_workers: bool,
    /// The URL option that guards against data loss; `None`: the one that the faults need.
    pub option: Option<UrlOption>,
}

impl DeploymentOptions {
    /// Whether this fault may happen.
    fn has_fault(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether partitions pull wires, if the wires can be set up.
    fn uses_links(&self) -> bool {
        self.isolates_workers && self.has_fault(FaultKind::Partition)
    }

    /// The faults of one side.
    fn faults_in(&self, domain: FaultDomain) -> impl Iterator<Item = FaultKind> {
        self.faults.iter().copied().filter(move |fault| fault_domain(*fault) == domain)
    }

    /// The options of the engine's URL. If servers lose data: `strict`. `replicas=1` would keep
    /// exclusion, too. But it grants nothing while the replica lags, so no lock would be at risk.
    fn url_options(&self) -> String {
        let forgets = self.has_fault(FaultKind::Wipe) || self.has_fault(FaultKind::Failover);
        match self.option.or(forgets.then_some(UrlOption::Strict)).filter(|_| self.has_safeguards) {
            None => String::new(),
            Some(UrlOption::Strict) => format!("?strict={}ms", self.ttl.as_millis()),
            Some(UrlOption::Replicas) => "?replicas=1".to_owned(),
        }
    }
}

/// A fault that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveFault {
    /// Its target.
    pub target: String,
    /// When to call [`Deployment::end_fault`], from its beginning.
    pub duration: Duration,
    /// Whether servers that it does not hit can serve in the meantime: a majority of the voters, or
    /// a promoted server.
    pub others_can_serve: bool,
    /// The locks that it must not affect: those on servers that it does not hit.
    pub unaffected_locks: Vec<String>,
}

impl ActiveFault {
    fn new(target: String, duration: Duration) -> Self {
        Self { target, duration, others_can_serve: false, unaffected_locks: Vec::new() }
    }

    /// The locks that it must not affect.
    fn with_unaffected_locks(self, spares: Vec<String>) -> Self {
        Self { unaffected_locks: spares, ..self }
    }

    /// Other servers can serve in the meantime.
    fn with_others_serving(self) -> Self {
        Self { others_can_serve: true, ..self }
    }

    /// How long servers are down if the others can serve meanwhile: sometimes longer than the
    /// others may take until they serve.
    fn outage_duration(ttl: Duration, rng: &mut Rng) -> Duration {
        if rng.one_in(6) { Self::long_outage(ttl) } else { rng.duration_in(Duration::ZERO, ttl * 3 / 2) }
    }

    /// Longer than a server may take to serve in place of another.
    fn long_outage(ttl: Duration) -> Duration {
        ttl * 2 + Duration::from_secs(7)
    }

    /// The longest duration of such a fault.
    pub fn max_duration(&self, ttl: Duration) -> Duration {
        if self.others_can_serve { Self::long_outage(ttl).max(ttl * 3) } else { ttl * 3 }
    }
}

/// An engine with its proxies. Dropping it stops everything that was started.
pub struct Deployment {
    // Connections must close before their servers stop: fields drop in this order.
    network: Option<Network>,
    servers: LocalServers,
    engine: String,
    url: String,
    direct_url: String,
    versions: Vec<String>,
    options: DeploymentOptions,
    /// The servers that may be hit where servers vote.
    minority: Option<Vec<usize>>,
    /// The active faults, and whether each hits the servers, and not the connections.
    active_faults: BTreeMap<FaultKind, bool>,
}

impl Deployment {
    /// Starts as many real servers as these faults need, and waits until they respond.
    ///
    /// # Errors
    /// If a fault cannot be caused there; if a server is not installed, or does not start.
    pub async fn start(local: LocalEngine, options: &DeploymentOptions) -> Result<Self, RunError> {
        for fault in &options.faults {
            local.check_fault(*fault).map_err(RunError::new)?;
        }
        if let Some(option) = options.option {
            local.check_option(option).map_err(RunError::usage)?;
        }
        let local_servers = LocalServers::start(local, options).await?;
        let own_url = local_servers.url();
        let (mut network, mut url) = (None, own_url.clone());
        let servers = local_servers.addrs();
        if !servers.is_empty() && options.faults.iter().any(|fault| fault_domain(*fault) != FaultDomain::Worker) {
            let discovery_addrs = local_servers.discovery_servers();
            // Servers that redirect clients name addresses which are unknown in that network.
            let uses_our_addresses = discovery_addrs.is_empty() && !local_servers.redirect_clients();
            let isolated =
                uses_our_addresses && !local_servers.handles_fault(FaultKind::Partition) && options.uses_links();
            let mut proxies = Network::start(&servers, local.as_str(), options.ttl, isolated).await?;
            proxies.add_discovery_proxies(&discovery_addrs, &servers).await?;
            if local_servers.redirect_clients() {
                proxies.translate_redirects(&servers)?;
            }
            url = EngineUrl::parse(&own_url)?.with_servers(&proxies.entry_addrs());
            network = Some(proxies);
        }
        let versions = local_servers.versions().await?;
        let engine = local.as_str().to_owned();
        Ok(Self::from_parts(engine, local_servers, network, (url, own_url), versions, options))
    }

    /// Connects to the user's own deployment, through proxies if its network is to be disturbed.
    /// Its servers are never touched.
    ///
    /// # Errors
    /// If a fault would have to be caused on the servers; if a proxy before them is impossible; if
    /// they are unreachable.
    pub async fn remote(url: &str, options: &DeploymentOptions) -> Result<Self, RunError> {
        let address = EngineUrl::parse(url)?;
        let servers = remote::resolve_servers(&address, options).await?;
        let (mut lines, mut through) = (None, url.to_owned());
        if !servers.is_empty() {
            let before = Network::start(&servers, &address.scheme, options.ttl, options.uses_links()).await?;
            through = address.with_servers(&before.entry_addrs());
            lines = Some(before);
        }
        let urls = (through, url.to_owned());
        Ok(Self::from_parts(address.scheme, LocalServers::None, lines, urls, Vec::new(), options))
    }

    fn from_parts(
        engine: String,
        servers: LocalServers,
        network: Option<Network>,
        (url, own_url): (String, String),
        versions: Vec<String>,
        options: &DeploymentOptions,
    ) -> Self {
        let setup = options.clone();
        Self {
            network,
            servers,
            engine,
            url,
            direct_url: own_url,
            versions,
            options: setup,
            minority: None,
            active_faults: BTreeMap::new(),
        }
    }

    /// The URL for workers: through the proxies. It contains the passwords.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL for inspections: past the proxies. It contains the passwords.
    pub fn direct_url(&self) -> &str {
        &self.direct_url
    }

    /// The engine: `redis`, `zookeeper`, …
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The versions of the servers that were started here, such as `redis-server 7.0.15`; the
    /// user's own servers are not queried.
    pub fn versions(&self) -> Vec<String> {
        self.versions.clone()
    }

    /// The prefix of a worker's command that puts it into the network where [`url`](Self::url) is
    /// reachable.
    pub fn worker_command_prefix(&self) -> Vec<String> {
        self.network.as_ref().map(Network::worker_command_prefix).unwrap_or_default()
    }

    /// Names for `count` locks. In a cluster they are spread over all masters; `prefix` is what the
    /// engine puts before each.
    pub fn lock_names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        self.servers.lock_names(base, prefix, count)
    }

    /// Names for locks, one on each master of a cluster; none elsewhere. They count as locks of the
    /// run.
    pub fn anchor_names(&mut self, base: &str) -> Vec<String> {
        self.servers.anchor_names(base)
    }

    /// How many connections the servers have accepted so far, if there are proxies before them.
    pub fn connections(&self) -> Option<u64> {
        self.network.as_ref().map(Network::accepted_connections)
    }

    /// Whether tokens rise under all faults of this run, by the table of guarantees.
    pub fn guarantees_tokens(&self) -> bool {
        self.conditions().is_guaranteed(Guarantee::Tokens)
    }

    /// Whether exclusion holds under all faults of this run, by the same table.
    pub fn guarantees_exclusion(&self) -> bool {
        // A safeguard that a control turns off counts as on: the checker must detect the control.
        self.conditions().is_guaranteed(Guarantee::Exclusion)
    }

    fn conditions(&self) -> Conditions<'_> {
        let has = |option: &str| !self.options.has_safeguards || self.direct_url.contains(option);
        let (strict, replicas) = (has("strict="), has("replicas="));
        Conditions { engine: &self.engine, is_strict: strict, awaits_replicas: replicas, faults: &self.options.faults }
    }

    /// A description of the control if the guard is off; `None` if it is on, or if nothing here
    /// depends on it.
    pub fn control_description(&self) -> Option<String> {
        if self.options.has_safeguards {
            return None;
        }
        let redlock = self.engine == "redlock";
        let words = self.options.faults.iter().filter_map(|fault| match fault {
            FaultKind::Wipe if redlock => Some("a majority of the servers loses its data, without strict"),
            FaultKind::Wipe | FaultKind::Failover => {
                Some("servers that lost their data grant locks at once, without strict")
            }
            FaultKind::Clock if redlock => Some("the clocks of a majority jump ahead"),
            FaultKind::Clock => Some("the server's clock jumps ahead"),
            FaultKind::Evict => Some("the server evicts locks, with volatile-ttl"),
            _ => None,
        });
        let words: BTreeSet<&str> = words.collect();
        (!words.is_empty()).then(|| words.into_iter().collect::<Vec<_>>().join("; "))
    }

    /// If servers vote, makes the next fault of this kind hit a majority of them, as it does with
    /// the guard off. `false`: it cannot. Only a loss of data may hit a majority: `strict` guards
    /// against it.
    pub fn hit_majority_next(&mut self, fault: FaultKind) -> bool {
        self.servers.hit_majority_next(fault)
    }

    /// Begins a fault of the servers or of the network. Faults of workers (kill, stop) do not begin
    /// here. While one server fault is active, no other can begin.
    ///
    /// # Errors
    /// If it was not in the [`DeploymentOptions`], or conflicts with an active fault, or cannot be
    /// caused.
    pub async fn begin_fault(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        if fault_domain(fault) == FaultDomain::Worker {
            return Err(RunError::new(format!("{fault} is a fault of workers, not of the deployment")));
        }
        if !self.options.has_fault(fault) {
            return Err(RunError::new(format!("{fault} was not among the faults at the start")));
        }
        // Where a member can be cut off from the others, the workers can also be cut off from the
        // servers.
        let on_servers = self.is_server_fault(fault) && !(fault == FaultKind::Partition && rng.one_in(3));
        let other = self.active_faults.iter().find(|(other, theirs)| **other == fault || (on_servers && **theirs));
        if let Some((other, _)) = other {
            return Err(RunError::new(format!("{fault} cannot begin: {other} has not ended")));
        }
        let minority = self.minority(rng);
        let active_fault = match &mut self.network {
            Some(lines) if !on_servers => lines.begin_fault(fault, &minority, rng)?,
            lines => {
                self.servers.begin_fault(fault, &minority, lines.as_ref(), self.options.has_safeguards, rng).await?
            }
        };
        self.active_faults.insert(fault, on_servers);
        Ok(active_fault)
    }

    /// Waits until servers that this fault does not hit can serve; without such servers, forever.
    pub async fn wait_for_others_to_serve(&self, fault: FaultKind) {
        // If only connections are hit, the servers can serve all the time.
        while self.active_faults.get(&fault) == Some(&true) && !self.servers.can_others_serve().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends a fault: heals, restarts, and returns when the servers respond again. The note
    /// describes the result.
    ///
    /// # Errors
    /// If the fault had not begun; if a server does not recover.
    pub async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let Some(on_servers) = self.active_faults.remove(&fault) else {
            return Err(RunError::new(format!("{fault} had not begun")));
        };
        match &mut self.network {
            Some(lines) if !on_servers => lines.end_fault(fault),
            _ => self.servers.end_fault(fault).await,
        }
    }

    /// Marks the beginning of a run: from now on, only faults [begun](Self::begin_fault) here may
    /// affect the servers.
    ///
    /// # Errors
    /// If the servers do not report their state.
    pub async fn save_baseline(&mut self) -> Result<(), RunError> {
        self.servers.save_baseline().await
    }

    /// Checks that only those faults have affected the servers since.
    ///
    /// # Errors
    /// If Sentinels replaced a master that had no processor time to respond: such a run cannot be
    /// judged.
    pub async fn check_no_foreign_failover(&self) -> Result<(), RunError> {
        self.servers.check_no_foreign_failover().await
    }

    /// What servers that were started here still store after all workers have ended: keys that
    /// never expire, claims to these locks on any of Redlock's servers, ZooKeeper's ephemeral
    /// nodes. Returns the place and the item. In a negative control nothing is checked, because
    /// other users' locks may be there.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn leftovers(&self, locks: &[String]) -> Result<Vec<(String, String)>, RunError> {
        if self.options.has_safeguards { self.servers.leftovers(locks).await } else { Ok(Vec::new()) }
    }

    /// Sessions that databases which were started here still have after all clients have ended.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn leftover_sessions(&self) -> Result<Vec<(String, String)>, RunError> {
        // With this fault, half of the connections stay silent, and our proxies keep them open.
        if self.options.has_fault(FaultKind::Ahead) { Ok(Vec::new()) } else { self.servers.sessions().await }
    }

    fn is_server_fault(&self, fault: FaultKind) -> bool {
        fault_domain(fault) == FaultDomain::Server || self.servers.handles_fault(fault)
    }

    /// The servers that may be hit where servers vote; chosen once.
    fn minority(&mut self, rng: &Rng) -> Vec<usize> {
        let all = EngineUrl::parse(&self.direct_url).map_or(1, |address| address.hosts.len());
        let choose = || rng.fork("minority").choose_indices(all.saturating_sub(1) / 2, all);
        self.minority.get_or_insert_with(choose).clone()
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment")
            .field("engine", &self.engine)
            .field("versions", &self.versions)
            .field("setup", &self.options)
            .field("going_on", &self.active_faults)
            .finish_non_exhaustive()
    }
}
