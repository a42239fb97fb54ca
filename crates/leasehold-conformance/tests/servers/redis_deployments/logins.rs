//! Passwords, databases and TLS behind Sentinels.

use std::fs;
use std::path::PathBuf;

use leasehold::{ErrorKind, Locks, ReleaseOutcome};
use leasehold_testbed::process::{Binary, Probe, ServerSpec, Workspace};
use leasehold_testbed::redis::{Redis, Reply, RespClient, SentinelSet};
use leasehold_testbed::{Result, Server, eventually};
use tokio::net::TcpStream;

use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, numbers_up_to};

pub(super) const SECRET: &str = "opensesame";

/// Two clients hand off a lock, which needs both commands and notifications.
pub(super) async fn assert_hands_off(url: &str) {
    eventually(TEST_TIMEOUT, || async { Locks::open(url).await.map(drop).map_err(|error| error.to_string()) }).await;
    let (one, two) = (client(url, LONG_TTL).await, client(url, LONG_TTL).await);
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, "a").await;
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1));
}

/// A missing or wrong password is rejected, and the error does not repeat it.
pub(super) async fn assert_login_refused(url: &str) {
    let error = Locks::open(url).await.expect_err("access denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains(SECRET) && !error.to_string().contains("wrong"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_and_a_database_behind_sentinels() {
    let set = SentinelSet::start_with_password(1, SECRET).await.expect("a set");
    assert_hands_off(&set.url()).await;
    assert_hands_off(&format!("{}?db=3", set.url())).await;
    let master = &set.nodes()[set.master().await.expect("a master")];
    let mut raw = RespClient::connect(master.addr()).await.expect("a raw connection");
    for words in [&["AUTH", SECRET][..], &["SELECT", "3"]] {
        assert_eq!(raw.command(words).await.expect("an answer"), Reply::Simple("OK".to_owned()));
    }
    assert_eq!(raw.command(&["EXISTS", "leasehold:l{a}"]).await.expect("an answer"), Reply::Integer(1));
    assert_login_refused(&set.url().replace(SECRET, "wrong")).await;
    assert_login_refused(&set.url().replace(&format!(":{SECRET}@"), "")).await;
}

/// A Sentinel that accepts only TLS, with another server's certificate.
struct TlsSentinel {
    master: u16,
    certificates: PathBuf,
}

impl ServerSpec for TlsSentinel {
    fn binary(&self) -> Binary {
        Redis::new().binary()
    }

    fn arguments(&self, _: &Workspace) -> Vec<String> {
        vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()]
    }

    fn url(&self, place: &Workspace) -> String {
        format!("redis+sentinel://{}/mymaster", place.addr())
    }

    fn prepare(&self, place: &Workspace) -> Result<()> {
        let (port, dir, at) = (place.port(), place.dir().display(), self.certificates.display());
        let config = format!(
            "port 0\ntls-port {port}\nbind 127.0.0.1\ndir {dir}\ndaemonize no\ntls-cert-file {at}/server.pem\n\
             tls-key-file {at}/server.key\ntls-ca-cert-file {at}/ca.pem\ntls-auth-clients no\ntls-replication yes\n\
             sentinel monitor mymaster 127.0.0.1 {} 1\n",
            self.master
        );
        fs::write(place.dir().join("sentinel.conf"), config).expect("a configuration");
        Ok(())
    }

    fn probe<'a>(&'a self, place: &'a Workspace) -> Probe<'a> {
        Box::pin(async move { TcpStream::connect(place.addr()).await.map(drop).map_err(|error| error.to_string()) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_behind_a_sentinel() {
    let redis = Redis::new().tls().start().await.expect("a server");
    let certificates = redis.server.dir().to_owned();
    let recipe = TlsSentinel { master: redis.server.port(), certificates };
    let sentinel = Server::start(recipe).await.expect("a Sentinel");
    assert_hands_off(&format!("{}?tls=on&ca={}", sentinel.url(), redis.ca.display())).await;
    let error = Locks::open(&sentinel.url()).await.expect_err("TLS is required");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
