//! The ACL rules in docs/redis-acl.md are sufficient, and each one is necessary.

use std::net::SocketAddr;

use leasehold::clock::ManualClock;
use leasehold::{Error, ErrorKind, Locks, LostReason, Owner, ReleaseOutcome};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, patient_url, raw_command, until_free, until_waiting,
    within_bound,
};
use crate::redis_faults::manual_time::{pass_and_renew, patient_client};

const PAGE: &str = include_str!("../../../../../docs/redis-acl.md");

/// The rules after `ACL SETUSER name` in the page's lines for this user: the first line, or all.
pub(super) fn acl_rules(user: &str, all: bool) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {user} ");
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix(&start));
    lines.take(if all { usize::MAX } else { 1 }).flat_map(str::split_whitespace).collect()
}

pub(super) async fn set_user(addr: SocketAddr, user: &str, rules: &[&str]) {
    let words: Vec<_> = ["ACL", "SETUSER", user, "reset"].iter().chain(rules).copied().collect();
    assert_eq!(raw_command(addr, &words).await, Reply::Simple("OK".to_owned()), "{words:?}");
}

/// The URL with this user.
pub(super) fn url_as_user(url: &str, user: &str) -> String {
    url.replacen("://", &format!("://{user}:secret@"), 1)
}

/// Creates a user with all documented rules except one, and returns its URL.
pub(super) async fn url_without(server: &Server, missing: &str) -> String {
    let user = format!("no{}", missing.replace(['+', '|', '~', '&', ':', '*'], "-"));
    let rules: Vec<_> = acl_rules("app", true).into_iter().filter(|rule| *rule != missing).collect();
    set_user(server.addr(), &user, &rules).await;
    url_as_user(&server.url(), &user)
}

pub(super) fn assert_denied(error: &Error, names: &str) {
    // An error from inside a script names the command without its subcommand.
    let names = names.split('|').next().filter(|_| error.to_string().contains("executing the script")).unwrap_or(names);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.to_lowercase().contains(&names.to_lowercase()), "the error does not name {names}: {text}");
    assert!(!text.contains("secret"), "{text}");
}

