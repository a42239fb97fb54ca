//! The engine of a run, and the faults that its servers and its network can have.
//!
//! | | |
//! |---|---|
//! | [`Deployment::start`] | our own real servers ([`Local`]): every fault that the engine can have |
//! | [`Deployment::remote`] | the user's servers: proxies before them, and never a fault on them |
//!
//! Proxies between the workers and the servers, one per server, cause the faults of the network:
//! real connections that are cut, delayed or silenced. For *partition*, as root, the workers have
//! their own network namespace, with a wire to each proxy, and the wire is pulled
//! ([`leasehold_testbed::Wires`]). Otherwise, and where Sentinels name addresses or ZooKeeper runs
//! as an ensemble, the proxy goes silent. In an ensemble, *partition* mostly cuts one member off
//! from the others, and not from its clients, which is the harder case; proxies between the members
//! do that. Otherwise it cuts the workers off from one member, or from all.
//!
//! | fault | what is done | with the guard off |
//! |---|---|---|
//! | cut | connections are cut repeatedly | |
//! | lost-reply | a request arrives and its connection is cut before the reply; or no reply arrives at all | |
//! | delay | both directions are delayed, mostly within a call's timeout | |
//! | duplicate | a request arrives twice, and its connection is cut before the first reply: a client could take the second for that of its next request | |
//! | partition | silence for longer than the TTL: of the server; of a minority of Redlock's nodes; see above for ZooKeeper | |
//! | crash | SIGKILL, and a restart with the data, which was on disk before it was acknowledged | |
//! | wipe | SIGKILL, and a restart without the data; the URL has `strict`; of Redlock's nodes, one or two, or [a majority](Deployment::widen) | no `strict`; of Redlock's nodes, a majority |
//! | failover | the replica is cut off, the master goes on and is killed, the replica is promoted; the URL has `strict` | no `strict` |
//! | leader | SIGKILL of the leader | |
//! | clock | the server's wall clock is set back, and stays there; of Redlock's nodes, one or two. In a set with replicas, the master's alone: with `replicas`, a replica whose clock was not set back then replaces it; in a cluster, its slots move to such a master | ahead; of Redlock's nodes, a majority |
//! | ahead | the server's wall clock jumps ahead; of Redlock's nodes, one or two: two may then hold a lock, and their tokens tell them apart | |
//! | evict | no memory, and `noeviction`: clean errors | `volatile-ttl`: locks are evicted |
//! | disk-full | the data folder's own small disk is filled up | |
//! | read-only | a server refuses writes; of Redlock's nodes, one or two | |
//! | hang | one master of a cluster is stopped (SIGSTOP), more briefly than the others take to notice | |
//! | reshard | the slots of the locks move to other masters, and stay half-way for a while | |
//! | grow | a node joins a cluster and gets the slots of the locks; then they move back, and it leaves | |
//!
//! With crash, wipe and failover half of the connections go silent instead of closing, as in a
//! power failure. The clients of those connections notice nothing until their calls time out, while
//! the restarted server serves others. Sentinels tell clients where the master is; proxies before
//! the Sentinels replace its address with our proxy's.
//!
//! All choices come from the [`Dice`] that the caller passes.

mod address;
mod gear;
mod lines;
mod local;
mod remote;
mod trouble;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

pub use self::local::{Local, UrlOption};
pub use self::remote::faults_at;
pub use self::trouble::Trouble;

use self::address::Address;
use self::gear::Gear;
use self::lines::Lines;
use self::local::{Side, side};
use crate::dice::Dice;
use crate::guarantees::Terms;
use crate::history::FaultKind;
use crate::verdict::Promise;

/// How often to check whether other servers have taken over.
const LOOK: Duration = Duration::from_millis(50);

/// The conditions of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// All faults that may happen.
    pub faults: Vec<FaultKind>,
    /// Whether the safeguards are on.
    pub guard: bool,
    /// The longest lease.
    pub ttl: Duration,
    /// Whether workers are started with [`Deployment::enter`], and so can have their own network.
    pub apart: bool,
    /// The URL option that guards against servers that lose data; `None`: the one that the faults
    /// need.
    pub option: Option<UrlOption>,
}

