//! Logins and ACLs: who may use the nodes.

use leasehold::{ErrorKind, Locks, ReleaseOutcome};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::Server;
#[cfg(feature = "nightly")]
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::{Acl, Client, Error as Cause, Permission};
use tokio::time::timeout;

use crate::zookeeper_access::fixture::{
    SECRET, acquire_and_release, admin_client, assert_error, assert_no_secret, nodes, open_error, open_locks,
    shared_server,
};

/// The users of one base.
struct BaseFixture {
    server: &'static Server,
    path: &'static str,
}

impl BaseFixture {
    async fn new(path: &'static str) -> Self {
        Self { server: shared_server().await, path }
    }

    fn url(&self, login: &str, options: &str) -> String {
        format!("zookeeper://{login}{}{}?{options}", self.server.url(), self.path)
    }

    /// The paths of a held lock: the base, the folder, and the claim.
    async fn lock_paths(&self, admin: &Client, name: &str) -> Vec<String> {
        let folder = format!("{}/{name}", self.path);
        let mut all = nodes(admin, &folder).await;
        assert_eq!(all.len(), 1, "{all:?}");
        all.extend([self.path.to_owned(), folder]);
        all
    }

    /// A denied login gets an error that says what to do.
    async fn assert_denied(&self, locks: &Locks) {
        let acquiring = async { locks.mutex("a").timeout(TEST_TIMEOUT * 2).lock().await };
        let error =
            timeout(TEST_TIMEOUT, acquiring).await.expect("the call is not retried forever").expect_err("denied");
        assert_error(&error, ErrorKind::Denied, &[self.path, "user:password@", "ACL"]);
        assert!(!error.is_retryable(), "{error}");
        assert_no_secret(&error);
    }
}

fn ann_login() -> String {
    format!("ann:{SECRET}@")
}

