//! What reading the Redis engine's protocol found, as tests.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, Renewal};
use leasehold::{Claim, Guard, Holder, LockName, Locks, LostReason, Mode, Terms};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::{Cluster, Reply, Resp, SentinelSet, replica_of, slot_of};
use leasehold_testbed::{Proxy, Server, eventually, redis};

async fn raw(server: &Server) -> Resp {
    Resp::connect(server.addr()).await.expect("a raw connection")
}

async fn engine(url: &str) -> Arc<dyn Engine> {
    leasehold::engine::open(url, &Clock::system()).await.expect("the engine")
}

fn claim(name: &str, ttl: Duration) -> Arc<Claim> {
    let holder = Arc::new(Holder::this_process());
    let name = LockName::new(name).expect("a name");
    Arc::new(Claim::new(Arc::new(Terms::new(name, Mode::Exclusive, None, ttl, holder))))
}

async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Answer {
    Arc::clone(engine).attempt(Arc::clone(claim), true).await.expect("an answer")
}

/// Waits until every lease has been renewed for so long.
async fn renewed(guards: &[Guard], by: Duration) {
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    until("all are renewed", async || {
        guards.iter().zip(&first).all(|(guard, first)| guard.deadline() >= first.after(by))
    })
    .await;
}

async fn until(what: &str, look: impl AsyncFn() -> bool) {
    eventually(SOON, || async { if look().await { Ok(()) } else { Err(what.to_owned()) } }).await;
}

/// The numbers of a server's clients that listen to an inbox.
async fn listeners(server: &Server) -> Vec<String> {
    let Reply::Bulk(list) = raw(server).await.command(&["CLIENT", "LIST"]).await.expect("a list") else { panic!() };
    let listens = list.lines().filter(|line| line.contains(" sub=1 "));
    listens.filter_map(|line| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned())).collect()
}

/// A waiter that cannot be reached at the lock's node is passed over, and does not hear from another node that it was granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_a_waiter_that_was_passed_over_is_not_granted_by_another_node() {
    let cluster = Cluster::start(3, 0).await.expect("a cluster");
    let owner = cluster.owner_of(slot_of("leasehold:l{a}")).await.expect("an owner");
    let node = &cluster.nodes()[owner];
    let locks = Locks::builder().ttl(LONG).open(&cluster.url()).await.expect("the engine");
    let held = locks.mutex("a").lock().await.expect("a lock");
    let before = listeners(node).await;
    let waiter = Locks::builder().ttl(LONG).open(&cluster.url()).await.expect("the engine");
    let waits = tokio::spawn({
        let mutex = waiter.mutex("a").wait(LONG);
        async move { mutex.lock().await }
    });
    until("one waits", async || locks.inspect("a").await.is_ok_and(|view| view.waiters.len() == 1)).await;
    // Its connection breaks, and the node takes no new ones; what it has to the other nodes stays.
    let mut raw = raw(node).await;
    let mut theirs = listeners(node).await;
    theirs.retain(|id| !before.contains(id));
    let _ = raw.command(&["CONFIG", "SET", "maxclients", "1"]).await.expect("an answer");
    for id in &theirs {
        let killed = raw.command(&["CLIENT", "KILL", "ID", id]).await.expect("an answer");
        assert_eq!(killed, Reply::Integer(1));
    }
    let _ = held.release().await.expect("a release");
    let next = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
    assert!(!waits.is_finished(), "it was passed over, and must not believe that it holds");
    let _ = raw.command(&["CONFIG", "SET", "maxclients", "1000"]).await.expect("an answer");
    until("it waits again", async || locks.inspect("a").await.is_ok_and(|view| view.waiters.len() == 1)).await;
    assert!(next.is_held() && !waits.is_finished());
    let token = next.token();
    let _ = next.release().await.expect("a release");
    assert!(waits.await.expect("no panic").expect("the lock").token() > token);
}

/// A record lives as long as its longest lease, whatever other clients think of how long to keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_different_retentions_do_not_end_each_others_leases() {
    let server = redis::start().await.expect("a server");
    let (short, long) = (engine(&format!("{}?retention=1s", server.url())).await, engine(&server.url()).await);
    let (first, second) = (claim("a", Duration::from_secs(2)), claim("a", LONG));
    assert!(matches!(attempt(&short, &first).await, Answer::Granted(_)));
    Arc::clone(&short).release(first).await.expect("a release");
    assert!(matches!(attempt(&long, &second).await, Answer::Granted(_)));
    let left = raw(&server).await.command(&["PTTL", "leasehold:l{a}"]).await.expect("an answer");
    let Reply::Integer(left) = left else { panic!("{left:?}") };
    assert!(left > LONG.as_millis() as i64, "the record ends in {left} ms");
    let third = claim("a", LONG);
    assert!(matches!(attempt(&short, &third).await, Answer::Queued { .. }));
}

