//! A server, its clients, and statistics from the server.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Engine, LockView};
use leasehold::{Claim, Guard, Holder, LockName, LockOptions, Locks, Mode, Result};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use leasehold_testbed::{Proxy, Server, eventually};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::redis_faults::manual_time::patient_client;

/// Longer than any test runs, so no waiter times out.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// A server and its clients: a server of its own, or a key prefix on the shared one.
pub(crate) struct Fixture<S = Server> {
    pub(crate) server: S,
    prefix: String,
}

/// Calls per command, including those inside scripts.
pub(crate) struct CommandCalls(HashMap<String, u64>);

impl CommandCalls {
    pub(crate) fn of(&self, command: &str) -> u64 {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// Number of scripts run.
    pub(crate) fn scripts(&self) -> u64 {
        self.of("evalsha") + self.of("eval")
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with_config(Redis::new()).await
    }

    pub(crate) async fn with_config(redis: Redis) -> Self {
        Self { server: redis.start().await.expect("a server"), prefix: "leasehold:".to_owned() }
    }
}

/// The server that many tests share.
pub(crate) async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { leasehold_testbed::redis::start().await.expect("a server") }).await
}

impl Fixture<&'static Server> {
    /// A key prefix on the shared server, for tests that neither disturb it nor count its commands.
    pub(crate) async fn shared() -> Self {
        static NEXT_PREFIX: AtomicU32 = AtomicU32::new(0);
        Self { server: server().await, prefix: format!("test-{}:", NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl<S: Borrow<Server>> Fixture<S> {
    pub(crate) fn server(&self) -> &Server {
        self.server.borrow()
    }

    /// A URL with options such as `db=1&retention=1s`.
    fn url_at(&self, server: &str, options: &str) -> String {
        let prefix = if options.contains("prefix=") { String::new() } else { format!("prefix={}", self.prefix) };
        let both: Vec<_> = [&*prefix, options].into_iter().filter(|part| !part.is_empty()).collect();
        format!("{server}?{}", both.join("&"))
    }

    /// The server's URL with these options.
    pub(crate) fn url(&self, options: &str) -> String {
        self.url_at(&self.server().url(), options)
    }

    /// The key of a lock.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}l{{{name}}}", self.prefix)
    }

    /// The key of a record.
    pub(crate) fn record_key(&self, name: &str) -> String {
        format!("{}r{{{name}}}", self.prefix)
    }

    /// Opens a client.
    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        self.locks_with(ttl, "").await
    }

    pub(crate) async fn locks_with(&self, ttl: Duration, options: &str) -> Locks {
        patient_client(&self.url(options), ttl, Clock::system()).await
    }

    /// Opens a client that uses this clock.
    pub(crate) async fn locks_with_clock(&self, ttl: Duration, clock: Clock) -> Locks {
        patient_client(&self.url(""), ttl, clock).await
    }

    /// Opens a client behind a proxy.
    pub(crate) async fn proxied_locks(&self, ttl: Duration) -> (Locks, Proxy) {
        self.proxied_locks_with(ttl, Clock::system(), "").await
    }

    pub(crate) async fn proxied_locks_with(&self, ttl: Duration, clock: Clock, options: &str) -> (Locks, Proxy) {
        let proxy = Proxy::start(self.server().addr()).await.expect("a proxy");
        let url = patient_url(&self.url_at(&format!("redis://{}/", proxy.addr()), options));
        (eventually(TEST_TIMEOUT, || Locks::builder().ttl(ttl).clock(clock.clone()).open(&url)).await, proxy)
    }

    /// An engine without a keeper: it sends only what the test requests.
    pub(crate) async fn engine(&self) -> Arc<dyn Engine> {
        self.engine_with("", &Clock::system()).await
    }

    pub(crate) async fn engine_with(&self, options: &str, clock: &Clock) -> Arc<dyn Engine> {
        leasehold::registry::open(&patient_url(&self.url(options)), clock).await.expect("an engine")
    }

    /// Starts an actor process.
    pub(crate) async fn actor_process(&self, ttl: Duration) -> ActorProcess {
        ActorProcess::open(Path::new(env!("CARGO_BIN_EXE_leasehold-actor")), &self.url(""), ttl).await
    }

    /// Opens a raw connection.
    pub(crate) async fn raw_connection(&self) -> RespClient {
        RespClient::connect(self.server().addr()).await.expect("a connection")
    }

    /// Sends a raw command.
    pub(crate) async fn command(&self, words: &[&str]) -> Reply {
        match self.raw_connection().await.command(words).await.expect("an answer") {
            Reply::Error(error) => panic!("{words:?}: {error}"),
            reply => reply,
        }
    }

    pub(crate) async fn command_text(&self, words: &[&str]) -> String {
        match self.command(words).await {
            Reply::Bulk(text) | Reply::Simple(text) => text,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    pub(crate) async fn command_number(&self, words: &[&str]) -> i64 {
        match self.command(words).await {
            Reply::Integer(number) => number,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    /// The server's time since 1970.
    pub(crate) async fn time(&self) -> Duration {
        let Reply::Array(parts) = self.command(&["TIME"]).await else { panic!("no time") };
        let number = |part: &Reply| if let Reply::Bulk(text) = part { text.parse().expect("a number") } else { 0 };
        Duration::from_secs(number(&parts[0])) + Duration::from_micros(number(&parts[1]))
    }

    /// Resets the command statistics.
    pub(crate) async fn reset_stats(&self) {
        self.command_text(&["CONFIG", "RESETSTAT"]).await;
    }

    pub(crate) async fn calls(&self) -> CommandCalls {
        let text = self.command_text(&["INFO", "commandstats"]).await;
        let line = |line: &str| {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((command.to_owned(), rest.split_once(',')?.0.parse().ok()?))
        };
        CommandCalls(text.lines().filter_map(line).collect())
    }

    /// Number of connections of leasehold clients.
    pub(crate) async fn connections(&self) -> usize {
        // leasehold clients subscribe to an inbox; raw connections do not.
        self.command_text(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.lines().count()
    }

    /// Closes the connections of all leasehold clients from the server's side.
    pub(crate) async fn kill_connections(&self) -> i64 {
        self.command_number(&["CLIENT", "KILL", "TYPE", "pubsub"]).await
    }

    /// All keys.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let Reply::Array(keys) = self.command(&["KEYS", "*"]).await else { panic!("no list of keys") };
        let text = |key| if let Reply::Bulk(text) = key { text } else { panic!("{key:?} is not a key") };
        keys.into_iter().map(text).collect()
    }

    /// Asserts that every key has an expiry.
    pub(crate) async fn assert_all_keys_expire(&self) {
        for key in self.keys().await {
            let left = self.command_number(&["PTTL", &key]).await;
            // The key may have expired meanwhile.
            assert!(left > 0 || left == -2, "{key} has no expiry: {left}");
        }
    }
}

/// Acquires a lock in a task of its own.
pub(crate) fn spawn_lock(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let mutex = locks.mutex(name).timeout(PATIENCE);
    tokio::spawn(async move { mutex.lock().await })
}

/// The guard that such a task acquires.
pub(crate) async fn await_guard(task: JoinHandle<Result<Guard>>) -> Guard {
    timeout(TEST_TIMEOUT, task).await.expect("the waiter gets the lock").expect("no panic").expect("the lock")
}

/// Releases a lock that was not lost.
pub(crate) async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("a release"), leasehold::ReleaseOutcome::Released);
}

pub(crate) async fn inspect(locks: &Locks, name: &str) -> LockView {
    locks.inspect(name).await.expect("an inspection")
}

/// Waits until `count` waiters queue for the lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
    })
    .await;
}

/// Waits until no locks are held or awaited.
pub(crate) async fn until_empty(locks: &Locks) {
    eventually(TEST_TIMEOUT, || async {
        let left = locks.list("").await.map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
    })
    .await;
}

/// A claim to use with an engine directly.
pub(crate) fn claim(name: &str, mode: Mode, ttl: Duration) -> Arc<Claim> {
    let (name, holder) = (LockName::new(name).expect("a name"), Arc::new(Holder::this_process()));
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, mode, None, ttl, holder))))
}
