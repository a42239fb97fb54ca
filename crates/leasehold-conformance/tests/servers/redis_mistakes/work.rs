//! The work takes longer than the TTL.

use std::time::Duration;

use leasehold::fence::Fence;
use leasehold::{Guard, Locks, Token};
use leasehold_conformance::world::{LONG, SOON};

use super::story::{LOCK, Story, client, process};
use crate::redis_faults::time::{Time, renewed, timed};

/// A TTL whose end is awaited.
const TTL: Duration = Duration::from_secs(1);

/// Somebody writes to the resource, which looks at the token.
fn write(story: &Story, who: &str, stock: &Fence, token: u64) -> bool {
    let admitted = stock.admit("stock", Token(token));
    let answer = admitted.map_or_else(|stale| format!("refused: {stale}"), |()| "done".to_owned());
    story.says(who, &format!("write to the stock with token {token}"), answer);
    admitted.is_ok()
}

/// Tries to take a lock that is held, all the while: for longer than three TTLs of its holder.
async fn besiege(story: &Story, who: &str, locks: &Locks, time: &Time, held: &Guard) {
    const THIRDS: u32 = 10;
    for _ in 0..THIRDS {
        renewed([held], |by| time.pass(by)).await;
        let answer = locks.mutex(LOCK).wait(Duration::from_millis(50)).lock().await;
        assert!(answer.is_err(), "the lock is held");
    }
    let passed = LONG / 3 * THIRDS;
    story.says(who, "lock().await, again and again", format!("{THIRDS} timeouts in {:.1} s", passed.as_secs_f64()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_outlives_its_ttl_without_a_watchdog() {
    let story = Story::begin("Work that outlives its TTL, without a watchdog");
    let time = Time::new();
    let server = time.redis().start().await.expect("a server");
    let mut a = story.naive("A", server.addr()).await;
    let mut b = story.naive("B", server.addr()).await;

    story.part("the textbook");
    assert_eq!(a.does("SET stock 10").await, "OK");
    assert_eq!(a.does("SET lock A NX PX 600000").await, "OK");
    assert_eq!(a.does("GET stock").await, "10");
    time.pass(LONG + Duration::from_secs(1));
    a.until_gone("lock").await;
    story.tell("A is still at work when its TTL is over");
    assert_eq!(b.does("SET lock B NX PX 60000").await, "OK");
    assert_eq!(b.does("GET stock").await, "10");
    assert_eq!(b.does("SET stock 9").await, "OK");
    assert_eq!(a.does("SET stock 9").await, "OK");
    assert_eq!(a.does("GET stock").await, "9");
    story.so("two were inside, two are sold, and one is counted");

    story.part("leasehold, at work for longer than its TTL");
    let working = timed(&server.url(), LONG, time.clock()).await;
    let locks = client(&server.url(), LONG).await;
    let guard = story.lock("A (TTL 600 s)", &working).await;
    besiege(&story, "B", &locks, &time, &guard).await;
    story.holds("A", &locks, &guard).await;
    let outcome = guard.release().await.expect("a release");
    story.says("A", "release().await", format!("{outcome:?}"));
    story.so("the keeper renews it for as long as its holder lives");

    story.part("leasehold, when the holder cannot renew");
    let stock = Fence::default();
    let mut stopped = process(&server.url(), TTL).await;
    let stale = story.lock_in("A (a process, TTL 1 s)", &mut stopped).await;
    assert!(write(&story, "A", &stock, stale));
    stopped.process().sigstop().expect("a stopped process");
    story.tell("A stands still (SIGSTOP), longer than its TTL");
    let next = locks.mutex(LOCK).wait(SOON).lock().await.expect("the lock of the one who stands still");
    story.says("B", "lock().await", format!("token {}", next.token()));
    assert!(write(&story, "B", &stock, next.token().0));
    stopped.process().sigcont().expect("a running process");
    story.tell("A goes on (SIGCONT), in the middle of its work");
    let (held, _) = stopped.held(LOCK).await;
    story.says("A", "is_held()", held);
    assert!(!held);
    assert!(!write(&story, "A", &stock, stale), "a stale token");
    story.so("A can know it at once; and if it does not look, its token stops it");
    story.end();
}