impl Setup {
    /// Whether this fault may happen.
    fn wants(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether partitions pull wires, if the wires can be set up.
    fn wires(&self) -> bool {
        self.apart && self.wants(FaultKind::Partition)
    }

    /// The faults of one side.
    fn of(&self, wanted: Side) -> impl Iterator<Item = FaultKind> {
        self.faults.iter().copied().filter(move |fault| side(*fault) == wanted)
    }

    /// The options of the engine's URL. If servers lose data, `strict`: `replicas=1` would hold,
    /// too, but would grant nothing while the replica lags, and so no lock would be at risk.
    fn options(&self) -> String {
        let forgets = self.wants(FaultKind::Wipe) || self.wants(FaultKind::Failover);
        match self.option.or(forgets.then_some(UrlOption::Strict)).filter(|_| self.guard) {
            None => String::new(),
            Some(UrlOption::Strict) => format!("?strict={}ms", self.ttl.as_millis()),
            Some(UrlOption::Replicas) => "?replicas=1".to_owned(),
        }
    }
}

/// A fault that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Its target.
    pub target: String,
    /// When to call [`Deployment::end`], from its beginning.
    pub lasts: Duration,
    /// Whether servers that it does not hit can serve in the meantime: a majority of the voters, or
    /// a promoted server.
    pub served: bool,
    /// The locks that it must not affect: those on servers that it does not hit.
    pub spares: Vec<String>,
}

impl Strike {
    fn new(target: String, lasts: Duration) -> Self {
        Self { target, lasts, served: false, spares: Vec::new() }
    }

    /// The locks that it must not affect.
    fn sparing(self, spares: Vec<String>) -> Self {
        Self { spares, ..self }
    }

    /// Other servers can serve in the meantime.
    fn served(self) -> Self {
        Self { served: true, ..self }
    }

    /// How long servers are down if the others can serve meanwhile: sometimes longer than the
    /// others may take until they serve.
    fn while_others_serve(ttl: Duration, dice: &mut Dice) -> Duration {
        if dice.one_in(6) { Self::long(ttl) } else { dice.time(Duration::ZERO, ttl * 3 / 2) }
    }

    /// Longer than a server may take to serve in place of another.
    fn long(ttl: Duration) -> Duration {
        ttl * 2 + Duration::from_secs(7)
    }

    /// The longest duration of such a fault.
    pub fn longest(&self, ttl: Duration) -> Duration {
        if self.served { Self::long(ttl).max(ttl * 3) } else { ttl * 3 }
    }
}

/// An engine with its proxies. Dropping it stops everything that was started.
pub struct Deployment {
    // Connections must close before their servers stop: fields drop in this order.
    lines: Option<Lines>,
    gear: Gear,
    engine: String,
    url: String,
    own_url: String,
    versions: Vec<String>,
    setup: Setup,
    /// The servers that may be hit where servers vote.
    minority: Option<Vec<usize>>,
    /// The active faults, and whether each hits the servers, and not the connections.
    going_on: BTreeMap<FaultKind, bool>,
}

impl Deployment {
    /// Starts as many real servers as these faults need, and waits until they respond.
    ///
    /// # Errors
    /// If a fault cannot be caused there; if a server is not installed, or does not start.
    pub async fn start(local: Local, setup: &Setup) -> Result<Self, Trouble> {
        for fault in &setup.faults {
            local.can(*fault).map_err(Trouble::new)?;
        }
        if let Some(option) = setup.option {
            local.has(option).map_err(Trouble::usage)?;
        }
        let gear = Gear::start(local, setup).await?;
        let own_url = gear.url();
        let (mut lines, mut url) = (None, own_url.clone());
        let servers = gear.addrs();
        if !servers.is_empty() && setup.faults.iter().any(|fault| side(*fault) != Side::Worker) {
            let guides = gear.guides();
            // Servers that redirect clients name addresses which are unknown in that network.
            let named = guides.is_empty() && !gear.name_each_other();
            let apart = named && !gear.causes(FaultKind::Partition) && setup.wires();
            let mut before = Lines::before(&servers, local.as_str(), setup.ttl, apart).await?;
            before.guided_by(&guides, &servers).await?;
            if gear.name_each_other() {
                before.named_by_each_other(&servers)?;
            }
            url = Address::read(&own_url)?.with(&before.addrs());
            lines = Some(before);
        }
        let versions = gear.versions().await?;
        let engine = local.as_str().to_owned();
        Ok(Self::of(engine, gear, lines, (url, own_url), versions, setup))
    }

