//! The ACL rules in docs/redis-acl.md for Redlock.

use std::time::Duration;

use leasehold::{ErrorKind, Locks, LostReason, Owner};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{IndependentServers, Reply};

use crate::redis_deployments::acl::{acl_rules, assert_denied, assert_released, set_user};
use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, client, is_renewed, raw_command, with_a_lease, within_bound,
};

/// Creates a user with all documented rules except one on three servers, and returns its URL.
async fn create_user_on_all(set: &IndependentServers, all: bool, missing: &str) -> String {
    let rules: Vec<_> = acl_rules("voter", all).into_iter().filter(|rule| *rule != missing).collect();
    for server in set.servers() {
        set_user(server.addr(), "voter", &rules).await;
        // Scripts that a user with more permissions stored must not help this one.
        assert_eq!(raw_command(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    }
    let hosts: Vec<_> = set.servers().iter().map(|server| format!("voter:secret@{}", server.addr())).collect();
    format!("redlock://{}?node-timeout=60s", hosts.join(","))
}

/// Sends a command to each server.
async fn command_on_all(set: &IndependentServers, words: &[&str]) -> Vec<Reply> {
    let mut replies = Vec::new();
    for server in set.servers() {
        replies.push(raw_command(server.addr(), words).await);
    }
    replies
}

/// Every operation of a Redlock lock.
async fn use_every_redlock_operation(one: &Locks, two: &Locks) {
    let owner = Owner::new();
    let held = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = one.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("its owner re-enters");
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_released(again).await;
    assert_released(held).await;
    with_a_lease(async |ttl| is_renewed_and_force_released(one, two, ttl).await).await;
}

/// Returns `false` if the lease expired before it was renewed or force-released.
async fn is_renewed_and_force_released(one: &Locks, two: &Locks, ttl: Duration) -> bool {
    let name = format!("b{}", ttl.as_secs());
    let kept = match one.mutex(&name).ttl(ttl).lock().await {
        Err(error) if error.kind() == ErrorKind::Unavailable => return false,
        granted => granted.expect("a lock"),
    };
    if !is_renewed(&kept).await {
        return false;
    }
    let mutex = two.mutex(&name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let view = two.inspect(&name).await.expect("a view");
    if let Some(holder) = view.holders.first() {
        two.force_release(&name, holder.claim).await.expect("a force release");
    }
    let reason = within_bound("the holder learns of the loss", kept.lost()).await;
    if reason == LostReason::Expired {
        return false;
    }
    assert_eq!(reason, LostReason::Revoked);
    assert_released(within_bound("the waiter gets the lock", waiting).await.expect("no panic").expect("a lock")).await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_redlock_needs() {
    let set = IndependentServers::start(3).await.expect("servers");
    for all in [false, true] {
        let url = create_user_on_all(&set, all, "").await;
        let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
        use_every_redlock_operation(&one, &two).await;
    }
    let mut tried = vec!["on", ">secret", "resetkeys", "resetchannels", "-@all"];
    for missing in ["~leasehold:*", "+evalsha", "+eval", "+time", "+get", "+set"] {
        let locks = client(&create_user_on_all(&set, false, missing).await, LONG_TTL).await;
        let names = if missing == "~leasehold:*" { "keys" } else { &missing[1..] };
        assert_denied(&locks.mutex(missing).lock().await.expect_err(missing), names);
        tried.push(missing);
    }
    // A release also works on a server without free memory.
    for missing in ["+del", ""] {
        let locks = client(&create_user_on_all(&set, false, missing).await, LONG_TTL).await;
        let held = locks.mutex("full").lock().await.expect("a lock");
        // Two votes are enough for the lock; the third may still be on its way.
        eventually(TEST_TIMEOUT, || async {
            let votes = command_on_all(&set, &["EXISTS", "leasehold:qfull"]).await;
            if votes.iter().all(|there| *there == Reply::Integer(1)) { Ok(()) } else { Err(format!("{votes:?}")) }
        })
        .await;
        command_on_all(&set, &["CONFIG", "SET", "maxmemory", "1"]).await;
        match missing {
            "" => assert_released(held).await,
            _ => assert_denied(&held.release().await.expect_err(missing), "del"),
        }
        let left = command_on_all(&set, &["PTTL", "leasehold:qfull"]).await;
        assert!(left.iter().all(|left| matches!(left, Reply::Integer(1..))), "{missing:?}: {left:?}");
        command_on_all(&set, &["CONFIG", "SET", "maxmemory", "0"]).await;
        command_on_all(&set, &["DEL", "leasehold:qfull"]).await;
        tried.push(missing);
    }
    let least = acl_rules("voter", false);
    assert!(least.iter().all(|rule| tried.contains(rule)), "the page names a rule that no test covers: {least:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_redlock_url_options_need() {
    let set = IndependentServers::start(3).await.expect("servers");
    let least = create_user_on_all(&set, false, "").await;
    assert_denied(&client(&least, LONG_TTL).await.list("").await.expect_err("no SCAN"), "scan");
    assert_denied(&Locks::open(&format!("{least}&db=1")).await.expect_err("no SELECT"), "'select'");
    assert_denied(&Locks::open(&format!("{least}&strict=1s")).await.expect_err("no INFO"), "'info'");
    for missing in ["", "+script|load"] {
        let url = create_user_on_all(&set, true, missing).await;
        let locks = client(&format!("{url}&strict=5s&db=1"), Duration::from_secs(5)).await;
        assert_released(within_bound("a lock", locks.mutex("a").lock()).await.expect("a lock")).await;
        assert!(locks.list("").await.expect("a list").is_empty());
    }
    // A majority with the permissions is enough.
    let url = create_user_on_all(&set, false, "").await;
    set_user(set.server(0).addr(), "voter", &["on", ">secret"]).await;
    assert_released(client(&url, LONG_TTL).await.mutex("b").lock().await.expect("a lock")).await;
    // Only a user who may run INFO detects that two addresses reach the same server.
    let host = |name: &str, at: usize| format!("voter:secret@{name}:{}", set.server(at).port());
    let twice = format!("redlock://{},{},{}", host("127.0.0.1", 1), host("localhost", 1), host("127.0.0.1", 2));
    Locks::open(&twice).await.expect("the duplicate is not detected");
    create_user_on_all(&set, true, "").await;
    let error = Locks::open(&twice).await.expect_err("the duplicate is detected");
    assert!(error.to_string().contains("vote twice"), "{error}");
}
