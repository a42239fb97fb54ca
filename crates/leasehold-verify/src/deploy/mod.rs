//! Where the engine of a run is, and everything that can be done to its servers and its network.
//!
//! | | |
//! |---|---|
//! | [`Deployment::start`] | real servers of our own ([`Local`]): every fault that the engine can have |
//! | [`Deployment::remote`] | the user's: proxies before it, and never a fault on it |
//!
//! Faults of the network are caused by proxies between the workers and the servers, one for each server: real
//! connections that are cut, delayed, silent. For *partition*, as root, the workers have a network namespace of their own, with a wire to each proxy,
//! and the wire is pulled ([`leasehold_testbed::Wires`]); otherwise, and where Sentinels name addresses or ZooKeeper runs as an ensemble, the proxy goes
//! silent. Of an ensemble, *partition* mostly cuts one member off from the others, and not from its clients, which is the harder case; proxies between them do
//! that. Else it cuts the workers off from one member, or from all.
//!
//! | fault | what is done | with the guard off |
//! |---|---|---|
//! | cut | connections are cut, again and again | |
//! | lost-reply | a request arrives and its connection is cut before the reply; or no reply arrives at all | |
//! | delay | each way takes longer, mostly within what a call waits for | |
//! | duplicate | a request arrives twice, and its connection is cut before the first reply: a client could take the second for that of its next request | |
//! | partition | silence for longer than the TTL: of the server; of a minority of Redlock's; see above for ZooKeeper | |
//! | crash | SIGKILL, and back with its data, which was on disk before it was acknowledged | |
//! | wipe | SIGKILL, and back without its data; the URL has `strict`; of Redlock's, one or two, or [a majority](Deployment::widen) | no `strict`; of Redlock's, a majority |
//! | failover | the replica is cut off, the master goes on and is killed, the replica is promoted; the URL has `strict` | no `strict` |
//! | leader | SIGKILL of the leader | |
//! | clock | the server's wall clock is set back, and stays there; of Redlock's, one or two. Of a set with replicas, the master's alone: with `replicas` it is replaced then by one whose clock was not set back; of a cluster, its slots move to such a one | ahead; of Redlock's, a majority |
//! | ahead | the server's wall clock jumps ahead; of Redlock's, one or two: two may hold a lock then, and their tokens tell them apart | |
//! | evict | no memory, and `noeviction`: clean errors | `volatile-ttl`: locks are thrown away |
//! | disk-full | the data folder's own small disk is filled up | |
//! | read-only | a server refuses writes; of Redlock's, one or two | |
//! | hang | one master of a cluster is stopped (SIGSTOP), for less long than the others take to notice | |
//! | reshard | the slots of the locks move to other masters, and stay half-way for a while | |
//! | grow | a node joins a cluster and gets the slots of the locks; then they move back, and it leaves | |
//!
//! With crash, wipe and failover half of the connections go silent instead of ending, as when a machine loses its power: who has one hears nothing
//! until its call times out, while others are served by the server that is back. Sentinels tell clients where the master is; proxies before them have
//! them name ours.
//!
//! All choices come from the [`Dice`] that are handed in.

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

/// How often servers are looked at that are to take over.
const LOOK: Duration = Duration::from_millis(50);

/// What is to happen in a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// All faults that may happen.
    pub faults: Vec<FaultKind>,
    /// Whether what should guard is on.
    pub guard: bool,
    /// The longest lease.
    pub ttl: Duration,
    /// Whether workers are started with [`Deployment::enter`], and so can have a network of their own.
    pub apart: bool,
    /// What the engine's URL asks for, of what guards against servers that forget; `None`: what the faults need.
    pub option: Option<UrlOption>,
}

