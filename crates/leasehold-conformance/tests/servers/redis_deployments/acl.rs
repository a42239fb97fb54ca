//! The ACL lines of docs/redis-acl.md are enough, and nothing in them is too much.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Renewal};
use leasehold::{Claim, Error, ErrorKind, Holder, LockName, Locks, LostReason, Mode, Outcome, Owner, Terms};
use leasehold_testbed::redis::{Cluster, Independent, Reply, SentinelSet, slot_of};
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_deployments::deployment::{
    BOUND, LONG, Line, client, in_order, raw, soon, until_free, until_renewed, until_waiting,
};

const PAGE: &str = include_str!("../../../../../docs/redis-acl.md");

/// The words behind `ACL SETUSER name` in the page's lines for this user: the first, or all.
fn rules(user: &str, all: bool) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {user} ");
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix(&start));
    lines.take(if all { usize::MAX } else { 1 }).flat_map(str::split_whitespace).collect()
}

async fn set_user(addr: SocketAddr, user: &str, rules: &[&str]) {
    let words: Vec<_> = ["ACL", "SETUSER", user, "reset"].iter().chain(rules).copied().collect();
    assert_eq!(raw(addr, &words).await, Reply::Simple("OK".to_owned()), "{words:?}");
}

/// A URL with this user in it.
fn as_user(url: &str, user: &str) -> String {
    url.replacen("://", &format!("://{user}:secret@"), 1)
}

/// A user who may do what the page says, but for one thing, and a URL for it.
async fn without(server: &Server, missing: &str) -> String {
    let user = format!("no{}", missing.replace(['+', '|', '~', '&', ':', '*'], "-"));
    let rules: Vec<_> = rules("app", true).into_iter().filter(|rule| *rule != missing).collect();
    set_user(server.addr(), &user, &rules).await;
    as_user(&server.url(), &user)
}

fn denied(error: &Error, names: &str) {
    // A script's own refusal names the command without its subcommand.
    let names = names.split('|').next().filter(|_| error.to_string().contains("executing the script")).unwrap_or(names);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let said = error.to_string();
    assert!(said.to_lowercase().contains(&names.to_lowercase()), "it does not name {names}: {said}");
    assert!(!said.contains("secret"), "{said}");
}

async fn released(guard: leasehold::Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// What needs no inspection.
async fn locks_of_every_kind(one: &Locks, two: &Locks) {
    let owner = Owner::new();
    let held = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = one.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("its owner comes in");
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none());
    released(again).await;
    released(held).await;
    let (reading, also) =
        (one.rwlock("b").read().await.expect("a lock"), two.rwlock("b").read().await.expect("a lock"));
    assert!(two.rwlock("b").try_write().await.expect("an answer").is_none());
    let permits = one.semaphore("c", 3).acquire(2).await.expect("permits");
    assert!(two.semaphore("c", 3).try_acquire(2).await.expect("an answer").is_none());
    let all = one.all(["d", "e"]).lock().await.expect("both");
    assert_eq!(all.release().await.expect("an answer").len(), 2);
    for guard in [reading, also, permits] {
        released(guard).await;
    }
    let (records, others) = (one.records().expect("records"), two.records().expect("records"));
    let made = records.update("a", |_, now| Some(format!("{now:?}"))).await.expect("a record");
    assert_eq!(others.recall("a").await.expect("a record").value, made.value);
    let removed = others.record("a", made.version, "").await.expect("an answer");
    assert_eq!(removed.expect("it is removed").version, 0);
}

