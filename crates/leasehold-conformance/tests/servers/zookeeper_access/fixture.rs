//! Clients, expected errors, and direct access to nodes.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::Server;
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::Client;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The TTL for tests that do not depend on it.
pub(crate) const TTL: Duration = LONG_TTL;

/// One server, with a base per test, for all tests that neither disturb it nor count its requests.
/// It has two users: `ann` with the [`SECRET`], and `bob` with `word`.
pub(crate) async fn shared_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    let zookeeper = || ZooKeeper::new().user("ann", SECRET).user("bob", "word");
    SERVER.get_or_init(|| async { zookeeper().start().await.expect("a server") }).await
}

/// A password that no output may show.
pub(crate) const SECRET: &str = "opensesame";

pub(crate) async fn try_open(url: &str) -> leasehold::Result<Locks> {
    Locks::builder().ttl(TTL).open(url).await
}

pub(crate) async fn open_locks(url: &str) -> Locks {
    try_open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Acquires and releases a lock.
pub(crate) async fn acquire_and_release(locks: &Locks) {
    let held = locks.mutex("works").lock().await.expect("a lock");
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// Asserts that a client cannot be opened, and that the error shows no secret.
pub(crate) async fn open_error(url: &str) -> Error {
    let opened = timeout(TEST_TIMEOUT, try_open(url)).await.unwrap_or_else(|_| panic!("{url} hangs"));
    let error = opened.err().unwrap_or_else(|| panic!("{url} was opened"));
    assert_no_secret(&error);
    error
}

/// Asserts the kind of the error and words of its message.
pub(crate) fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "the error does not name {word:?}: {error}");
    }
}

/// Asserts that no secret is shown in either debug format.
pub(crate) fn assert_no_secret(shown: &(impl std::fmt::Debug + ?Sized)) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

/// A plain client for direct access to nodes, with a `user:password` login or none.
pub(crate) async fn admin_client(server: &Server, login: Option<&str>) -> Client {
    let connector = Client::connector().with_session_timeout(TTL);
    let connector = match login {
        Some(login) => connector.with_auth("digest", login.as_bytes()),
        None => connector,
    };
    connector.connect(&server.url()).await.expect("a session")
}

/// The paths of the nodes in a folder.
pub(crate) async fn nodes(admin: &Client, folder: &str) -> Vec<String> {
    admin.sync(folder).await.expect("an up-to-date server");
    let nodes = admin.list_children(folder).await.expect("a list");
    nodes.iter().map(|node| format!("{folder}/{node}")).collect()
}

/// The session that owns the folder's node.
pub(crate) async fn node_session(admin: &Client, folder: &str) -> i64 {
    let nodes = nodes(admin, folder).await;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    admin.check_stat(&nodes[0]).await.expect("an answer").expect("a node").ephemeral_owner
}

/// Waits until a lock is free and acquires it.
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