impl Setup {
    /// Whether a fault is to happen.
    fn wants(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether wires are to be pulled, if they can be laid.
    fn wires(&self) -> bool {
        self.apart && self.wants(FaultKind::Partition)
    }

    /// The faults of one side.
    fn of(&self, wanted: Side) -> impl Iterator<Item = FaultKind> {
        self.faults.iter().copied().filter(move |fault| side(*fault) == wanted)
    }

    /// The options of the engine's URL. Where servers forget, `strict`: `replicas=1` would hold, too, but would grant nothing while the replica is
    /// behind, and so nothing would be at stake.
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
    /// What it hit.
    pub target: String,
    /// After how long [`Deployment::end`] should be called.
    pub lasts: Duration,
    /// Whether servers that it does not hit can serve meanwhile: a majority of those who vote, or one that takes another's place.
    pub served: bool,
    /// The locks that it must not touch: those on servers that it does not hit.
    pub spares: Vec<String>,
}

impl Strike {
    fn new(target: String, lasts: Duration) -> Self {
        Self { target, lasts, served: false, spares: Vec::new() }
    }

    /// These locks must not be touched by it.
    fn sparing(self, spares: Vec<String>) -> Self {
        Self { spares, ..self }
    }

    /// Others can serve meanwhile.
    fn served(self) -> Self {
        Self { served: true, ..self }
    }

    /// How long servers are away of which the others need not wait for the end: now and then for longer than those may take to serve again.
    fn while_others_serve(ttl: Duration, dice: &mut Dice) -> Duration {
        if dice.one_in(6) { Self::long(ttl) } else { dice.time(Duration::ZERO, ttl * 3 / 2) }
    }

    /// Longer than servers may take that serve in place of others.
    fn long(ttl: Duration) -> Duration {
        ttl * 2 + Duration::from_secs(7)
    }

    /// The longest that such a one lasts.
    pub fn longest(&self, ttl: Duration) -> Duration {
        if self.served { Self::long(ttl).max(ttl * 3) } else { ttl * 3 }
    }
}

/// An engine, and what stands before it. Dropping it ends all that was started.
pub struct Deployment {
    // Connections end before their servers do: fields drop in this order.
    lines: Option<Lines>,
    gear: Gear,
    engine: String,
    url: String,
    own_url: String,
    versions: Vec<String>,
    setup: Setup,
    /// What servers that vote can do without.
    minority: Option<Vec<usize>>,
    /// What goes on, and whether it is done to the servers, and not to the lines before them.
    going_on: BTreeMap<FaultKind, bool>,
}

impl Deployment {
    /// Starts real servers, as many as these faults need, and waits until they answer.
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
            // Those who tell clients where to go name addresses that are not known there.
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

    /// Goes to the user's own deployment, through proxies if its network is to be disturbed. Its servers are never touched.
    ///
    /// # Errors
    /// If a fault would have to be caused on the servers; if no proxy can stand before them; if nobody answers.
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

    /// For workers: through the proxies. It has the passwords.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// For whoever looks on: past the proxies. It has the passwords.
    pub fn own_url(&self) -> &str {
        &self.own_url
    }

    /// Which engine: `redis`, `zookeeper`, …
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// What the servers are that were started here, such as `redis-server 7.0.15`; the user's own are not asked.
    pub fn versions(&self) -> Vec<String> {
        self.versions.clone()
    }

    /// The words before a worker's command, with which it is where [`url`](Self::url) is reached.
    pub fn enter(&self) -> Vec<String> {
        self.lines.as_ref().map(Lines::enter).unwrap_or_default()
    }

    /// So many names for locks. In a cluster they lie on all masters, in turn; `prefix` is what the engine puts before each.
    pub fn names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        self.gear.names(base, prefix, count)
    }

    /// Names for locks, one on each master of a cluster; none elsewhere. They count as locks of the run.
    pub fn anchors(&mut self, base: &str) -> Vec<String> {
        self.gear.anchors(base)
    }

    /// How many connections the servers have accepted so far, where proxies stand before them.
    pub fn connections(&self) -> Option<u64> {
        self.lines.as_ref().map(Lines::connections)
    }

    /// Whether tokens rise over all faults of this run, by the table of guarantees.
    pub fn fencing(&self) -> bool {
        self.terms().guarantees(Promise::Tokens)
    }