/// One waits, and is told when it is its turn; somebody who may see everything sees it wait.
async fn hand_over(admin: &Locks, one: &Locks, two: &Locks, name: &str) {
    let held = one.mutex(name).lock().await.expect("a lock");
    let mutex = two.mutex(name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_waiting(admin, name, 1).await;
    released(held).await;
    released(soon("its turn", waiting).await.expect("no panic").expect("a lock")).await;
}

/// So many leases that they are renewed together, from the next time on that all are renewed: that is after a cut.
async fn many_leases(server: &Server, locks: &Locks, about: &str) -> Vec<leasehold::Guard> {
    let mut guards = Vec::new();
    for number in 0..20 {
        let mutex = locks.mutex(format!("{about}-{number}")).ttl(Duration::from_millis(4500));
        guards.push(mutex.lock().await.expect("a lock"));
    }
    assert!(matches!(raw(server.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await, Reply::Integer(1..)));
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_is_enough() {
    let server = redis::start().await.expect("a server");
    set_user(server.addr(), "app", &rules("app", false)).await;
    let url = as_user(&server.url(), "app");
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    locks_of_every_kind(&one, &two).await;
    hand_over(&client(&server.url(), LONG).await, &one, &two, "f").await;
    let many = many_leases(&server, &one, "many").await;
    eventually(BOUND, || async {
        match raw(server.addr(), &["KEYS", "leasehold:b*"]).await {
            Reply::Array(bundles) if bundles.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for _ in 0..3 {
        until_renewed(&many[0]).await;
        until_renewed(&many[19]).await;
    }
    assert!(two.mutex("many-0").try_lock().await.expect("an answer").is_none());
    for guard in many {
        released(guard).await;
    }
    denied(&one.inspect("a").await.expect_err("not this"), "hgetall");
    denied(&one.list("").await.expect_err("nor this"), "scan");
    denied(&one.records().expect("records").list("").await.expect_err("nor this"), "scan");
    // A server that has lost its scripts is sent them again.
    assert_eq!(raw(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    locks_of_every_kind(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_is_enough_for_everything() {
    let server = redis::start().await.expect("a server");
    set_user(server.addr(), "app", &rules("app", true)).await;
    let url = as_user(&server.url(), "app");
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    locks_of_every_kind(&one, &two).await;
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut line = Line::default();
    line.join(&two, "a").await;
    assert_eq!(two.list("").await.expect("a list").len(), 1);
    let view = two.inspect("a").await.expect("a view");
    let evicted = two.evict("a", view.holders[0].claim).await.expect("an eviction");
    assert!(evicted.token > held.token());
    assert_eq!(soon("it is told", held.lost()).await, LostReason::Taken);
    assert_eq!(line.served().await.0, in_order(1));
    let mut observer = two.election("b").observe().expect("an observer");
    assert_eq!(observer.next().await.expect("an answer"), None);
    let leader = one.election("b").campaign().await.expect("elected");
    let seen = soon("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
    assert_eq!(seen.token, leader.token());
    let _ = leader.resign().await.expect("an answer");
    assert_eq!(soon("the resignation is seen", observer.next()).await.expect("an answer"), None);
}

/// Without it, no lock can be taken at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_every_lock_needs() {
    let server = redis::start().await.expect("a server");
    for missing in ["+subscribe", "&leasehold:*"] {
        let opened = Locks::open(&without(&server, missing).await).await;
        let names = if missing == "+subscribe" { "'subscribe'" } else { "channels" };
        denied(&opened.expect_err("no inbox"), names);
    }
    for missing in ["+evalsha", "+time", "+hget", "+hset", "+expire", "~leasehold:*"] {
        let locks = client(&without(&server, missing).await, LONG).await;
        let names = if missing == "~leasehold:*" { "keys" } else { &missing[1..] };
        denied(&locks.mutex("a").lock().await.expect_err(missing), names);
        denied(&locks.mutex("b").try_lock().await.expect_err(missing), names);
        set_user(server.addr(), "app", &rules("app", true)).await;
        let other = client(&as_user(&server.url(), "app"), LONG).await;
        until_free(&other, "a").await;
        until_free(&other, "b").await;
        for name in ["a", "b"] {
            raw(server.addr(), &["DEL", &format!("leasehold:l{{{name}}}")]).await;
        }
    }
    // Either is enough: the script is stored, or it is sent.
    for missing in ["+eval", "+script|load"] {
        let locks = client(&without(&server, missing).await, LONG).await;
        locks_of_every_kind(&locks, &locks).await;
    }
    let sent = without(&server, "+eval").await;
    let locks = client(&sent, LONG).await;
    assert_eq!(raw(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    denied(&locks.mutex("a").lock().await.expect_err("the server has forgotten it"), "'eval'");
}

/// Without it, one thing fails and says so, and everything else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_some_need() {
    let server = redis::start().await.expect("a server");
    let admin = client(&server.url(), LONG).await;
    let simple = async |locks: &Locks| released(locks.mutex("plain").lock().await.expect("a lock")).await;
    for (missing, what) in [
        ("+hgetall", "an inspection"),
        ("+scan", "a list"),
        ("+exists", "an observer"),
        ("+client|tracking", "an observer"),
        ("+client|caching", "an observer"),
    ] {
        let locks = client(&without(&server, missing).await, LONG).await;
        let failed = match what {
            "an inspection" => locks.inspect("a").await.map(drop),
            "a list" => locks.list("").await.map(drop),
            _ => {
                let mut observer = locks.election("a").observe().expect("an observer");
                assert_eq!(observer.next().await.expect("who leads now may be seen"), None);
                soon("it is not left waiting", observer.next()).await.map(drop)
            }
        };
        denied(&failed.expect_err(what), &missing[1..]);
        locks_of_every_kind(&locks, &locks).await;
        hand_over(&admin, &locks, &locks, "handed").await;
    }
    let locks = client(&without(&server, "+hdel").await, LONG).await;
    let reading = locks.rwlock("shared").read().await.expect("a lock");
    denied(&reading.release().await.expect_err("it cannot be removed"), "hdel");
    let view = admin.inspect("shared").await.expect("a view");
    assert_eq!(view.holders.len(), 1, "what fails has changed nothing: {view:?}");
    simple(&locks).await;
}

/// Nobody can be told: the lock cannot be handed over, and its lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hand_over_needs() {
    let server = redis::start().await.expect("a server");
    for missing in ["+publish", "+pubsub|numsub"] {
        let mute = client(&without(&server, missing).await, Duration::from_secs(2)).await;
        set_user(server.addr(), "app", &rules("app", true)).await;
        let other = client(&as_user(&server.url(), "app"), LONG).await;
        locks_of_every_kind(&mute, &mute).await;
        let held = mute.mutex("a").lock().await.expect("a lock");
        let mut line = Line::default();
        line.join(&other, "a").await;
        denied(&held.release().await.expect_err("somebody waits"), &missing[1..]);
        assert_eq!(line.served().await.0, in_order(1), "at the end of its lease");
    }
}

/// Many leases are renewed together by other commands. Nobody but the keeper calls that, so it is called here as the keeper does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_leases_need() {
    let server = redis::start().await.expect("a server");
    for missing in ["+get", "+set", "+setrange", "+del"] {
        let url = without(&server, missing).await;
        let engine = leasehold::engine::open(&url, &Clock::system()).await.expect("an engine");
        let claim = |number| {
            let name = LockName::new(format!("{missing}-{number}")).expect("a name");
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(Terms::new(name, Mode::Exclusive, None, LONG, holder))))
        };
        let claims: Vec<_> = (0..20).map(claim).collect();
        // A bundle that nobody comes into is removed again.
        for claim in claims.iter().filter(|_| missing != "+del") {
            let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
            assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        }
        let mut renewed = Arc::clone(&engine).renew(claims.clone()).await;
        if missing == "+get" {
            assert!(renewed.is_ok(), "a new bundle is not read: {renewed:?}");
            let doubt = raw(server.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            assert!(matches!(doubt, Reply::Integer(1..)), "{doubt:?}");
            renewed = eventually(BOUND, || async {
                match Arc::clone(&engine).renew(claims.clone()).await {
                    Err(error) if error.kind() != ErrorKind::Unavailable => Ok(Err(error)),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
        denied(&renewed.expect_err(missing), &missing[1..]);
        let alone = claim(99);
        Arc::clone(&engine).attempt(Arc::clone(&alone), false).await.expect("an answer");
        let renewed = Arc::clone(&engine).renew(vec![alone]).await.expect("one needs none of it");
        assert!(matches!(renewed[..], [Renewal::Renewed(_)]), "{renewed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_options_need() {
    let server = redis::start().await.expect("a server");
    let _replica = redis::replica_of(&server).start().await.expect("a replica");
    let with = async |more: &[&str]| {
        set_user(server.addr(), "app", &[rules("app", true), more.to_vec()].concat()).await;
        as_user(&server.url(), "app")
    };
    let plain = with(&[]).await;
    denied(&Locks::open(&format!("{plain}?strict=1s")).await.expect_err("no INFO"), "'info'");
    denied(&Locks::open(&format!("{plain}?db=1")).await.expect_err("no SELECT"), "'select'");
    let locks = client(&format!("{plain}?replicas=1"), LONG).await;
    denied(&locks.mutex("a").lock().await.expect_err("no WAIT"), "'wait'");
    let unsure = locks.records().expect("records").record("a", 0, "x").await.expect_err("no WAIT");
    denied(&unsure, "'wait'");
    assert!(unsure.to_string().contains("record \"a\"") && unsure.to_string().contains("written"), "{unsure}");
    let more = with(&["+info", "+select", "+wait"]).await;
    let locks = client(&format!("{more}?strict=1s&db=1&replicas=1"), Duration::from_secs(1)).await;
    released(soon("a lock", locks.mutex("b").lock()).await.expect("a lock")).await;
    let written = locks.records().expect("records").record("b", 0, "x").await;
    assert!(written.expect("a write that the replica has").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sentinels_need() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = as_user(&set.url(), "app") + "?sentinel-user=watch&sentinel-password=secret";
    for node in set.nodes() {
        set_user(node.addr(), "app", &rules("app", true)).await;
    }
    for sentinel in set.sentinel_addrs() {
        set_user(sentinel, "watch", &rules("watch", true)).await;
    }
    denied(&Locks::open(&url).await.expect_err("no ROLE"), "'role'");
    for node in set.nodes() {
        set_user(node.addr(), "app", &[rules("app", true), vec!["+role"]].concat()).await;
    }
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    locks_of_every_kind(&one, &two).await;
    set.kill_master().await.expect("a dead master");
    set.failed_over(BOUND).await.expect("a fail-over");
    crate::redis_deployments::deployment::until_answering(&one).await;
    crate::redis_deployments::deployment::until_answering(&two).await;
    hand_over(&client(&set.url(), LONG).await, &one, &two, "f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cluster_needs() {
    let mut cluster = Cluster::start(3, 0).await.expect("a cluster");
    let url = as_user(&cluster.url(), "app");
    let with = async |cluster: &Cluster, more: &[&str]| {
        for addr in cluster.addrs() {
            set_user(addr, "app", &[rules("app", true), more.to_vec()].concat()).await;
        }
    };
    with(&cluster, &[]).await;
    denied(&Locks::open(&url).await.expect_err("no CLUSTER SLOTS"), "'cluster|slots'");
    with(&cluster, &["+cluster|slots"]).await;
    let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
    locks_of_every_kind(&one, &two).await;
    assert!(one.list("").await.expect("a list").is_empty());
    let slot = slot_of("moving");
    let from = cluster.owner_of(slot).await.expect("an owner");
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await.expect("the beginning of a move");
    denied(&one.mutex("moving").lock().await.expect_err("no ASKING"), "'asking'");
    with(&cluster, &["+cluster|slots", "+cluster|info", "+asking"]).await;
    let admin = client(&cluster.url(), LONG).await;
    hand_over(&admin, &one, &two, "moving").await;
    cluster.finish_migration(migration).await.expect("the end of a move");
    hand_over(&admin, &one, &two, "moving").await;
}

/// Three servers, and this user on each of them, who may do what the page says, but for one thing.
async fn voter(set: &Independent, all: bool, missing: &str) -> String {
    let rules: Vec<_> = rules("voter", all).into_iter().filter(|rule| *rule != missing).collect();
    for server in set.servers() {
        set_user(server.addr(), "voter", &rules).await;
        // What a user who might do more has stored is not there for this one.
        assert_eq!(raw(server.addr(), &["SCRIPT", "FLUSH"]).await, Reply::Simple("OK".to_owned()));
    }
    let hosts: Vec<_> = set.servers().iter().map(|server| format!("voter:secret@{}", server.addr())).collect();
    format!("redlock://{}?node-timeout=2s", hosts.join(","))
}

/// Asks each of them.
async fn in_all(set: &Independent, words: &[&str]) -> Vec<Reply> {
    let mut replies = Vec::new();
    for server in set.servers() {
        replies.push(raw(server.addr(), words).await);
    }
    replies
}

/// All that a lock on a majority does.
async fn votes_of_every_kind(one: &Locks, two: &Locks) {
    let owner = Owner::new();
    let held = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = one.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("its owner comes in");
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none());
    released(again).await;
    released(held).await;
    let kept = one.mutex("b").ttl(Duration::from_millis(1500)).lock().await.expect("a lock");
    until_renewed(&kept).await;
    let mutex = two.mutex("b");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let view = two.inspect("b").await.expect("a view");
    two.evict("b", view.holders[0].claim).await.expect("an eviction");
    assert_eq!(soon("it is told", kept.lost()).await, LostReason::Taken);
    released(soon("its turn", waiting).await.expect("no panic").expect("a lock")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redlock_needs() {
    let set = Independent::start(3).await.expect("servers");
    for all in [false, true] {
        let url = voter(&set, all, "").await;
        let (one, two) = (client(&url, LONG).await, client(&url, LONG).await);
        votes_of_every_kind(&one, &two).await;
    }
    let mut tried = vec!["on", ">secret", "resetkeys", "resetchannels", "-@all"];
    for missing in ["~leasehold:*", "+evalsha", "+eval", "+time", "+get", "+set"] {
        let locks = client(&voter(&set, false, missing).await, LONG).await;
        let names = if missing == "~leasehold:*" { "keys" } else { &missing[1..] };
        denied(&locks.mutex(missing).lock().await.expect_err(missing), names);
        tried.push(missing);
    }
    // It is given back where there is no memory left, too.
    for missing in ["+del", ""] {
        let locks = client(&voter(&set, false, missing).await, LONG).await;
        let held = locks.mutex("full").lock().await.expect("a lock");
        // Two votes were enough: the third may be on its way.
        eventually(BOUND, || async {
            let votes = in_all(&set, &["EXISTS", "leasehold:qfull"]).await;
            if votes.iter().all(|there| *there == Reply::Integer(1)) { Ok(()) } else { Err(format!("{votes:?}")) }
        })
        .await;
        in_all(&set, &["CONFIG", "SET", "maxmemory", "1"]).await;
        match missing {
            "" => released(held).await,
            _ => denied(&held.release().await.expect_err(missing), "del"),
        }
        let left = in_all(&set, &["PTTL", "leasehold:qfull"]).await;
        assert!(left.iter().all(|left| matches!(left, Reply::Integer(1..))), "{missing:?}: {left:?}");
        in_all(&set, &["CONFIG", "SET", "maxmemory", "0"]).await;
        in_all(&set, &["DEL", "leasehold:qfull"]).await;
        tried.push(missing);
    }
    let least = rules("voter", false);
    assert!(least.iter().all(|rule| tried.contains(rule)), "the page names what nobody has tried: {least:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_options_of_redlock_need() {
    let set = Independent::start(3).await.expect("servers");
    let least = voter(&set, false, "").await;
    denied(&client(&least, LONG).await.list("").await.expect_err("no SCAN"), "scan");
    denied(&Locks::open(&format!("{least}&db=1")).await.expect_err("no SELECT"), "'select'");
    denied(&Locks::open(&format!("{least}&strict=1s")).await.expect_err("no INFO"), "'info'");
    for missing in ["", "+script|load"] {
        let url = voter(&set, true, missing).await;
        let locks = client(&format!("{url}&strict=1s&db=1"), Duration::from_secs(1)).await;
        released(soon("a lock", locks.mutex("a").lock()).await.expect("a lock")).await;
        assert!(locks.list("").await.expect("a list").is_empty());
    }
    // A majority that may is enough.
    let url = voter(&set, false, "").await;
    set_user(set.server(0).addr(), "voter", &["on", ">secret"]).await;
    released(client(&url, LONG).await.mutex("b").lock().await.expect("a lock")).await;
    // One server by two names is noticed only by who may ask for its run.
    let host = |name: &str, at: usize| format!("voter:secret@{name}:{}", set.server(at).port());
    let twice = format!("redlock://{},{},{}", host("127.0.0.1", 1), host("localhost", 1), host("127.0.0.1", 2));
    Locks::open(&twice).await.expect("it is not noticed");
    voter(&set, true, "").await;
    let error = Locks::open(&twice).await.expect_err("it is noticed");
    assert!(error.to_string().contains("vote twice"), "{error}");
}
