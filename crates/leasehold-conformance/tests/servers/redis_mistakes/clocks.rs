//! The end of a lock as a wall-clock time, written by one client and read by another: the lock of the old SETNX page.

use std::path::Path;
use std::time::Duration;

use leasehold_conformance::player::Player;
use leasehold_conformance::protocol::{Ask, Order, Report};
use leasehold_conformance::world::LONG;
use leasehold_testbed::redis;

use super::story::{LOCK, Naive, Story, now, process, since};

/// How wrong a clock is, in seconds.
const SKEW: i64 = 600;

/// What a client's clock shows, in seconds since 1970, if it is wrong by so much.
#[allow(clippy::disallowed_methods, reason = "this is the mistake")]
fn clock(skew: i64) -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_secs()).expect("a clock before 2200") + skew
}

/// A number that Redis has answered.
fn number(reply: &str) -> i64 {
    reply.parse().expect("a number")
}

/// The first half: whoever is ahead finds every lock expired.
async fn steal(story: &Story, a: &mut Naive<'_>, b: &mut Naive<'_>) {
    assert_eq!(a.does(&format!("SETNX lock {}", clock(0) + 60)).await, "1");
    assert_eq!(b.does(&format!("SETNX lock {}", clock(SKEW) + 60)).await, "0");
    let end = number(&b.does("GET lock").await);
    let over = clock(SKEW) - end;
    story.tell(&format!("B, by its own clock: that ended {over} s ago"));
    assert!(over > 0);
    let old = number(&b.does(&format!("GETSET lock {}", clock(SKEW) + 60)).await);
    assert_eq!(old, end, "nobody was faster, so B believes that it holds the lock");
    assert!(clock(0) < end, "and so does A, by the right time");
    story.so(&format!("A's lock lasts {} s more, and B is inside, too", end - clock(0)));
}

/// The second half: whoever is ahead locks for longer than it thinks.
async fn overstay(story: &Story, c: &mut Naive<'_>, d: &mut Naive<'_>) {
    assert_eq!(c.does(&format!("SETNX other {}", clock(SKEW) + 1)).await, "1");
    story.tell("C wanted it for 1 s, and is gone");
    assert_eq!(d.does(&format!("SETNX other {}", clock(0) + 1)).await, "0");
    let left = number(&d.does("GET other").await) - clock(0);
    assert!(left > SKEW / 2);
    story.so(&format!("by D's clock that ends in {left} s: a lock of 1 s lasts ten minutes"));
}

/// A process whose wall clock is wrong; it must believe so itself.
async fn skewed(story: &Story, who: &str, url: &str, skew: i64, server: &mut Naive<'_>) -> Player {
    let faked = format!("{skew:+}");
    // The loader puts the machine's own folder in place of $LIB.
    let library = "/usr/$LIB/faketime/libfaketimeMT.so.1";
    let env = [("LD_PRELOAD", library), ("FAKETIME", &faked), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-actor"));
    let mut player = Player::open_with(exe, &env, url, Duration::from_secs(1)).await;
    let wall = i64::try_from(player.wall().await / 1000).expect("a time");
    let time = server.ask("TIME").await;
    let right = number(time.split(' ').next().expect("seconds"));
    story.says(who, "its clock", format!("{wall}; the server's: {right}"));
    assert!((wall - right - skew).abs() < 60, "no wrong clock: is the Debian package `faketime` installed?");
    player
}

/// Another process tries; the lock must be somebody else's.
async fn busy(story: &Story, who: &str, player: &mut Player) {
    player.tell(&Order::Lock(Ask { wait_ms: Some(0), ..Ask::stubborn(LOCK) })).await;
    let answer = player.hear("an answer", |report| match report {
        Report::Busy { .. } => Some("None"),
        Report::Granted { .. } => Some("a guard"),
        _ => None,
    });
    let answer = answer.await;
    story.says(who, "try_lock().await", answer);
    assert_eq!(answer, "None");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_by_a_skewed_client_clock() {
    let story = Story::begin("An expiry by a skewed client clock");
    let server = redis::start().await.expect("a server");
    let mut a = story.naive("A (its clock is right)", server.addr()).await;
    let mut b = story.naive("B (10 minutes ahead)", server.addr()).await;
    let mut c = story.naive("C (10 minutes ahead)", server.addr()).await;
    let mut d = story.naive("D (its clock is right)", server.addr()).await;

    story.part("the textbook");
    steal(&story, &mut a, &mut b).await;
    overstay(&story, &mut c, &mut d).await;

    story.part("leasehold");
    let url = server.url();
    let mut right = process(&url, LONG).await;
    let mut ahead = skewed(&story, "B (a process, TTL 1 s, 10 minutes ahead)", &url, SKEW, &mut d).await;
    let mut behind = skewed(&story, "C (a process, TTL 1 s, 10 minutes behind)", &url, -SKEW, &mut d).await;
    let first = story.lock_in("A (a process)", &mut right).await;
    busy(&story, "B", &mut ahead).await;
    busy(&story, "C", &mut behind).await;
    let outcome = right.release(LOCK).await;
    story.says("A", "release().await", &outcome);
    assert_eq!(outcome, "released");
    let token = story.lock_in("B", &mut ahead).await;
    let server_time = number(&d.ask("TIME").await.replace(' ', "")[..10]);
    let granted = i64::try_from(token / 1_000_000).expect("a time");
    assert!(token > first && (server_time - granted).abs() < 60, "the token is the server's time: {token}");
    ahead.process().sigkill().expect("a killed process");
    let killed = now();
    story.tell("B is killed (SIGKILL)");
    let (last, _) = behind.lock(Ask::stubborn(LOCK)).await;
    story.says("C", "lock().await", format!("token {last}, {} after B's death", since(killed)));
    assert!(last > token);
    story.so("the server reads its own clock in the script; a client's wall clock is never read");
    story.end();
}
