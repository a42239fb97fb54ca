//! Servers whose clocks are minutes apart, and changing majorities: tokens rise all the same.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_internals::logic::fence::{FenceState, admits};
use leasehold_testbed::process::{Binary, Probe, ServerSpec, Workspace};
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use leasehold_testbed::{Data, Server, eventually};

use crate::redlock_faults::fixture::{LASTING, PATIENT, lock, release};

/// The clock error of each server in seconds.
const SKEWS: [i64; 5] = [600, -420, 0, 180, -60];
/// Which servers are alive, one set after another. Each set shares a server with the one before,
/// and some lack the fastest.
pub(super) const ALIVE_SETS: [[usize; 3]; 8] =
    [[0, 1, 2], [2, 3, 4], [0, 1, 4], [1, 3, 4], [1, 2, 3], [0, 3, 4], [1, 2, 4], [0, 2, 4]];

/// A Redis with a skewed clock that writes to disk before it acknowledges.
struct SkewedRedis {
    redis: Redis,
    skew: i64,
}

impl ServerSpec for SkewedRedis {
    fn binary(&self) -> Binary {
        Binary::new("env", "coreutils")
    }

    fn arguments(&self, place: &Workspace) -> Vec<String> {
        // The loader replaces $LIB with the machine's library directory. Memory comes from libc,
        // because Redis' own allocator reads the time before the faketime library is ready.
        let env = [
            "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1:libc.so.6".to_owned(),
            format!("FAKETIME={:+}", self.skew),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "redis-server".to_owned(),
        ];
        env.into_iter().chain(self.redis.arguments(place)).collect()
    }

    fn url(&self, place: &Workspace) -> String {
        self.redis.url(place)
    }

    fn probe<'a>(&'a self, place: &'a Workspace) -> Probe<'a> {
        self.redis.probe(place)
    }
}

async fn server_time_secs(server: &Server) -> i64 {
    let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
    let Reply::Array(time) = raw.command(&["TIME"]).await.expect("an answer") else { panic!("no time") };
    let Reply::Bulk(text) = &time[0] else { panic!("no seconds") };
    text.parse().expect("a number")
}

async fn skewed_servers() -> Vec<Server> {
    let redis = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let starting = SKEWS.map(|skew| Server::start(SkewedRedis { redis: redis.clone(), skew }));
    let servers = futures_util::future::try_join_all(starting).await.expect("servers");
    let right = server_time_secs(&servers[2]).await;
    for (server, skew) in servers.iter().zip(SKEWS) {
        let wrong = server_time_secs(server).await - right;
        assert!((wrong - skew).abs() < 30, "the clock is not skewed: is the Debian package `faketime` installed?");
    }
    servers
}

fn url(servers: &[Server], options: &str) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    format!("redlock://{}?{options}", hosts.join(","))
}

/// Starts these servers and kills all others.
async fn keep_alive_only(servers: &mut [Server], alive: &[usize]) {
    for (at, server) in servers.iter_mut().enumerate() {
        match (alive.contains(&at), server.pid().is_some()) {
            (true, false) => server.restart(Data::Keep).await.expect("a restarted server"),
            (false, true) => server.kill().expect("a killed server"),
            _ => {}
        }
    }
}

async fn assert_token_rises(locks: &Locks, last: &mut Token, when: &str) {
    let guard = lock(locks, "a").await;
    assert!(guard.token() > *last, "{when}: {} after {last}", guard.token());
    assert!(!admits(FenceState { token: guard.token(), owner: None }, *last, None) || *last == Token(0), "{when}");
    *last = guard.token();
    release(guard).await;
}

/// Tokens rise while one set of servers after another is alive.
pub(super) async fn assert_tokens_rise(options: &str, sets: &[[usize; 3]]) {
    let mut servers = skewed_servers().await;
    let url = url(&servers, options);
    let old = Locks::builder().ttl(LASTING).open(&url).await.expect("a client");
    let mut last = Token(0);
    assert_token_rises(&old, &mut last, "all alive").await;
    for alive in sets {
        keep_alive_only(&mut servers, alive).await;
        let when = format!("{alive:?} alive");
        // A new client knows only the clocks of the live servers, so its token guess is too low
        // without the fastest one.
        let new = Locks::builder().ttl(LASTING).open(&url).await.expect("a client");
        for _ in 0..3 {
            assert_token_rises(&new, &mut last, &when).await;
            assert_token_rises(&old, &mut last, &when).await;
        }
        let held = lock(&new, "a").await;
        assert!(held.token() > last);
        last = held.token();
        let view = eventually(TEST_TIMEOUT, || new.inspect("a")).await;
        let force_released = eventually(TEST_TIMEOUT, || new.force_release("a", view.holders[0].claim)).await;
        let fence = force_released.fence_token.expect("a token");
        assert!(fence > last, "{when}: {fence} after {last}");
        last = fence;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_majorities() {
    assert_tokens_rise(PATIENT, &ALIVE_SETS[..3]).await;
}

/// Each server measures a lease by its own clock, so clock differences do not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skewed_node_clocks_do_not_change_lease_durations() {
    let servers = skewed_servers().await;
    let url = url(&servers, "");
    let ttl = Duration::from_secs(2);
    let (locks, other) = (
        leasehold::registry::open(&url, &leasehold::clock::Clock::system()).await.expect("an engine"),
        Locks::builder().ttl(LASTING).open(&url).await.expect("a client"),
    );
    let claim = crate::redlock_faults::fixture::claim("a", None, ttl);
    let (token, end) = eventually(TEST_TIMEOUT, || async {
        let answer =
            crate::redlock_faults::fixture::attempt(&locks, &claim).await.map_err(|error| error.to_string())?;
        answer.ok_or("the lock is not free".to_owned())
    })
    .await;
    let next = lock(&other, "a").await;
    // With clocks that are minutes apart, a wrong measurement would be minutes early or late.
    let now = other.clock().now();
    assert!(now >= end, "{:?} before the lease expired", end.duration_since(now));
    assert!(next.token() > token);
    release(next).await;
}
