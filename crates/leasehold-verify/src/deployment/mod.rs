//! The engine under test, with the faults of its servers and its network.
//!
//! | | |
//! |---|---|
//! | [`Deployment::start`] | real servers that the run starts ([`LocalEngine`]): every fault that the engine can have |
//! | [`Deployment::remote`] | the user's servers: proxies before them, and never a fault on them |
//!
//! Proxies between the workers and the servers, one per server, cause the faults of the network:
//! they cut, delay or stop the traffic of real connections.
//!
//! For *partition*, as root, the workers have their own network namespace with a virtual link to
//! each proxy, which is disconnected ([`leasehold_testbed::VirtualLinks`]). Without root, and where
//! Sentinels name addresses or ZooKeeper runs as an ensemble, the proxy passes no traffic instead.
//! In an ensemble, *partition* mostly cuts one member off from the others, and not from its
//! clients, which is the harder case; proxies between the members do that. Every third time it cuts
//! the workers off from one member, or from all.
//!
//! | fault | action | in a negative control |
//! |---|---|---|
//! | cut | connections are cut repeatedly | |
//! | lost-reply | a request arrives and its connection is cut before the reply; or no reply arrives at all | |
//! | delay | both directions are delayed, mostly within a call's timeout | |
//! | duplicate | a request arrives twice, and its connection is cut before the first reply: a client could take the second for that of its next request | |
//! | partition | no traffic for longer than the TTL: with the server, or a minority of Redlock's nodes; with ZooKeeper as described before this table | |
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
//! With crash, wipe and failover, half of the connections pass no more data instead of closing, as
//! in a power failure. Their clients notice it only when their calls time out, while the restarted
//! server serves others. Sentinels report the master's address; proxies in front of the Sentinels
//! replace it by the address of the master's proxy.
//!
//! All random choices come from the [`Rng`] that the caller passes.

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

/// How often [`Deployment::wait_for_others_to_serve`] checks the servers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a deployment must support: the faults, and the conditions under which they happen.
#[derive(Clone, Debug)]
pub struct DeploymentOptions {
    /// All kinds of faults that may happen.
    pub faults: Vec<FaultKind>,
    /// Whether the servers run with their safeguards; `false` only in a negative control.
    pub has_safeguards: bool,
    /// The TTL of the longest lease.
    pub ttl: Duration,
    /// Whether the caller starts workers with [`Deployment::worker_command_prefix`], so that they
    /// can have their own network namespace.
    pub isolates_workers: bool,
    /// The URL option against the loss of data; `None`: `strict` if the faults lose data, otherwise
    /// none.
    pub option: Option<UrlOption>,
}

impl DeploymentOptions {
    /// Whether a fault of this kind may happen.
    fn has_fault(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether partitions disconnect virtual links, if these can be set up.
    fn uses_links(&self) -> bool {
        self.isolates_workers && self.has_fault(FaultKind::Partition)
    }

    /// The kinds of faults that hit workers, the network, or servers.
    fn faults_in(&self, domain: FaultDomain) -> impl Iterator<Item = FaultKind> {
        self.faults.iter().copied().filter(move |fault| fault_domain(*fault) == domain)
    }

    /// The options to append to the engine's URL, with their `?`; empty in a negative control. If
    /// servers lose data and no option is chosen, it is `strict`: with `replicas=1` nothing is
    /// granted while the replica lags, so no lock would be at risk.
    fn url_options(&self) -> String {
        let loses_data = self.has_fault(FaultKind::Wipe) || self.has_fault(FaultKind::Failover);
        match self.option.or(loses_data.then_some(UrlOption::Strict)).filter(|_| self.has_safeguards) {
            None => String::new(),
            Some(UrlOption::Strict) => format!("?strict={}ms", self.ttl.as_millis()),
            Some(UrlOption::Replicas) => "?replicas=1".to_owned(),
        }
    }
}

/// A fault that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveFault {
    /// What it hits, in words: `server 2 of 5`.
    pub target: String,
    /// How long after its beginning to call [`Deployment::end_fault`].
    pub duration: Duration,
    /// Whether servers that it does not hit can serve before it ends: a majority of the voters, or
    /// a promoted replica.
    pub others_can_serve: bool,
    /// The locks that it must not lose: those on servers that it does not hit.
    pub unaffected_locks: Vec<String>,
}