async fn acl(admin: &Client, path: &str) -> Vec<(Permission, String, String)> {
    let (acl, _) = admin.get_acl(path).await.expect("an ACL");
    acl.iter().map(|acl: &Acl| (acl.permission(), acl.scheme().to_owned(), acl.id().to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_user_are_private_by_default() {
    let base = BaseFixture::new("/alone").await;
    let mine = open_locks(&base.url(&ann_login(), "")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let (me, other, anonymous) = tokio::join!(
        admin_client(base.server, Some("ann:opensesame")),
        admin_client(base.server, Some("bob:word")),
        admin_client(base.server, None)
    );
    for path in base.lock_paths(&me, "a").await {
        let acl = acl(&me, &path).await;
        assert_eq!(acl.len(), 1, "{path}: {acl:?}");
        let (permission, scheme, id) = &acl[0];
        assert_eq!((*permission, scheme.as_str()), (Permission::ALL, "digest"), "{path}");
        assert!(id.starts_with("ann:") && !id.contains(SECRET), "{path}: {id}");
        for other_client in [&other, &anonymous] {
            // Its parent's ACL decides who may delete the base.
            let wrong = if path == base.path { Cause::NotEmpty } else { Cause::NoAuth };
            assert_eq!(other_client.delete(&path, None).await, Err(wrong), "{path}");
            assert_eq!(other_client.list_children(&path).await, Err(Cause::NoAuth), "{path}");
        }
    }
    for login in ["bob:word@", "ann:wrong@", ""] {
        let other_client = open_locks(&base.url(login, "")).await;
        base.assert_denied(&other_client).await;
        assert_error(&other_client.inspect("a").await.expect_err("denied"), ErrorKind::Denied, &[base.path]);
        assert_error(&other_client.list("").await.expect_err("denied"), ErrorKind::Denied, &[base.path]);
        let claim = mine.inspect("a").await.expect("a view").holders[0].claim;
        assert_error(
            &other_client.force_release("a", claim).await.expect_err("denied"),
            ErrorKind::Denied,
            &[base.path],
        );
    }
    assert!(held.is_held());
    // The same user through another client.
    let again = open_locks(&base.url(&ann_login(), "")).await;
    assert!(again.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    acquire_and_release(&again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acl_readable_lets_others_read() {
    let base = BaseFixture::new("/looked").await;
    let mine = open_locks(&base.url(&ann_login(), "acl=readable")).await;
    let held = mine.mutex("a").describe("the nightly run").lock().await.expect("a lock");
    let anonymous = admin_client(base.server, None).await;
    for path in base.lock_paths(&anonymous, "a").await {
        let acl = acl(&anonymous, &path).await;
        assert_eq!(acl.len(), 2, "{path}: {acl:?}");
        assert!(acl.contains(&(Permission::READ, "world".to_owned(), "anyone".to_owned())), "{path}: {acl:?}");
        assert!(acl.iter().any(|(all, scheme, _)| *all == Permission::ALL && scheme == "digest"), "{path}: {acl:?}");
        assert!(anonymous.delete(&path, None).await.is_err(), "{path}");
    }
    for login in ["bob:word@", ""] {
        let other_client = open_locks(&base.url(login, "")).await;
        let view = other_client.inspect("a").await.expect("a view");
        assert_eq!(view.holders[0].token, Some(held.token()), "{view:?}");
        assert_eq!(&*view.holders[0].holder.description, "the nightly run");
        assert_eq!(other_client.list("").await.expect("a list").len(), 1);
        let force_released = other_client.force_release("a", view.holders[0].claim).await.expect_err("denied");
        assert_error(&force_released, ErrorKind::Denied, &["/looked"]);
        base.assert_denied(&other_client).await;
    }
    assert!(held.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acl_open_lets_everyone_write() {
    let base = BaseFixture::new("/open").await;
    let mine = open_locks(&base.url(&ann_login(), "acl=open")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let anonymous = admin_client(base.server, None).await;
    for path in base.lock_paths(&anonymous, "a").await {
        let everyone = (Permission::ALL, "world".to_owned(), "anyone".to_owned());
        assert_eq!(acl(&anonymous, &path).await, [everyone], "{path}");
    }
    let other_client = open_locks(&base.url("bob:word@", "acl=open")).await;
    assert!(other_client.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    acquire_and_release(&other_client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sasl_identifies_the_user() {
    let base = BaseFixture::new("/sasl").await;
    let mine = open_locks(&base.url(&ann_login(), "auth=sasl&acl=readable")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let anonymous = admin_client(base.server, None).await;
    for path in base.lock_paths(&anonymous, "a").await {
        let mine = (Permission::ALL, "sasl".to_owned(), "ann".to_owned());
        assert!(acl(&anonymous, &path).await.contains(&mine), "{path}");
    }
    base.assert_denied(&open_locks(&base.url("bob:word@", "auth=sasl")).await).await;
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    acquire_and_release(&mine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_reported() {
    let server = shared_server().await;
    let twice = format!("{0},{0}", server.url());
    // Also with several hosts, which a client otherwise retries for a while.
    for hosts in [server.url(), twice] {
        for login in [format!("bob:{SECRET}@"), format!("carl:{SECRET}@")] {
            let error = open_error(&format!("zookeeper://{login}{hosts}/base?auth=sasl")).await;
            assert_error(&error, ErrorKind::Denied, &["user or the password"]);
            assert!(!error.is_retryable(), "{error}");
        }
    }
}

/// A server may require a login.
#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_demand_a_login() {
    let server = ZooKeeper::new().user("ann", SECRET).setting("sessionRequireClientSASLAuth", "true");
    let server = server.start().await.expect("a server");
    let url = |login: &str, options: &str| format!("zookeeper://{login}{}/base?{options}", server.url());
    acquire_and_release(&open_locks(&url(&ann_login(), "auth=sasl")).await).await;
    for login in [String::new(), ann_login()] {
        let opened = timeout(TEST_TIMEOUT, async {
            let locks = crate::zookeeper_access::fixture::try_open(&url(&login, "")).await?;
            locks.mutex("a").lock().await.map(drop)
        });
        let error = opened.await.expect("the call is not retried forever").expect_err("denied");
        assert_error(&error, ErrorKind::Denied, &["user:password@", "auth=sasl"]);
        assert_no_secret(&error);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_not_shown() {
    let server = shared_server().await;
    for (base, options) in [("secret-a", ""), ("secret-b", "auth=sasl"), ("secret-c", "session=own")] {
        // Another login cannot use these nodes.
        let url = format!("zookeeper://{}{}/{base}?{options}", ann_login(), server.url());
        let locks = open_locks(&url).await;
        let engine = leasehold::registry::open(&url, locks.clock()).await.expect("an engine");
        let held = locks.mutex("a").lock().await.expect("a lock");
        assert_no_secret(&locks);
        assert_no_secret(&locks.url());
        assert_no_secret(&engine);
        assert_no_secret(&engine.url());
        assert_no_secret(&held);
        assert_no_secret(&locks.inspect("a").await.expect("a view"));
        assert!(locks.url().contains("ann:***@"), "{}", locks.url());
        assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    }
    for wrong in [
        "ann:open/sesame@h",
        "ann:opensesame@h:port",
        "ann:opensesame@h?sesion=own",
        "ann:opensesame@h/a//b",
        ":opensesame@h",
    ] {
        assert_no_secret(&open_error(&format!("zookeeper://{wrong}")).await);
    }
    // All hosts are unreachable: the error names them, but not the password.
    let error = open_error("zookeeper://ann:opensesame@127.0.0.1:1,127.0.0.1:2/?connect-timeout=200ms").await;
    assert_error(&error, ErrorKind::Unavailable, &["127.0.0.1:1", "127.0.0.1:2"]);
}