    /// Connects to the user's own deployment, through proxies if its network is to be disturbed.
    /// Its servers are never touched.
    ///
    /// # Errors
    /// If a fault would have to be caused on the servers; if no proxy can stand before them; if
    /// they are unreachable.
    pub async fn remote(url: &str, setup: &Setup) -> Result<Self, Trouble> {
        let address = Address::read(url)?;
        let servers = remote::servers(&address, setup).await?;
        let (mut lines, mut through) = (None, url.to_owned());
        if !servers.is_empty() {
            let before = Lines::before(&servers, &address.scheme, setup.ttl, setup.wires()).await?;
            through = address.with(&before.addrs());
            lines = Some(before);
        }
        let urls = (through, url.to_owned());
        Ok(Self::of(address.scheme, Gear::Nothing, lines, urls, Vec::new(), setup))
    }

    fn of(
        engine: String,
        gear: Gear,
        lines: Option<Lines>,
        (url, own_url): (String, String),
        versions: Vec<String>,
        setup: &Setup,
    ) -> Self {
        let setup = setup.clone();
        Self { lines, gear, engine, url, own_url, versions, setup, minority: None, going_on: BTreeMap::new() }
    }

    /// The URL for workers: through the proxies. It contains the passwords.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL for inspections: past the proxies. It contains the passwords.
    pub fn own_url(&self) -> &str {
        &self.own_url
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
    pub fn enter(&self) -> Vec<String> {
        self.lines.as_ref().map(Lines::enter).unwrap_or_default()
    }

    /// Names for `count` locks. In a cluster they are spread over all masters; `prefix` is what the
    /// engine puts before each.
    pub fn names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        self.gear.names(base, prefix, count)
    }

    /// Names for locks, one on each master of a cluster; none elsewhere. They count as locks of the
    /// run.
    pub fn anchors(&mut self, base: &str) -> Vec<String> {
        self.gear.anchors(base)
    }

    /// How many connections the servers have accepted so far, if proxies stand before them.
    pub fn connections(&self) -> Option<u64> {
        self.lines.as_ref().map(Lines::connections)
    }

    /// Whether tokens rise under all faults of this run, by the table of guarantees.
    pub fn fencing(&self) -> bool {
        self.terms().guarantees(Promise::Tokens)
    }

    /// Whether exclusion holds under all faults of this run, by the same table.
    pub fn exclusion(&self) -> bool {
        // A safeguard that a control turns off counts as on: the checker must detect the control.
        self.terms().guarantees(Promise::Exclusion)
    }