impl ActiveFault {
    fn new(target: String, duration: Duration) -> Self {
        Self { target, duration, others_can_serve: false, unaffected_locks: Vec::new() }
    }

    /// Sets the locks that the fault must not lose.
    fn with_unaffected_locks(self, locks: Vec<String>) -> Self {
        Self { unaffected_locks: locks, ..self }
    }

    /// States that servers that the fault does not hit can serve before it ends.
    fn with_others_serving(self) -> Self {
        Self { others_can_serve: true, ..self }
    }

    /// A random duration for servers that are down while others can serve. It is sometimes longer
    /// than the others may take until they serve.
    fn outage_duration(ttl: Duration, rng: &mut Rng) -> Duration {
        if rng.one_in(6) { Self::long_outage(ttl) } else { rng.duration_in(Duration::ZERO, ttl * 3 / 2) }
    }

    /// A duration longer than the others may take until they serve.
    fn long_outage(ttl: Duration) -> Duration {
        ttl * 2 + Duration::from_secs(7)
    }

    /// An upper bound on the duration of any fault.
    pub fn max_duration(&self, ttl: Duration) -> Duration {
        if self.others_can_serve { Self::long_outage(ttl).max(ttl * 3) } else { ttl * 3 }
    }
}

/// An engine with the proxies in front of its servers. Dropping it stops everything that was
/// started.
pub struct Deployment {
    // Fields drop in this order: connections must close before their servers stop.
    /// The proxies; `None`: there are none.
    network: Option<Network>,
    servers: LocalServers,
    engine: String,
    /// The URL through the proxies.
    url: String,
    /// The URL without the proxies.
    direct_url: String,
    versions: Vec<String>,
    options: DeploymentOptions,
    /// If servers vote, the indices of those that faults may hit; `None`: not chosen yet.
    minority: Option<Vec<usize>>,
    /// The active faults, and for each whether it hits servers; `false`: connections.
    active_faults: BTreeMap<FaultKind, bool>,
}

