//! Five servers, their clients, and each server's record of a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::engine::{AcquireReply, Engine};
use leasehold::{Claim, Error, ErrorKind, Guard, Holder, LockName, LockOptions, Locks, Mode, Owner, Result, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_internals::redis::Stored;
use leasehold_internals::redlock::wire::{NodeLock, StoredVote};
use leasehold_testbed::redis::{IndependentServers, Redis, Reply, RespClient};
use leasehold_testbed::{Data, Proxy, Server, eventually};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

pub(crate) use crate::sql_faults::shifted_clock::ShiftedClock;

/// The number of servers.
pub(crate) const NODES: usize = 5;

/// A TTL that no test outlives.
pub(crate) const LASTING: Duration = Duration::from_secs(600);
/// Keeps a node of such a lease from counting as unresponsive on a busy machine.
pub(crate) const PATIENT: &str = "node-timeout=60s";

/// Five servers and their clients.
pub(crate) struct Fixture {
    servers: Servers,
    /// The key prefix.
    prefix: String,
}

enum Servers {
    Own(IndependentServers),
    Shared(&'static IndependentServers),
}

impl Fixture {
    /// Servers of this test's own, without persistence.
    pub(crate) async fn new() -> Self {
        Self::with_config(&Redis::new()).await
    }

    /// Servers shared by all tests that neither stop them, nor reconfigure them, nor count their
    /// commands.
    pub(crate) async fn shared() -> Self {
        static SERVERS: OnceCell<IndependentServers> = OnceCell::const_new();
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        let servers = SERVERS.get_or_init(|| async { IndependentServers::start(NODES).await.expect("servers") }).await;
        let prefix = format!("site{}:", NEXT_PREFIX.fetch_add(1, Ordering::Relaxed));
        Self { servers: Servers::Shared(servers), prefix }
    }

    /// Servers that write to disk before they acknowledge.
    pub(crate) async fn durable() -> Self {
        Self::with_config(&Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"])).await
    }

    pub(crate) async fn with_config(each: &Redis) -> Self {
        let servers = IndependentServers::start_with(NODES, each).await.expect("servers");
        Self { servers: Servers::Own(servers), prefix: "leasehold:".to_owned() }
    }

    fn servers(&self) -> &IndependentServers {
        match &self.servers {
            Servers::Own(servers) => servers,
            Servers::Shared(servers) => servers,
        }
    }

    pub(crate) fn server(&self, at: usize) -> &Server {
        self.servers().server(at)
    }

    fn server_mut(&mut self, at: usize) -> &mut Server {
        match &mut self.servers {
            Servers::Own(servers) => servers.server_mut(at),
            Servers::Shared(_) => panic!("shared servers cannot be stopped"),
        }
    }

    /// A key of this test on the servers.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}q{name}", self.prefix)
    }

    /// The URL option with the key prefix.
    pub(crate) fn prefix_option(&self) -> String {
        format!("prefix={}", self.prefix)
    }

    /// The URL with options such as `prefix=a&strict=1s`.
    pub(crate) fn url(&self, options: &str) -> String {
        format!("{}?{}&{options}", self.servers().url(), self.prefix_option())
    }

    /// A client with long leases.
    pub(crate) async fn locks(&self) -> Locks {
        self.locks_with(LASTING, PATIENT).await
    }

    /// A client with long leases on this clock. Without clock drift, a lost claim is released soon
    /// after its TTL.
    pub(crate) async fn locks_with_clock(&self, clock: &ShiftedClock) -> Locks {
        connected_client(&self.url(&format!("{PATIENT}&drift=0")), LASTING, &clock.clock()).await
    }

    pub(crate) async fn locks_with(&self, ttl: Duration, options: &str) -> Locks {
        connected_client(&self.url(options), ttl, &Clock::system()).await
    }

    /// An engine without a keeper: it sends only what the test requests.
    pub(crate) async fn engine(&self, options: &str) -> Arc<dyn Engine> {
        connected_engine(&self.url(options), &Clock::system()).await
    }

    /// A proxy in front of each server, and the URL of all of them.
    pub(crate) async fn start_proxies(&self, options: &str) -> (Vec<Proxy>, String) {
        let mut proxies = Vec::new();
        for server in self.servers().servers() {
            proxies.push(Proxy::start(server.addr()).await.expect("a proxy"));
        }
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        (proxies, format!("redlock://{}?{}&{options}", hosts.join(","), self.prefix_option()))
    }

    /// A client behind proxies.
    pub(crate) async fn proxied_locks(&self, ttl: Duration, options: &str) -> (Locks, Vec<Proxy>) {
        let (proxies, url) = self.start_proxies(options).await;
        (connected_client(&url, ttl, &Clock::system()).await, proxies)
    }

    /// An engine that never reaches the servers in `cut`.
    pub(crate) async fn engine_without(&self, cut: &[usize], options: &str) -> (Arc<dyn Engine>, Vec<Proxy>) {
        let (proxies, url) = self.start_proxies(options).await;
        for at in cut {
            proxies[*at].refuse(true);
        }
        (leasehold::registry::open(&url, &Clock::system()).await.expect("an engine"), proxies)
    }

    pub(crate) fn kill(&mut self, which: &[usize]) {
        for at in which {
            self.server_mut(*at).kill().expect("a killed server");
        }
    }

    pub(crate) async fn restart(&mut self, which: &[usize], data: Data) {
        for at in which {
            self.server_mut(*at).restart(data).await.expect("a restarted server");
        }
    }

    pub(crate) fn pause(&mut self, which: &[usize]) {
        for at in which {
            self.server_mut(*at).pause().expect("a paused server");
        }
    }

    pub(crate) fn resume(&mut self, which: &[usize]) {
        for at in which {
            self.server_mut(*at).resume().expect("a running server");
        }
    }

    /// Sends a raw command to one server.
    pub(crate) async fn command(&self, at: usize, words: &[&str]) -> Reply {
        let mut raw = RespClient::connect(self.server(at).addr()).await.expect("a connection");
        match raw.command(words).await.expect("an answer") {
            Reply::Error(error) => panic!("{words:?}: {error}"),
            reply => reply,
        }
    }

    /// Number of scripts that a server has run since its statistics were reset.
    pub(crate) async fn script_calls(&self, at: usize) -> usize {
        let Reply::Bulk(text) = self.command(at, &["INFO", "commandstats"]).await else { panic!("no text") };
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
    }

    /// A server's votes for a lock's claims, expired ones included.
    pub(crate) async fn votes(&self, at: usize, name: &str) -> Vec<StoredVote> {
        let reply = self.command(at, &["GET", &self.key(name)]).await;
        let Some(stored) = reply.bytes() else { return Vec::new() };
        NodeLock::read(stored).expect("a lock").stored_votes().expect("votes")
    }

    /// Number of a lock's claims on a server, expired ones included.
    pub(crate) async fn claim_count(&self, at: usize, name: &str) -> usize {
        self.votes(at, name).await.len()
    }

    /// Number of a lock's claims on each server that is up.
    pub(crate) async fn claim_counts(&self, name: &str) -> Vec<usize> {
        let mut counts = Vec::new();
        for at in 0..NODES {
            if self.server(at).is_awake() {
                counts.push(self.claim_count(at, name).await);
            }
        }
        counts
    }

    /// Waits until each server that is up has `count` claims on a lock.
    #[track_caller]
    pub(crate) fn until_claim_counts(&self, name: &str, count: usize) -> impl Future<Output = ()> {
        eventually(TEST_TIMEOUT, move || async move {
            let counts = self.claim_counts(name).await;
            if counts.iter().all(|found| *found == count) { Ok(()) } else { Err(format!("{name}: {counts:?}")) }
        })
    }

    /// Renews these leases until each server that is up has `count` claims on a lock. A restarted
    /// server gets requests only after it has answered a probe, so one renewal may skip it.
    #[track_caller]
    pub(crate) fn renew_until_claim_counts(
        &self,
        ahead: &ShiftedClock,
        guards: &[&Guard],
        name: &str,
        count: usize,
    ) -> impl Future<Output = ()> {
        eventually(TEST_TIMEOUT, move || async move {
            ahead.renew_now(guards, LASTING).await;
            let counts = self.claim_counts(name).await;
            if counts.iter().all(|found| *found == count) { Ok(()) } else { Err(format!("{name}: {counts:?}")) }
        })
    }
}

/// A client that is connected to every server.
pub(crate) async fn connected_client(url: &str, ttl: Duration, clock: &Clock) -> Locks {
    Locks::builder().ttl(ttl).clock(clock.clone()).open_engine(connected_engine(url, clock).await)
}

/// An engine that is connected to every server.
pub(crate) async fn connected_engine(url: &str, clock: &Clock) -> Arc<dyn Engine> {
    let engine = eventually(TEST_TIMEOUT, || leasehold::registry::open(url, clock)).await;
    until_all_respond(&engine).await;
    engine
}

/// Waits until every server responds. A server that does not respond in time gets no requests
/// before it has answered a probe, so it would learn of claims only by their first renewal.
pub(crate) async fn until_all_respond(engine: &Arc<dyn Engine>) {
    let nothing = LockName::new("nothing").expect("a name");
    eventually(TEST_TIMEOUT, || async {
        Arc::clone(engine).inspect(nothing.clone()).await.map_err(|error| error.to_string())?;
        let shown = format!("{engine:?}");
        if shown.contains(", unresponsive)") { Err(shown) } else { Ok(()) }
    })
    .await;
}

/// A claim for an engine itself.
pub(crate) fn claim(name: &str, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
    let (name, holder) = (LockName::new(name).expect("a name"), Arc::new(Holder::this_process()));
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, owner, ttl, holder))))
}

