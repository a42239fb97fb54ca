//! Who may do what with our nodes.

use leasehold::{ErrorKind, Locks, Outcome};
use leasehold_conformance::world::SOON;
use leasehold_testbed::Server;
#[cfg(feature = "nightly")]
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::{Acl, Client, Error as Cause, Permission};
use tokio::time::timeout;

use crate::zookeeper_access::site::{SECRET, client, hand, hides, nodes, refused, says, server, works};

/// The users of one base.
struct Base {
    server: &'static Server,
    path: &'static str,
}

impl Base {
    async fn new(path: &'static str) -> Self {
        Self { server: server().await, path }
    }

    fn url(&self, login: &str, options: &str) -> String {
        format!("zookeeper://{login}{}{}?{options}", self.server.url(), self.path)
    }

    /// Everything that belongs to a held lock: the base, the folder, and the claim.
    async fn all_nodes(&self, hand: &Client, name: &str) -> Vec<String> {
        let folder = format!("{}/{name}", self.path);
        let mut all = nodes(hand, &folder).await;
        assert_eq!(all.len(), 1, "{all:?}");
        all.extend([self.path.to_owned(), folder]);
        all
    }

    /// A login that is denied hears it, and what it may do about it.
    async fn denies(&self, locks: &Locks) {
        let asking = async { locks.mutex("a").wait(SOON * 2).lock().await };
        let error = timeout(SOON, asking).await.expect("it is not tried for ever").expect_err("denied");
        says(&error, ErrorKind::Denied, &[self.path, "user:password@", "ACL"]);
        assert!(!error.is_retryable(), "{error}");
        hides(&error);
    }
}

fn ann() -> String {
    format!("ann:{SECRET}@")
}