impl Deployment {
    /// Starts the real servers that these faults need, with proxies, and waits until they respond.
    ///
    /// # Errors
    /// If the engine cannot have one of the faults; if a server is not installed, or does not
    /// start.
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
            // Servers that redirect clients name addresses that workers in their own network
            // namespace cannot reach.
            let uses_our_addresses = discovery_addrs.is_empty() && !local_servers.redirects_clients();
            let isolated =
                uses_our_addresses && !local_servers.handles_fault(FaultKind::Partition) && options.uses_links();
            let mut proxies = Network::start(&servers, local.as_str(), options.ttl, isolated).await?;
            proxies.add_discovery_proxies(&discovery_addrs, &servers).await?;
            if local_servers.redirects_clients() {
                proxies.translate_redirects(&servers)?;
            }
            url = EngineUrl::parse(&own_url)?.with_servers(&proxies.entry_addrs());
            network = Some(proxies);
        }
        let versions = local_servers.versions().await?;
        let engine = local.as_str().to_owned();
        Ok(Self::from_parts(engine, local_servers, network, (url, own_url), versions, options))
    }

    /// Uses the user's own servers, through proxies if a network fault may happen. No fault hits
    /// the servers themselves.
    ///
    /// # Errors
    /// If a server fault is requested; if no proxy is possible in front of the servers; if they are
    /// unreachable.
    pub async fn remote(url: &str, options: &DeploymentOptions) -> Result<Self, RunError> {
        let address = EngineUrl::parse(url)?;
        let servers = remote::resolve_servers(&address, options).await?;
        let (mut network, mut proxied_url) = (None, url.to_owned());
        if !servers.is_empty() {
            let proxies = Network::start(&servers, &address.scheme, options.ttl, options.uses_links()).await?;
            proxied_url = address.with_servers(&proxies.entry_addrs());
            network = Some(proxies);
        }
        let urls = (proxied_url, url.to_owned());
        Ok(Self::from_parts(address.scheme, LocalServers::None, network, urls, Vec::new(), options))
    }

    /// Puts a deployment together. `urls` are the URL through the proxies and the one without them.
    fn from_parts(
        engine: String,
        servers: LocalServers,
        network: Option<Network>,
        (url, direct_url): (String, String),
        versions: Vec<String>,
        options: &DeploymentOptions,
    ) -> Self {
        Self {
            network,
            servers,
            engine,
            url,
            direct_url,
            versions,
            options: options.clone(),
            minority: None,
            active_faults: BTreeMap::new(),
        }
    }

    /// The URL for workers, through the proxies. It contains the passwords.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL for inspections, which connects to the servers without the proxies. It contains the
    /// passwords.
    pub fn direct_url(&self) -> &str {
        &self.direct_url
    }

    /// The name of the engine: `redis`, `zookeeper`, …
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The versions of the servers that were started here, such as `redis-server 7.0.15`; the
    /// user's own servers are not queried.
    pub fn versions(&self) -> Vec<String> {
        self.versions.clone()
    }

    /// What to put before a worker's command, so that it runs in the network namespace in which
    /// [`url`](Self::url) is reachable; empty if it needs none.
    pub fn worker_command_prefix(&self) -> Vec<String> {
        self.network.as_ref().map(Network::worker_command_prefix).unwrap_or_default()
    }

    /// Names for `count` locks, made from `base`. In a cluster there is one on each master instead;
    /// `prefix` is what the engine puts before each name.
    pub fn lock_names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        self.servers.lock_names(base, prefix, count)
    }

    /// Names for anchor locks, which are held during a whole run: one on each master of a cluster;
    /// none for any other engine.
    pub fn anchor_names(&mut self, base: &str) -> Vec<String> {
        self.servers.anchor_names(base)
    }

    /// How many connections the proxies have accepted so far; `None`: there are no proxies.
    pub fn connections(&self) -> Option<u64> {
        self.network.as_ref().map(Network::accepted_connections)
    }

    /// Whether rising tokens are guaranteed under all faults of this deployment, by the table in
    /// `guarantees.rs`.
    pub fn guarantees_tokens(&self) -> bool {
        self.conditions().is_guaranteed(Guarantee::Tokens)
    }

    /// Whether exclusion is guaranteed under all faults of this deployment, by the table in
    /// `guarantees.rs`. A safeguard that is off counts as on, so that the checker finds the
    /// violation.
    pub fn guarantees_exclusion(&self) -> bool {
        self.conditions().is_guaranteed(Guarantee::Exclusion)
    }

    /// The conditions that decide which guarantees hold; a safeguard that is off counts as on.
    fn conditions(&self) -> Conditions<'_> {
        let has = |option: &str| !self.options.has_safeguards || self.direct_url.contains(option);
        let (strict, replicas) = (has("strict="), has("replicas="));
        Conditions { engine: &self.engine, is_strict: strict, awaits_replicas: replicas, faults: &self.options.faults }
    }

    /// Describes which safeguard of the servers is off; `None` if none is, or if these faults need
    /// none.
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

    /// Makes the next fault of this kind hit a majority of the voting servers, and not a minority.
    /// Returns `false` if it cannot: only a loss of data on Redlock may hit a majority, because
    /// `strict` protects against it.
    pub fn hit_majority_next(&mut self, fault: FaultKind) -> bool {
        self.servers.hit_majority_next(fault)
    }

    /// Begins a fault of the servers or of the network. Only one server fault can be active at a
    /// time.
    ///
    /// # Errors
    /// If it was not in the [`DeploymentOptions`], is a fault of workers, conflicts with an active
    /// fault, or cannot be caused.
    pub async fn begin_fault(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        if fault_domain(fault) == FaultDomain::Worker {
            return Err(RunError::new(format!("{fault} is a fault of workers, and the deployment has no workers")));
        }
        if !self.options.has_fault(fault) {
            return Err(RunError::new(format!(
                "{fault} was not among the faults that the deployment was started with"
            )));
        }
        // Where a member can be cut off from the others, the workers can also be cut off from the
        // servers.
        let on_servers = self.is_server_fault(fault) && !(fault == FaultKind::Partition && rng.one_in(3));
        let other =
            self.active_faults.iter().find(|(other, hits_servers)| **other == fault || (on_servers && **hits_servers));
        if let Some((other, _)) = other {
            return Err(RunError::new(format!("{fault} cannot begin: {other} has not ended")));
        }
        let minority = self.minority(rng);
        let active_fault = match &mut self.network {
            Some(network) if !on_servers => network.begin_fault(fault, &minority, rng)?,
            network => {
                self.servers.begin_fault(fault, &minority, network.as_ref(), self.options.has_safeguards, rng).await?
            }
        };
        self.active_faults.insert(fault, on_servers);
        Ok(active_fault)
    }

    /// Waits until servers that this active fault does not hit can serve. If they never can, it
    /// never returns.
    pub async fn wait_for_others_to_serve(&self, fault: FaultKind) {
        // If only connections are hit, the servers can serve all the time.
        while self.active_faults.get(&fault) == Some(&true) && !self.servers.can_others_serve().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends a fault: repairs the network, restarts servers, and waits until they respond again.
    /// Returns a note on the result, which may be empty.
    ///
    /// # Errors
    /// If the fault had not begun; if a server does not recover.
    pub async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let Some(on_servers) = self.active_faults.remove(&fault) else {
            return Err(RunError::new(format!("{fault} had not begun")));
        };
        match &mut self.network {
            Some(network) if !on_servers => network.end_fault(fault),
            _ => self.servers.end_fault(fault).await,
        }
    }

    /// Records the servers' state at the beginning of a run, with which
    /// [`check_no_foreign_failover`](Self::check_no_foreign_failover) compares their state later.
    ///
    /// # Errors
    /// If the servers do not report their state.
    pub async fn save_baseline(&mut self) -> Result<(), RunError> {
        self.servers.save_baseline().await
    }

    /// Checks that, since [`save_baseline`](Self::save_baseline), Sentinels have replaced a master
    /// only because of an injected fault.
    ///
    /// # Errors
    /// If they replaced a master that had no processor time to respond: the checker cannot judge
    /// such a run.
    pub async fn check_no_foreign_failover(&self) -> Result<(), RunError> {
        self.servers.check_no_foreign_failover().await
    }

    /// What servers that were started here still store after all workers have ended: keys that
    /// never expire, claims to these locks on any of Redlock's servers, ZooKeeper's ephemeral
    /// nodes. Each item is a place and what was found there. In a negative control nothing is
    /// checked.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn leftovers(&self, locks: &[String]) -> Result<Vec<(String, String)>, RunError> {
        if self.options.has_safeguards { self.servers.leftovers(locks).await } else { Ok(Vec::new()) }
    }

    /// Client sessions that a database that was started here still has after all clients have
    /// ended. Each item is the session and what it does.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn leftover_sessions(&self) -> Result<Vec<(String, String)>, RunError> {
        // With `ahead`, half of the connections pass no data, and the proxies keep them open.
        if self.options.has_fault(FaultKind::Ahead) { Ok(Vec::new()) } else { self.servers.client_sessions().await }
    }

    /// Whether the servers cause this fault, and not the proxies.
    fn is_server_fault(&self, fault: FaultKind) -> bool {
        fault_domain(fault) == FaultDomain::Server || self.servers.handles_fault(fault)
    }

    /// If servers vote, the indices of those that faults may hit: a minority, chosen at random
    /// once.
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
            .field("options", &self.options)
            .field("active_faults", &self.active_faults)
            .finish_non_exhaustive()
    }
}