/// A claim that a late request has put into the queue does not hold, whatever it held before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_only_waits_is_not_renewed() {
    let server = redis::start().await.expect("a server");
    let engine = engine(&server.url()).await;
    let (holds, waits) = (claim("a", LONG), claim("a", LONG));
    assert!(matches!(attempt(&engine, &holds).await, Answer::Granted(_)));
    assert!(matches!(attempt(&engine, &waits).await, Answer::Queued { .. }));
    let renewed = Arc::clone(&engine).renew(vec![holds, waits]).await.expect("an answer");
    assert!(matches!(renewed[..], [Renewal::Renewed(_), Renewal::Lost]), "{renewed:?}");
}

/// What another program has put under one lock's key costs the others of the same renewal nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_spoilt_key_does_not_end_other_leases() {
    let server = redis::start().await.expect("a server");
    let ttl = Duration::from_secs(2);
    let locks = Locks::builder().ttl(ttl).open(&server.url()).await.expect("the engine");
    let other = Locks::builder().ttl(LONG).open(&server.url()).await.expect("the engine");
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let spoilt =
        raw(&server).await.command(&["SET", "leasehold:l{lock 9}", "x", "PX", "60000"]).await.expect("an answer");
    assert_eq!(spoilt, Reply::Simple("OK".to_owned()));
    let reason = tokio::time::timeout(SOON, guards.remove(9).lost()).await.expect("it is told");
    assert!(matches!(reason, LostReason::Taken | LostReason::Expired));
    renewed(&guards, ttl * 2).await;
    for guard in &guards {
        assert!(guard.is_held(), "{guard:?}");
        assert!(other.mutex(guard.name()).try_lock().await.expect("an answer").is_none(), "{guard:?}");
    }
}

/// A lease in a bundle is no longer than what the replicas have acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_replicas_bundled_leases_are_not_extended() {
    let server = redis::start().await.expect("a server");
    let mut replica = replica_of(&server).start().await.expect("a replica");
    let ttl = Duration::from_secs(6);
    let url = format!("{}?replicas=1", server.url());
    let locks = Locks::builder().ttl(ttl).open(&url).await.expect("the engine");
    let mut guards = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).wait(SOON).lock().await.expect("a lock"));
    }
    replica.pause().expect("a pause");
    let promised: Vec<_> = guards.iter().map(Guard::deadline).collect();
    for (guard, promised) in guards.iter().zip(promised) {
        tokio::time::timeout(SOON, guard.lost()).await.expect("it is lost when its lease ends");
        assert!(guard.deadline() <= promised.after(ttl / 10), "{guard:?} was extended without the replica");
    }
}

/// Two clients that know the same master by different words agree on what strict mode waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_mode_ends_though_clients_name_the_master_differently() {
    let set = SentinelSet::start(1).await.expect("a set");
    let master = set.master().await.expect("a master");
    let by_sentinel = format!("{}?strict=2s", set.url());
    let by_address = format!("{}?strict=2s", set.nodes()[master].url());
    let ttl = Duration::from_secs(2);
    let (one, two) = (
        Locks::builder().ttl(ttl).open(&by_sentinel).await.expect("the engine"),
        Locks::builder().ttl(ttl).open(&by_address).await.expect("the engine"),
    );
    let work = |locks: Locks| async move {
        for _ in 0..5 {
            let guard = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
            let _ = guard.release().await.expect("a release");
        }
    };
    tokio::join!(work(one), work(two));
}

/// A server that has no memory left lets nobody new in; whoever holds goes on, and gives back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_locks_are_kept_and_given_back() {
    let server = redis::start().await.expect("a server");
    let ttl = Duration::from_secs(6);
    let locks = Locks::builder().ttl(ttl).open(&server.url()).await.expect("the engine");
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let _ = raw(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    let error = locks.mutex("new").try_lock().await.expect_err("there is no room");
    assert_eq!(error.kind(), leasehold::ErrorKind::Full, "{error}");
    renewed(&guards, ttl).await;
    for guard in guards {
        assert!(guard.is_held(), "{guard:?}");
        assert_eq!(guard.release().await.expect("a release"), leasehold::Outcome::Released);
    }
}

/// A server that is away is asked for with growing pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_come_with_growing_pauses() {
    let server = redis::start().await.expect("a server");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let locks = Locks::builder().ttl(LONG).open(&format!("redis://{}/", proxy.addr())).await.expect("the engine");
    let held = locks.mutex("a").lock().await.expect("a lock");
    let clock = Clock::system();
    let start = clock.now();
    proxy.refuse(true);
    proxy.cut();
    until("it was refused eight times", async || proxy.counts().refused >= 8).await;
    // Half of 20, 40, 80, 160, 320, 640 and 1000 ms at least; a busy machine only makes it longer.
    let took = clock.now().since(start);
    assert!(took >= Duration::from_secs(1), "eight tries within {took:?}");
    proxy.refuse(false);
    until("it is back", async || locks.inspect("a").await.is_ok()).await;
    assert!(held.is_held());
}
