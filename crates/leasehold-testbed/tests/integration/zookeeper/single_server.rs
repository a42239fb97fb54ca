//! One ZooKeeper: its settings, its data after a restart, and its users.

use std::{
    fs,
    process::{Command, Output},
    time::Duration,
};

use leasehold_testbed::{
    Data, Server, eventually,
    zookeeper::{self, Role, ZooKeeper, classpath, monitor_values, role, send_word},
};

use crate::zookeeper::session::{NO_NODE, NodeKind, Session};

/// Only a failing test waits this long.
const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const SHORT_SESSION: Duration = Duration::from_millis(200);
const LONG_SESSION: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_server_keeps_its_nodes_unless_wiped() {
    let mut server = zookeeper::start().await.unwrap();
    assert_eq!(server.url(), format!("127.0.0.1:{}", server.port()));
    assert_eq!(send_word(server.addr(), "ruok").await.unwrap(), "imok");
    assert_eq!(role(server.addr()).await.unwrap(), Role::Standalone);
    assert_eq!(monitor_values(server.addr()).await.unwrap()["zk_server_state"], "standalone");

    let mut client = Session::open(server.addr(), LONG_SESSION).await.unwrap();
    client.create("/kept", "v", NodeKind::Persistent).await.unwrap().unwrap();
    server.kill().unwrap();
    assert!(client.get("/kept").await.is_err());
    assert!(send_word(server.addr(), "ruok").await.is_err());

    server.restart(Data::Keep).await.unwrap();
    let mut client = Session::open(server.addr(), LONG_SESSION).await.unwrap();
    assert_eq!(client.get("/kept").await.unwrap().unwrap(), "v");

    server.restart(Data::Wipe).await.unwrap();
    let mut client = Session::open(server.addr(), LONG_SESSION).await.unwrap();
    assert_eq!(client.get("/kept").await.unwrap().unwrap_err(), NO_NODE);
}

async fn wait_until_gone(server: &Server, path: &str) {
    let mut client = Session::open(server.addr(), LONG_SESSION).await.unwrap();
    let client = tokio::sync::Mutex::new(&mut client);
    eventually(TEST_TIMEOUT, || async {
        match client.lock().await.get(path).await.unwrap() {
            Err(NO_NODE) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn sessions_may_be_short_and_their_nodes_are_removed() {
    let server = zookeeper::start().await.unwrap();
    assert_eq!(Session::open(server.addr(), SHORT_SESSION).await.unwrap().timeout, SHORT_SESSION);
    // The session sends no heartbeat, so it expires, and its node is removed.
    let mut brief = Session::open(server.addr(), Duration::from_secs(4)).await.unwrap();
    brief.create("/of-a-session", "", NodeKind::Ephemeral).await.unwrap().unwrap();
    let mut long = Session::open(server.addr(), LONG_SESSION).await.unwrap();
    assert_eq!(long.timeout, LONG_SESSION);
    long.create("/container", "", NodeKind::Container).await.unwrap().unwrap();
    long.create("/container/only", "", NodeKind::Persistent).await.unwrap().unwrap();
    long.delete("/container/only").await.unwrap().unwrap();
    long.create("/brief", "", NodeKind::Ttl(SHORT_SESSION)).await.unwrap().unwrap();
    tokio::join!(
        wait_until_gone(&server, "/of-a-session"),
        wait_until_gone(&server, "/container"),
        wait_until_gone(&server, "/brief")
    );
}

#[tokio::test]
async fn tick_and_session_bounds_are_applied() {
    let (tick, shortest, longest) = (Duration::from_millis(50), Duration::from_secs(1), Duration::from_secs(2));
    let set = ZooKeeper::new().tick(tick).session_bounds(shortest, longest).fsync().setting("maxClientCnxns", "7");
    let server = set.start().await.unwrap();
    let config = send_word(server.addr(), "conf").await.unwrap();
    for line in ["tickTime=50", "minSessionTimeout=1000", "maxSessionTimeout=2000", "maxClientCnxns=7"] {
        assert!(config.lines().any(|said| said == line), "{line} is not in {config}");
    }
    assert_eq!(Session::open(server.addr(), SHORT_SESSION).await.unwrap().timeout, shortest);
    assert_eq!(Session::open(server.addr(), LONG_SESSION).await.unwrap().timeout, longest);
}

/// Runs ZooKeeper's own command-line client with this login, and returns the output of `whoami`.
async fn whoami(server: &Server, name: &str, password: &str) -> Output {
    let login = server.dir().join(format!("{name}-{password}.conf"));
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    fs::write(&login, format!("Client {{ {module} required username=\"{name}\" password=\"{password}\"; }};")).unwrap();
    let mut java = Command::new("java");
    java.args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        .arg(format!("-Djava.security.auth.login.config={}", login.display()))
        .args(["-cp", &classpath(), "org.apache.zookeeper.ZooKeeperMain", "-server", &server.url(), "whoami"]);
    tokio::task::spawn_blocking(move || java.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn users_log_in_by_their_passwords() {
    let server = ZooKeeper::new().user("ann", "word").user("bob", "other").start().await.unwrap();
    let (right, second, wrong) =
        tokio::join!(whoami(&server, "ann", "word"), whoami(&server, "bob", "other"), whoami(&server, "ann", "other"));
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said(&right).contains("sasl: ann"), "{right:?}");
    assert!(said(&second).contains("sasl: bob"), "{second:?}");
    assert!(!said(&wrong).contains("sasl"), "{wrong:?}");
}