async fn acl(hand: &Client, path: &str) -> Vec<(Permission, String, String)> {
    let (acl, _) = hand.get_acl(path).await.expect("an ACL");
    acl.iter().map(|acl: &Acl| (acl.permission(), acl.scheme().to_owned(), acl.id().to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_makes_is_his_alone() {
    let base = Base::new("/alone").await;
    let mine = client(&base.url(&ann(), "")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let (me, other, nobody) = tokio::join!(
        hand(base.server, Some("ann:opensesame")),
        hand(base.server, Some("bob:word")),
        hand(base.server, None)
    );
    for path in base.all_nodes(&me, "a").await {
        let acl = acl(&me, &path).await;
        assert_eq!(acl.len(), 1, "{path}: {acl:?}");
        let (permission, scheme, id) = &acl[0];
        assert_eq!((*permission, scheme.as_str()), (Permission::ALL, "digest"), "{path}");
        assert!(id.starts_with("ann:") && !id.contains(SECRET), "{path}: {id}");
        for stranger in [&other, &nobody] {
            // Who may delete the base is written above it.
            let wrong = if path == base.path { Cause::NotEmpty } else { Cause::NoAuth };
            assert_eq!(stranger.delete(&path, None).await, Err(wrong), "{path}");
            assert_eq!(stranger.list_children(&path).await, Err(Cause::NoAuth), "{path}");
        }
    }
    for login in ["bob:word@", "ann:wrong@", ""] {
        let stranger = client(&base.url(login, "")).await;
        base.denies(&stranger).await;
        says(&stranger.inspect("a").await.expect_err("denied"), ErrorKind::Denied, &[base.path]);
        says(&stranger.list("").await.expect_err("denied"), ErrorKind::Denied, &[base.path]);
        let claim = mine.inspect("a").await.expect("a view").holders[0].claim;
        says(&stranger.evict("a", claim).await.expect_err("denied"), ErrorKind::Denied, &[base.path]);
    }
    assert!(held.is_held());
    // The same user comes in by another door.
    let again = client(&base.url(&ann(), "")).await;
    assert!(again.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    works(&again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_may_look_if_they_are_let() {
    let base = Base::new("/looked").await;
    let mine = client(&base.url(&ann(), "acl=readable")).await;
    let held = mine.mutex("a").describe("the nightly run").lock().await.expect("a lock");
    let nobody = hand(base.server, None).await;
    for path in base.all_nodes(&nobody, "a").await {
        let acl = acl(&nobody, &path).await;
        assert_eq!(acl.len(), 2, "{path}: {acl:?}");
        assert!(acl.contains(&(Permission::READ, "world".to_owned(), "anyone".to_owned())), "{path}: {acl:?}");
        assert!(acl.iter().any(|(all, scheme, _)| *all == Permission::ALL && scheme == "digest"), "{path}: {acl:?}");
        assert!(nobody.delete(&path, None).await.is_err(), "{path}");
    }
    for login in ["bob:word@", ""] {
        let stranger = client(&base.url(login, "")).await;
        let view = stranger.inspect("a").await.expect("a view");
        assert_eq!(view.holders[0].token, Some(held.token()), "{view:?}");
        assert_eq!(&*view.holders[0].holder.text, "the nightly run");
        assert_eq!(stranger.list("").await.expect("a list").len(), 1);
        let evicted = stranger.evict("a", view.holders[0].claim).await.expect_err("denied");
        says(&evicted, ErrorKind::Denied, &["/looked"]);
        base.denies(&stranger).await;
    }
    assert!(held.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_may_leave_his_nodes_to_all() {
    let base = Base::new("/open").await;
    let mine = client(&base.url(&ann(), "acl=open")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let nobody = hand(base.server, None).await;
    for path in base.all_nodes(&nobody, "a").await {
        let everybody = (Permission::ALL, "world".to_owned(), "anyone".to_owned());
        assert_eq!(acl(&nobody, &path).await, [everybody], "{path}");
    }
    let stranger = client(&base.url("bob:word@", "acl=open")).await;
    assert!(stranger.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    works(&stranger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sasl_knows_who_we_are() {
    let base = Base::new("/sasl").await;
    let mine = client(&base.url(&ann(), "auth=sasl&acl=readable")).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let nobody = hand(base.server, None).await;
    for path in base.all_nodes(&nobody, "a").await {
        let mine = (Permission::ALL, "sasl".to_owned(), "ann".to_owned());
        assert!(acl(&nobody, &path).await.contains(&mine), "{path}");
    }
    base.denies(&client(&base.url("bob:word@", "auth=sasl")).await).await;
    assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    works(&mine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told() {
    let server = server().await;
    let twice = format!("{0},{0}", server.url());
    // Where there are several hosts, too, which are otherwise tried for a while.
    for hosts in [server.url(), twice] {
        for login in [format!("bob:{SECRET}@"), format!("carl:{SECRET}@")] {
            let error = refused(&format!("zookeeper://{login}{hosts}/base?auth=sasl")).await;
            says(&error, ErrorKind::Denied, &["user or the password"]);
            assert!(!error.is_retryable(), "{error}");
        }
    }
}

/// A server may let in only who has logged in.
#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_demand_a_login() {
    let server = ZooKeeper::new().user("ann", SECRET).setting("sessionRequireClientSASLAuth", "true");
    let server = server.start().await.expect("a server");
    let url = |login: &str, options: &str| format!("zookeeper://{login}{}/base?{options}", server.url());
    works(&client(&url(&ann(), "auth=sasl")).await).await;
    for login in [String::new(), ann()] {
        let opened = timeout(SOON, async {
            let locks = crate::zookeeper_access::site::open(&url(&login, "")).await?;
            locks.mutex("a").lock().await.map(drop)
        });
        let error = opened.await.expect("it is not tried for ever").expect_err("denied");
        says(&error, ErrorKind::Denied, &["user:password@", "auth=sasl"]);
        hides(&error);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_not_shown() {
    let server = server().await;
    for (base, options) in [("secret-a", ""), ("secret-b", "auth=sasl"), ("secret-c", "session=own")] {
        // What one login has made is closed to the other.
        let url = format!("zookeeper://{}{}/{base}?{options}", ann(), server.url());
        let locks = client(&url).await;
        let engine = leasehold::engine::open(&url, locks.clock()).await.expect("an engine");
        let held = locks.mutex("a").lock().await.expect("a lock");
        hides(&locks);
        hides(&locks.url());
        hides(&engine);
        hides(&engine.url());
        hides(&held);
        hides(&locks.inspect("a").await.expect("a view"));
        assert!(locks.url().contains("ann:***@"), "{}", locks.url());
        assert_eq!(held.release().await.expect("an answer"), Outcome::Released);
    }
    for wrong in [
        "ann:open/sesame@h",
        "ann:opensesame@h:port",
        "ann:opensesame@h?sesion=own",
        "ann:opensesame@h/a//b",
        ":opensesame@h",
    ] {
        hides(&refused(&format!("zookeeper://{wrong}")).await);
    }
    // All of them are away: the error names them, and not the password.
    let error = refused("zookeeper://ann:opensesame@127.0.0.1:1,127.0.0.1:2/?connect-timeout=200ms").await;
    says(&error, ErrorKind::Unavailable, &["127.0.0.1:1", "127.0.0.1:2"]);
}
