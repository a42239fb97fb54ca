//! `strict`: a server that may have forgotten leases lets no new holder in before the longest of them is over.

use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Outcome, Owner, Token};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Data, Server, eventually};

use crate::redis_deployments::deployment::{BOUND, LONG, raw, text};
use crate::redis_faults::time::{Time, timed};

/// A client whose longest lease is the one that it uses.
async fn strict(server: &Server, time: &Time) -> Locks {
    timed(&format!("{}?strict={}s", server.url(), LONG.as_secs()), LONG, time.clock()).await
}

/// When the first new lease may begin: the server has been known to forget nothing for the longest lease.
async fn thaws(server: &Server) -> Token {
    let since: u64 = text(raw(server.addr(), &["GET", "leasehold:e"]).await)[..16].parse().expect("a number");
    Token(since + LONG.as_micros() as u64)
}

/// The longest lease is over.
fn wait_over(time: &Time) {
    time.pass(LONG + Duration::from_secs(1));
}

/// Tries until the server answers.
async fn answer(locks: &Locks, name: &str) -> Option<Guard> {
    eventually(BOUND, || async { locks.mutex(name).try_lock().await }).await
}

/// What a first client gets of a new server, after the wait.
async fn take(locks: &Locks, time: &Time) -> Guard {
    assert!(answer(locks, "a").await.is_none(), "who knows what was here before?");
    wait_over(time);
    answer(locks, "a").await.expect("the wait is over")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_let_in_at_first() {
    let time = Time::new();
    let server = time.redis().start().await.expect("a server");
    let locks = strict(&server, &time).await;
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "who knows what was here before?");
    assert!(locks.all(["a", "b"]).try_lock().await.expect("an answer").is_none());
    // A waiter learns why: no other client holds the lock.
    eventually(BOUND, || async {
        let error = locks.mutex("a").wait(Duration::from_secs(1)).lock().await.expect_err("it cools down");
        let told = error.kind() == ErrorKind::Timeout && error.to_string().contains("cools down");
        if told { Ok(()) } else { Err(error.to_string()) }
    })
    .await;
    wait_over(&time);
    let guard = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    assert!(guard.token() >= thaws(&server).await, "{guard:?}");
    // From now on there is nothing to wait for, for any client.
    let other = strict(&server, &time).await;
    let guard = other.mutex("b").try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// Another client gets the lock when the old holder does not rely on it any more, and not before the time is over.
async fn taken_over(locks: &Locks, old: &Guard, server: &Server, time: &Time) -> Guard {
    assert!(answer(locks, "a").await.is_none(), "the server may have forgotten somebody");
    wait_over(time);
    let new = answer(locks, "a").await.expect("the wait is over");
    assert!(!old.is_held(), "two hold it: {old:?} {new:?}");
    assert!(new.token() >= thaws(server).await, "granted too early: {new:?}");
    assert!(new.token() > old.token());
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_or_is_emptied_lets_nobody_in() {
    let time = Time::new();
    let mut server = time.redis().start().await.expect("a server");
    let (one, two) = (strict(&server, &time).await, strict(&server, &time).await);
    let first = take(&one, &time).await;
    server.kill().expect("a dead server");
    server.restart(Data::Wipe).await.expect("an empty one");
    let second = taken_over(&two, &first, &server, &time).await;
    assert_eq!(raw(server.addr(), &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    let third = taken_over(&one, &second, &server, &time).await;
    assert_eq!(third.release().await.expect("an answer"), Outcome::Released);
}

/// A replica may have missed that a lock was given back, and to whom it went then: its owner does not come in again by what is written there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_does_not_come_in_again_by_what_is_out_of_date() {
    let time = Time::new();
    let kept = time.redis().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = kept.start().await.expect("a server");
    let (ours, theirs) = (strict(&server, &time).await, strict(&server, &time).await);
    let (owner, key) = (Owner::named("p"), "leasehold:l{a}");
    drop(take(&ours, &time).await);
    ours.settle().await.expect("given back");
    let first = ours.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(raw(server.addr(), &["COPY", key, "old"]).await, Reply::Integer(1), "the record is under another key");
    assert_eq!(first.release().await.expect("a release"), Outcome::Released);
    let held = theirs.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    server.kill().expect("killed");
    server.restart(Data::Keep).await.expect("back");
    assert_eq!(raw(server.addr(), &["COPY", "old", key, "REPLACE"]).await, Reply::Integer(1));
    let again = eventually(BOUND, || async { ours.mutex("a").owner(&owner).try_lock().await }).await;
    assert!(again.is_none(), "it came in by a hold that it had given back, while another held it: {again:?} {held:?}");
}

/// While the server cools down, holders may be missing in its record: the operator who evicts one that is on record is advised no token,
/// which would refuse them. After that the record is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_during_the_cool_down_advises_no_token() {
    let time = Time::new();
    let kept = time.redis().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = kept.start().await.expect("a server");
    let locks = strict(&server, &time).await;
    drop(take(&locks, &time).await);
    locks.settle().await.expect("released");
    for (restarts, advised) in [(true, false), (false, true)] {
        let guard = answer(&locks, "a").await.expect("a free lock");
        if restarts {
            server.kill().expect("killed");
            server.restart(Data::Keep).await.expect("back");
        }
        let evicted = eventually(BOUND, || async { locks.evict("a", guard.claim_id()).await }).await;
        assert!(evicted.party.is_some(), "it was on record");
        assert_eq!(evicted.token.is_some_and(|token| token > guard.token()), advised, "{evicted:?}");
        assert_eq!(evicted.token.is_some(), advised, "{evicted:?}");
        if restarts {
            wait_over(&time);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_longer_than_the_longest_is_refused() {
    let time = Time::new();
    let server = time.redis().start().await.expect("a server");
    let locks = strict(&server, &time).await;
    let refused = locks.mutex("a").ttl(LONG + Duration::from_millis(1)).lock().await.expect_err("too long");
    assert_eq!(refused.kind(), ErrorKind::InvalidOption, "{refused}");
    assert!(refused.to_string().contains(&format!("{LONG:?}")), "it says what is allowed: {refused}");
    // The longest of all that were ever named counts for everybody.
    let guard = take(&locks, &time).await;
    let longer = timed(&format!("{}?strict={}s", server.url(), LONG.as_secs() * 5), LONG, time.clock()).await;
    assert!(longer.mutex("b").try_lock().await.expect("an answer").is_none(), "its leases may have been forgotten");
    assert!(locks.mutex("b").try_lock().await.expect("an answer").is_none(), "for others, too");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}