    /// Whether nobody is let in beside a holder over all faults of this run, by the same table.
    pub fn exclusion(&self) -> bool {
        // What a control turns off counts as if it were on: it must be found out.
        self.terms().guarantees(Promise::Exclusion)
    }

    fn terms(&self) -> Terms<'_> {
        let has = |option: &str| !self.setup.guard || self.own_url.contains(option);
        let (strict, replicas) = (has("strict="), has("replicas="));
        Terms { engine: &self.engine, strict, replicas, faults: &self.setup.faults }
    }

    /// What is off, in words, if the guard is; `None` if it is on, or if nothing here depends on it.
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

    /// Where servers vote, has the next fault of this kind hit a majority of them, as it does with the guard off. `false`: it cannot. Only what
    /// forgets may be a majority: `strict` is there for that.
    pub fn widen(&mut self, fault: FaultKind) -> bool {
        self.gear.widen(fault)
    }

    /// Begins a fault of the servers or of the network. Faults of workers (kill, stop) are not begun here. While one server fault goes on no
    /// other can begin.
    ///
    /// # Errors
    /// If it was not in the [`Setup`], or does not go together with one that goes on, or cannot be caused.
    pub async fn begin(&mut self, fault: FaultKind, dice: &mut Dice) -> Result<Strike, Trouble> {
        if side(fault) == Side::Worker {
            return Err(Trouble::new(format!("{fault} hits workers, and not the deployment")));
        }
        if !self.setup.wants(fault) {
            return Err(Trouble::new(format!("{fault} was not asked for at the start: nothing is there for it")));
        }
        // Where a member can be cut off from the others, so can the workers from the servers.
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
        // Where only lines are hit, the servers do so all the time.
        while self.going_on.get(&fault) == Some(&true) && !self.gear.others_serve().await {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends a fault: heals, restarts, and returns when the servers answer again. The note says what came of it.
    ///
    /// # Errors
    /// If it had not begun; if a server does not come back.
    pub async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let Some(on_servers) = self.going_on.remove(&fault) else {
            return Err(Trouble::new(format!("{fault} had not begun")));
        };
        match &mut self.lines {
            Some(lines) if !on_servers => lines.end(fault),
            _ => self.gear.end(fault).await,
        }
    }

    /// A run begins: from now on nothing happens to the servers but what is [begun](Self::begin) here.
    ///
    /// # Errors
    /// If they do not say how they stand.
    pub async fn remember(&mut self) -> Result<(), Trouble> {
        self.gear.remember().await
    }

    /// Whether that is so until now.
    ///
    /// # Errors
    /// If Sentinels have replaced a master by themselves, because it got no time to answer them: a run in which that happens cannot be judged.
    pub async fn surprised(&self) -> Result<(), Trouble> {
        self.gear.surprised().await
    }

    /// What servers that were started here still have when all workers have ended: keys that never end, claims to these locks on any of Redlock's
    /// servers, ZooKeeper's ephemeral nodes. Where it is, and what it is. With the guard off nobody looks: others' locks are no concern of ours.
    ///
    /// # Errors
    /// If a server does not answer.
    pub async fn left(&self, locks: &[String]) -> Result<Vec<(String, String)>, Trouble> {
        if self.setup.guard { self.gear.left(locks).await } else { Ok(Vec::new()) }
    }

    /// Sessions that databases which were started here still have, when all clients are gone.
    ///
    /// # Errors
    /// If a server does not answer.
    pub async fn sessions(&self) -> Result<Vec<(String, String)>, Trouble> {
        // There half of the connections fell silent for good, and it is we who keep them.
        if self.setup.wants(FaultKind::Ahead) { Ok(Vec::new()) } else { self.gear.sessions().await }
    }

    fn on_servers(&self, fault: FaultKind) -> bool {
        side(fault) == Side::Server || self.gear.causes(fault)
    }

    /// The servers that may be hit where they vote; chosen once.
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