/// One attempt: its token and deadline, or `None` if the lock is not free.
pub(crate) async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Result<Option<(Token, Instant)>> {
    match Arc::clone(engine).attempt(Arc::clone(claim), false).await? {
        AcquireReply::Granted(grant) => Ok(Some((grant.token, grant.expires_at))),
        AcquireReply::Busy { .. } => Ok(None),
        AcquireReply::CoolingDown { left } => {
            Err(Error::new(ErrorKind::Unavailable, format!("cools down for {left:?}")))
        }
        other => panic!("no queue: {other:?}"),
    }
}

/// An attempt that gets an answer, retried while too few servers respond.
pub(crate) async fn attempt_until_answered(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Option<(Token, Instant)> {
    eventually(TEST_TIMEOUT, || attempt(engine, claim)).await
}

/// Retries until the claim is granted. Returns its token and the time of the grant.
pub(crate) async fn until_granted(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> (Token, Instant) {
    eventually(TEST_TIMEOUT, || async {
        match attempt(engine, claim).await {
            Ok(Some((token, _))) => Ok((token, Clock::system().now())),
            Ok(None) => Err("the lock is not free".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

/// Acquires a lock in a task of its own.
pub(crate) fn spawn_lock(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let mutex = locks.mutex(name);
    tokio::spawn(async move { mutex.lock().await })
}

/// The guard that such a task acquires.
pub(crate) async fn await_guard(task: JoinHandle<Result<Guard>>) -> Guard {
    tokio::time::timeout(TEST_TIMEOUT, task).await.expect("the lock becomes free").expect("no panic").expect("the lock")
}

/// Acquires a lock, with a timeout on the machine's clock only.
pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name);
    tokio::time::timeout(TEST_TIMEOUT, mutex.lock()).await.expect("the lock becomes free").expect("the lock")
}

/// Releases a lock that was not lost.
pub(crate) async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("a release"), leasehold::ReleaseOutcome::Released);
}

/// A seeded pseudo-random number generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// The seed of this run: `LEASEHOLD_SEED`, or a new one, which is printed.
    pub(crate) fn seed() -> u64 {
        let given = std::env::var("LEASEHOLD_SEED").ok().map(|text| text.parse().expect("a number"));
        let seed = given.unwrap_or_else(|| leasehold::ClaimId::random().bits() as u64);
        println!("LEASEHOLD_SEED={seed}");
        seed
    }
}