pub(super) async fn assert_released(guard: leasehold::Guard) {
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// Uses every kind of lock, without inspections.
pub(super) async fn use_every_lock_kind(one: &Locks, two: &Locks) {
    let owner = Owner::new();
    let held = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = one.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("its owner re-enters");
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_released(again).await;
    assert_released(held).await;
    let (reading, also) =
        (one.rwlock("b").read().await.expect("a lock"), two.rwlock("b").read().await.expect("a lock"));
    assert!(two.rwlock("b").try_write().await.expect("an answer").is_none());
    let permits = one.semaphore("c", 3).acquire(2).await.expect("permits");
    assert!(two.semaphore("c", 3).try_acquire(2).await.expect("an answer").is_none());
    let all = one.multi_lock(["d", "e"]).lock().await.expect("both");
    assert_eq!(all.release().await.expect("an answer").len(), 2);
    for guard in [reading, also, permits] {
        assert_released(guard).await;
    }
    let (records, others) = (one.records().expect("records"), two.records().expect("records"));
    let made = records.update("a", |_, now| Some(format!("{now:?}"))).await.expect("a record");
    assert_eq!(others.get("a").await.expect("a record").value, made.value);
    let removed = others.compare_and_set("a", made.version, "").await.expect("an answer");
    assert_eq!(removed.expect("a removed record").version, 0);
}

/// A waiter is notified when it gets the lock; an admin client sees it wait.
pub(super) async fn hand_off(admin: &Locks, one: &Locks, two: &Locks, name: &str) {
    let held = one.mutex(name).lock().await.expect("a lock");
    let mutex = two.mutex(name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_waiting(admin, name, 1).await;
    assert_released(held).await;
    assert_released(within_bound("the waiter gets the lock", waiting).await.expect("no panic").expect("a lock")).await;
}

/// Holds enough leases to form a renewal group, and closes the connection so that all are renewed.
async fn hold_many_leases(server: &Server, locks: &Locks, about: &str) -> Vec<leasehold::Guard> {
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(locks.mutex(format!("{about}-{number}")).lock().await.expect("a lock"));
    }
    assert!(matches!(raw_command(server.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await, Reply::Integer(1..)));
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_minimal_acl_is_enough_for_locks() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    set_user(server.addr(), "app", &acl_rules("app", false)).await;
    let url = url_as_user(&server.url(), "app");
    let (one, two) = (patient_client(&url, LONG_TTL, manual_clock.clock()).await, client(&url, LONG_TTL).await);
    use_every_lock_kind(&one, &two).await;
    hand_off(&client(&server.url(), LONG_TTL).await, &one, &two, "f").await;
    let many = hold_many_leases(&server, &one, "many").await;
    eventually(TEST_TIMEOUT, || async {
        match raw_command(server.addr(), &["KEYS", "leasehold:b*"]).await {
            Reply::Array(groups) if groups.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for _ in 0..3 {
        pass_and_renew(&many, |by| manual_clock.advance(by)).await;
    }
    assert!(two.mutex("many-0").try_lock().await.expect("an answer").is_none());
    for guard in many {
        assert_released(guard).await;
    }
    assert_denied(&one.inspect("a").await.expect_err("no permission for an inspection"), "hgetall");
    assert_denied(&one.list("").await.expect_err("no permission for a list"), "scan");
    assert_denied(&one.records().expect("records").list("").await.expect_err("no permission for a list"), "scan");
    // The client sends its scripts again to a server that has lost them.
    assert_eq!(raw_command(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    use_every_lock_kind(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_full_acl_is_enough_for_everything() {
    let server = redis::start().await.expect("a server");
    set_user(server.addr(), "app", &acl_rules("app", true)).await;
    let url = url_as_user(&server.url(), "app");
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    use_every_lock_kind(&one, &two).await;
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, "a").await;
    assert_eq!(two.list("").await.expect("a list").len(), 1);
    let view = two.inspect("a").await.expect("a view");
    two.request_release("a", view.holders[0].claim, "").await.expect("a request").expect("the claim holds the lock");
    tokio::time::timeout(TEST_TIMEOUT, held.release_requested()).await.expect("the holder learns of the request");
    let force_released = two.force_release("a", view.holders[0].claim).await.expect("a force release");
    assert!(force_released.fence_token > Some(held.token()));
    assert_eq!(within_bound("the holder learns of the loss", held.lost()).await, LostReason::Revoked);
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1));
    let mut observer = two.election("b").observe().expect("an observer");
    assert_eq!(observer.next().await.expect("an answer"), None);
    let leader = one.election("b").campaign().await.expect("elected");
    let seen = within_bound("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
    assert_eq!(seen.token, leader.token());
    let _ = leader.resign().await.expect("an answer");
    assert_eq!(within_bound("the resignation is seen", observer.next()).await.expect("an answer"), None);
}

/// Without one of these permissions, no lock can be acquired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_every_lock_needs() {
    let server = redis::start().await.expect("a server");
    for (missing, names) in [("+subscribe", "'subscribe'"), ("&leasehold:*", "channels"), ("+info", "'info'")] {
        let opened = Locks::open(&patient_url(&url_without(&server, missing).await)).await;
        assert_denied(&opened.expect_err("no inbox, or no run id"), names);
    }
    for missing in ["+evalsha", "+time", "+hget", "+hset", "+expire", "~leasehold:*"] {
        let locks = client(&url_without(&server, missing).await, LONG_TTL).await;
        let names = if missing == "~leasehold:*" { "keys" } else { &missing[1..] };
        assert_denied(&locks.mutex("a").lock().await.expect_err(missing), names);
        assert_denied(&locks.mutex("b").try_lock().await.expect_err(missing), names);
        set_user(server.addr(), "app", &acl_rules("app", true)).await;
        let other = client(&url_as_user(&server.url(), "app"), LONG_TTL).await;
        until_free(&other, "a").await;
        until_free(&other, "b").await;
        for name in ["a", "b"] {
            raw_command(server.addr(), &["DEL", &format!("leasehold:l{{{name}}}")]).await;
        }
    }
    // Either one is enough: the client stores the script or sends its text.
    for missing in ["+eval", "+script|load"] {
        let locks = client(&url_without(&server, missing).await, LONG_TTL).await;
        use_every_lock_kind(&locks, &locks).await;
    }
    let sent = url_without(&server, "+eval").await;
    let locks = client(&sent, LONG_TTL).await;
    assert_eq!(raw_command(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    assert_denied(&locks.mutex("a").lock().await.expect_err("the server has lost the script"), "'eval'");
}

/// Without one of these permissions, one feature fails with an error that names it, and the rest
/// works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_some_features_need() {
    let server = redis::start().await.expect("a server");
    let admin = client(&server.url(), LONG_TTL).await;
    let simple = async |locks: &Locks| assert_released(locks.mutex("plain").lock().await.expect("a lock")).await;
    for (missing, what) in [
        ("+hgetall", "an inspection"),
        ("+scan", "a list"),
        ("+exists", "an observer"),
        ("+client|tracking", "an observer"),
        ("+client|caching", "an observer"),
    ] {
        let locks = client(&url_without(&server, missing).await, LONG_TTL).await;
        let failed = match what {
            "an inspection" => locks.inspect("a").await.map(drop),
            "a list" => locks.list("").await.map(drop),
            _ => {
                let mut observer = locks.election("a").observe().expect("an observer");
                assert_eq!(observer.next().await.expect("the current leader is visible"), None);
                within_bound("the observer gets an error", observer.next()).await.map(drop)
            }
        };
        assert_denied(&failed.expect_err(what), &missing[1..]);
        use_every_lock_kind(&locks, &locks).await;
        hand_off(&admin, &locks, &locks, "handed").await;
    }
    let locks = client(&url_without(&server, "+hdel").await, LONG_TTL).await;
    let reading = locks.rwlock("shared").read().await.expect("a lock");
    assert_denied(&reading.release().await.expect_err("the hold cannot be removed"), "hdel");
    let view = admin.inspect("shared").await.expect("a view");
    assert_eq!(view.holders.len(), 1, "a failed release changes nothing: {view:?}");
    simple(&locks).await;
}
