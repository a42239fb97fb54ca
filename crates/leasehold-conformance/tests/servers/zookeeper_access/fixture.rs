//! Clients, refusals, and nodes as one sees them by hand.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::Server;
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::Client;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The TTL where nothing depends on it.
pub(crate) const TTL: Duration = LONG_TTL;

/// One server for all tests that do not harm it and do not count what it does, each with a base of its own. It knows two users:
/// `ann` with the [`SECRET`], and `bob` with `word`.
pub(crate) async fn shared_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    let zookeeper = || ZooKeeper::new().user("ann", SECRET).user("bob", "word");
    SERVER.get_or_init(|| async { zookeeper().start().await.expect("a server") }).await
}

/// What must never be seen again.
pub(crate) const SECRET: &str = "opensesame";

pub(crate) async fn try_open(url: &str) -> leasehold::Result<Locks> {
    Locks::builder().ttl(TTL).open(url).await
}

pub(crate) async fn open_locks(url: &str) -> Locks {
    try_open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Takes and gives back.
pub(crate) async fn acquire_and_release(locks: &Locks) {
    let held = locks.mutex("works").lock().await.expect("a lock");
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// A client cannot be opened, and no secret is in what is said about it.
pub(crate) async fn open_error(url: &str) -> Error {
    let opened = timeout(TEST_TIMEOUT, try_open(url)).await.unwrap_or_else(|_| panic!("{url} hangs"));
    let error = opened.err().unwrap_or_else(|| panic!("{url} is refused"));
    assert_no_secret(&error);
    error
}

/// It is this kind of error, and says all of this.
pub(crate) fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "it should say {word:?}: {error}");
    }
}

/// No secret is in it, however it is shown.
pub(crate) fn assert_no_secret(shown: &(impl std::fmt::Debug + ?Sized)) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

/// Somebody who looks at nodes by hand: `user:password`, or nobody.
pub(crate) async fn admin_client(server: &Server, login: Option<&str>) -> Client {
    let connector = Client::connector().with_session_timeout(TTL);
    let connector = match login {
        Some(login) => connector.with_auth("digest", login.as_bytes()),
        None => connector,
    };
    connector.connect(&server.url()).await.expect("a session")
}

/// The paths of the nodes in a folder.
pub(crate) async fn nodes(hand: &Client, folder: &str) -> Vec<String> {
    hand.sync(folder).await.expect("a server that is up to date");
    let nodes = hand.list_children(folder).await.expect("a list");
    nodes.iter().map(|node| format!("{folder}/{node}")).collect()
}

/// The session whose node it is.
pub(crate) async fn node_session(hand: &Client, folder: &str) -> i64 {
    let nodes = nodes(hand, folder).await;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    hand.check_stat(&nodes[0]).await.expect("an answer").expect("a node").ephemeral_owner
}

/// Waits until a lock is free, and takes it.
#[cfg(feature = "nightly")]
pub(crate) async fn acquire_when_free(locks: &Locks, name: &str) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        match locks.mutex(name).try_lock().await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