    fn terms(&self) -> Terms<'_> {
        let has = |option: &str| !self.setup.guard || self.own_url.contains(option);
        let (strict, replicas) = (has("strict="), has("replicas="));
        Terms { engine: &self.engine, strict, replicas, faults: &self.setup.faults }
    }

    /// A description of the control if the guard is off; `None` if it is on, or if nothing here
    /// depends on it.
    pub fn control(&self) -> Option<String> {
        if self.setup.guard {
            return None;
        }
        let redlock = self.engine == "redlock";
        let words = self.setup.faults.iter().filter_map(|fault| match fault {
            FaultKind::Wipe if redlock => Some("a majority of the servers forgets, without strict"),
            FaultKind::Wipe | FaultKind::Failover => Some("servers that forgot let others in at once, without strict"),
            FaultKind::Clock if redlock => Some("the clocks of a majority jump ahead"),
            FaultKind::Clock => Some("the server's clock jumps ahead"),
            FaultKind::Evict => Some("the server throws locks away, with volatile-ttl"),
            _ => None,
        });
        let words: BTreeSet<&str> = words.collect();
        (!words.is_empty()).then(|| words.into_iter().collect::<Vec<_>>().join("; "))
    }

    /// If servers vote, makes the next fault of this kind hit a majority of them, as it does with
    /// the guard off. `false`: it cannot. Only a loss of data may hit a majority: `strict` guards
    /// against it.
    pub fn widen(&mut self, fault: FaultKind) -> bool {
        self.gear.widen(fault)
    }

    /// Begins a fault of the servers or of the network. Faults of workers (kill, stop) do not begin
    /// here. While one server fault is active, no other can begin.
    ///
    /// # Errors
    /// If it was not in the [`Setup`], or conflicts with an active fault, or cannot be caused.
    pub async fn begin(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<Strike, Trouble> {
        if side(fault) == Side::Worker {
            return Err(Trouble::new(format!("{fault} hits workers, and not the deployment")));
        }
        if !self.setup.wants(fault) {
            return Err(Trouble::new(format!("{fault} was not asked for at the start: nothing is there for it")));
        }
        // Where a member can be cut off from the others, the workers can also be cut off from the
        // servers.
        let on_servers = self.on_servers(fault) && !(fault == FaultKind::Partition && dice.one_in(3));
        let other = self.going_on.iter().find(|(other, theirs)| **other == fault || (on_servers && **theirs));
        if let Some((other, _)) = other {
            return Err(Trouble::new(format!("{fault} cannot begin: {other} has not ended")));
        }
        let minority = self.minority(dice);
        let strike = match &mut self.lines {
            Some(lines) if !on_servers => lines.begin(fault, &minority, dice)?,
            lines => self.gear.begin(fault, &minority, lines.as_ref(), self.setup.guard, dice).await?,
        };
        self.going_on.insert(fault, on_servers);
        Ok(strike)
    }

    /// Waits until servers that this fault does not hit can serve; if there are none, for ever.
    pub async fn others_serve(&self, fault: FaultKind) {
        // If only connections are hit, the servers can serve all the time.
        while self.going_on.get(&fault) == Some(&true) && !self.gear.others_serve().await {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends a fault: heals, restarts, and returns when the servers respond again. The note
    /// describes the result.
    ///
    /// # Errors
    /// If the fault had not begun; if a server does not come back.
    pub async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let Some(on_servers) = self.going_on.remove(&fault) else {
            return Err(Trouble::new(format!("{fault} had not begun")));
        };
        match &mut self.lines {
            Some(lines) if !on_servers => lines.end(fault),
            _ => self.gear.end(fault).await,
        }
    }

    /// A run begins: from now on only faults [begun](Self::begin) here may affect the servers.
    ///
    /// # Errors
    /// If the servers do not report their state.
    pub async fn remember(&mut self) -> Result<(), Trouble> {
        self.gear.remember().await
    }

    /// Checks that only those faults have affected the servers since.
    ///
    /// # Errors
    /// If Sentinels replaced a master on their own, because it got no processor time to respond:
    /// such a run cannot be judged.
    pub async fn surprised(&self) -> Result<(), Trouble> {
        self.gear.surprised().await
    }

    /// What servers that were started here still store after all workers have ended: keys that
    /// never expire, claims to these locks on any of Redlock's servers, ZooKeeper's ephemeral
    /// nodes. Returns the place and the item. With the guard off nothing is checked, because other
    /// users' locks may be there.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn left(&self, locks: &[String]) -> Result<Vec<(String, String)>, Trouble> {
        if self.setup.guard { self.gear.left(locks).await } else { Ok(Vec::new()) }
    }

    /// Sessions that databases which were started here still have after all clients have ended.
    ///
    /// # Errors
    /// If a server does not respond.
    pub async fn sessions(&self) -> Result<Vec<(String, String)>, Trouble> {
        // There half of the connections were silenced for good, and our proxies keep them open.
        if self.setup.wants(FaultKind::Ahead) { Ok(Vec::new()) } else { self.gear.sessions().await }
    }

    fn on_servers(&self, fault: FaultKind) -> bool {
        side(fault) == Side::Server || self.gear.causes(fault)
    }

    /// The servers that may be hit where servers vote; chosen once.
    fn minority(&mut self, dice: &Dice) -> Vec<usize> {
        let all = Address::read(&self.own_url).map_or(1, |address| address.hosts.len());
        let choose = || dice.fork("minority").some(all.saturating_sub(1) / 2, all);
        self.minority.get_or_insert_with(choose).clone()
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment")
            .field("engine", &self.engine)
            .field("versions", &self.versions)
            .field("setup", &self.setup)
            .field("going_on", &self.going_on)
            .finish_non_exhaustive()
    }
}
