//! Deleting a lock that has become another's.

use std::time::Duration;

use leasehold::{Locks, Outcome};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::{Proxy, Server, eventually, redis};

use tokio::time::timeout;

use super::story::{LOCK, Naive, Story, client, process};
use crate::redis_faults::time::Time;

/// A TTL whose end is awaited.
const SHORT: Duration = Duration::from_secs(1);

/// A's lock ends by itself, and B takes it.
async fn expire_and_pass_on(story: &Story, a: &mut Naive<'_>, b: &mut Naive<'_>) {
    a.until_gone("lock").await;
    story.tell("A is slow: its lock ends by itself");
    assert_eq!(b.does("SET lock B NX PX 60000").await, "OK");
}

/// A deletes what is B's, and C comes in beside B.
async fn delete_and_let_in(story: &Story, a: &mut Naive<'_>, c: &mut Naive<'_>) {
    assert_eq!(a.does("DEL lock").await, "1");
    assert_eq!(c.does("SET lock C NX PX 60000").await, "OK");
    story.so("A has deleted B's lock: B and C are both inside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn del_without_looking_whose_it_is() {
    let story = Story::begin("DEL without looking whose it is");
    let server = redis::start().await.expect("a server");
    let mut a = story.naive("A", server.addr()).await;
    let mut b = story.naive("B", server.addr()).await;
    let mut c = story.naive("C", server.addr()).await;

    story.part("the textbook");
    assert_eq!(a.does("SET lock A NX PX 300").await, "OK");
    expire_and_pass_on(&story, &mut a, &mut b).await;
    delete_and_let_in(&story, &mut a, &mut c).await;

    story.part("leasehold");
    let mut slow = process(&server.url(), SHORT).await;
    let locks = client(&server.url(), LONG).await;
    let others = client(&server.url(), LONG).await;
    let token = story.lock_in("A (a process, TTL 1 s)", &mut slow).await;
    slow.process().sigstop().expect("a stopped process");
    story.tell("A stands still (SIGSTOP), longer than its TTL");
    let guard = story.lock("B", &locks).await;
    assert!(guard.token().0 > token);
    slow.process().sigcont().expect("a running process");
    story.tell("A goes on (SIGCONT)");
    let outcome = slow.release(LOCK).await;
    story.says("A", "release().await", format!("WasLost({outcome})"));
    assert_eq!(outcome, "expired");
    story.holds("B", &locks, &guard).await;
    story.busy("C", &others).await;
    story.so("a release names its claim: it ends that one or none, and A is told which");
    story.end();
}

/// What the server sees of a release: one command, with everything else inside it.
async fn look_inside(story: &Story, server: &Server) {
    let locks = client(&server.url(), LONG).await;
    let guard = locks.mutex("another").lock().await.expect("a lock");
    let mut monitor = Resp::connect(server.addr()).await.expect("a connection");
    assert_eq!(monitor.command(&["MONITOR"]).await.expect("a reply"), Reply::Simple("OK".to_owned()));
    assert_eq!(guard.release().await.expect("a release"), Outcome::Released);
    let mut marker = Resp::connect(server.addr()).await.expect("a connection");
    marker.command(&["ECHO", "the end"]).await.expect("a reply");
    let (mut commands, mut inside) = (Vec::new(), Vec::new());
    loop {
        let Reply::Simple(line) = monitor.reply().await.expect("a line") else { panic!("no line of MONITOR") };
        match line.split('"').nth(1).expect("a command") {
            "ECHO" => break,
            command if line.contains(" lua] ") => inside.push(command.to_owned()),
            command => commands.push(command.to_owned()),
        }
    }
    let seen = format!("{} (in it: {})", commands.join(" "), inside.join(" "));
    story.says("MONITOR", "release().await as the server sees it", seen);
    assert_eq!(commands, ["EVALSHA"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_compare_del_not_atomic() {
    let story = Story::begin("GET, compare, DEL: not atomic");
    let time = Time::new();
    let server = time.redis().start().await.expect("a server");
    let mut a = story.naive("A", server.addr()).await;
    let mut b = story.naive("B", server.addr()).await;
    let mut c = story.naive("C", server.addr()).await;

    story.part("the textbook");
    assert_eq!(a.does("SET lock A NX PX 600000").await, "OK");
    assert_eq!(a.does("GET lock").await, "A");
    story.tell("A compares: it is mine, I may delete it");
    time.pass(LONG + Duration::from_secs(1));
    expire_and_pass_on(&story, &mut a, &mut b).await;
    delete_and_let_in(&story, &mut a, &mut c).await;

    story.part("leasehold");
    look_inside(&story, &server).await;
    let network = Proxy::start(server.addr()).await.expect("a proxy");
    let slow = Locks::builder().ttl(LONG).clock(time.clock());
    let slow = slow.open(&format!("redis://{}/", network.addr())).await.expect("the server");
    let locks = client(&server.url(), LONG).await;
    let others = client(&server.url(), LONG).await;
    let mine = story.lock("A (TTL 600 s)", &slow).await;
    assert!(mine.is_held());
    let before = network.counts();
    network.freeze(true);
    story.tell("the network falls silent, and A, which holds the lock, sends its release into it");
    let mut release = Box::pin(mine.release());
    tokio::select! {
        biased;
        outcome = &mut release => panic!("nobody has answered: {outcome:?}"),
        () = std::future::ready(()) => {}
    }
    time.pass(LONG + Duration::from_secs(1));
    let guard = story.lock("B", &locks).await;
    let outcome = timeout(SOON, release).await.expect("an end");
    let error = outcome.expect_err("nobody has answered");
    story.says("A", "release().await", format!("error: {error}"));
    assert_eq!(network.counts().request_bytes, before.request_bytes, "nothing has arrived");
    network.freeze(false);
    eventually(SOON, || async {
        let answered = network.counts().reply_bytes > before.reply_bytes;
        if answered { Ok(()) } else { Err("nothing has been answered") }
    })
    .await;
    story.tell("the network comes back: A's release arrives at the server, too late");
    story.busy("C", &others).await;
    story.holds("B", &locks, &guard).await;
    story.so("compare and delete are one script: nothing comes between them");
    story.end();
}
