//! `strict`: a server that may have lost leases grants no new lock before the longest of them is
//! over.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks, Owner, ReleaseOutcome, Token};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Data, Server, eventually};

use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, raw_command, stored_epoch};
use crate::redis_faults::manual_time::{ManualTime, patient_client};

/// A client whose TTL is the longest lease.
async fn strict_client(server: &Server, time: &ManualTime) -> Locks {
    patient_client(&format!("{}?strict={}s", server.url(), LONG_TTL.as_secs()), LONG_TTL, time.clients_clock()).await
}

/// The earliest start of a new lease: the server has been up without data loss for the longest
/// lease.
async fn cool_down_end(server: &Server) -> Token {
    let since: u64 = stored_epoch(server.addr(), "leasehold:e").await.start;
    Token(since + LONG_TTL.as_micros() as u64)
}

/// Advances the time by more than the longest lease.
fn pass_cool_down(time: &ManualTime) {
    time.advance(LONG_TTL + Duration::from_secs(1));
}

/// Tries until the server answers.
async fn try_lock(locks: &Locks, name: &str) -> Option<Guard> {
    eventually(TEST_TIMEOUT, || async { locks.mutex(name).try_lock().await }).await
}

/// Tries until the server answers, with a cool-down error.
async fn assert_cooling_down(locks: &Locks, name: &str) {
    eventually(TEST_TIMEOUT, || async {
        match locks.mutex(name).try_lock().await {
            Err(error) if is_cool_down(&error) => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(answer) => panic!("the server answers during its cool-down: {answer:?}"),
        }
    })
    .await;
}

/// Redlock reports a cool-down in the same way.
fn is_cool_down(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains("cools down for another")
}

/// The first grant of a new server.
async fn acquire_after_cool_down(locks: &Locks, time: &ManualTime) -> Guard {
    assert_cooling_down(locks, "a").await;
    pass_cool_down(time);
    try_lock(locks, "a").await.expect("the cool-down is over")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_grants_nothing_during_its_cool_down() {
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let locks = strict_client(&server, &time).await;
    assert_cooling_down(&locks, "a").await;
    let refused = locks.multi_lock(["a", "b"]).try_lock().await.expect_err("the server cools down");
    assert!(is_cool_down(&refused), "{refused}");
    let left = locks.inspect("a").await.expect("an answer").cool_down.expect("a cool-down");
    assert!(left <= LONG_TTL, "{left:?}");
    // A waiter's timeout also reports the cool-down.
    eventually(TEST_TIMEOUT, || async {
        let error = locks.mutex("a").timeout(Duration::from_secs(1)).lock().await.expect_err("the server cools down");
        if is_cool_down(&error) { Ok(()) } else { Err(error.to_string()) }
    })
    .await;
    pass_cool_down(&time);
    assert_eq!(locks.inspect("a").await.expect("an answer").cool_down, None);
    let guard = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    assert!(guard.token() >= cool_down_end(&server).await, "{guard:?}");
    // From now on, no client sees a cool-down.
    let other = strict_client(&server, &time).await;
    let guard = other.mutex("b").try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// Another client acquires the lock only after the cool-down, when the old holder no longer relies
/// on it.
async fn assert_taken_over_after_cool_down(locks: &Locks, old: &Guard, server: &Server, time: &ManualTime) -> Guard {
    assert_cooling_down(locks, "a").await;
    pass_cool_down(time);
    let new = try_lock(locks, "a").await.expect("the cool-down is over");
    assert!(!old.is_held(), "two holders: {old:?} {new:?}");
    assert!(new.token() >= cool_down_end(server).await, "granted too early: {new:?}");
    assert!(new.token() > old.token());
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_empty_or_is_flushed_cools_down() {
    let time = ManualTime::new();
    let mut server = time.redis_config().start().await.expect("a server");
    let (one, two) = (strict_client(&server, &time).await, strict_client(&server, &time).await);
    let first = acquire_after_cool_down(&one, &time).await;
    server.kill().expect("a dead server");
    server.restart(Data::Wipe).await.expect("an empty server");
    let second = assert_taken_over_after_cool_down(&two, &first, &server, &time).await;
    assert_eq!(raw_command(server.addr(), &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    let third = assert_taken_over_after_cool_down(&one, &second, &server, &time).await;
    assert_eq!(third.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// A replica may have missed a release and the next grant: the old owner must not re-enter by its
/// outdated record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_does_not_re_enter_on_an_outdated_hold() {
    let time = ManualTime::new();
    let kept = time.redis_config().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = kept.start().await.expect("a server");
    let (ours, theirs) = (strict_client(&server, &time).await, strict_client(&server, &time).await);
    let (owner, key) = (Owner::named("p"), "leasehold:l{a}");
    drop(acquire_after_cool_down(&ours, &time).await);
    ours.flush().await.expect("released");
    let first = ours.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(raw_command(server.addr(), &["COPY", key, "old"]).await, Reply::Integer(1), "a copy of the record");
    assert_eq!(first.release().await.expect("a release"), ReleaseOutcome::Released);
    let held = theirs.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    server.kill().expect("killed");
    server.restart(Data::Keep).await.expect("restarted");
    assert_eq!(raw_command(server.addr(), &["COPY", "old", key, "REPLACE"]).await, Reply::Integer(1));
    let again = eventually(TEST_TIMEOUT, || async { ours.mutex("a").owner(&owner).try_lock().await }).await;
    assert!(again.is_none(), "re-entered a released hold while {held:?}: {again:?}");
}

/// During the cool-down the record may lack holders, so a force release suggests no fence token:
/// the token would reject them. After the cool-down the record is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_during_the_cool_down_advises_no_token() {
    let time = ManualTime::new();
    let kept = time.redis_config().args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = kept.start().await.expect("a server");
    let locks = strict_client(&server, &time).await;
    drop(acquire_after_cool_down(&locks, &time).await);
    locks.flush().await.expect("released");
    for (restarts, suggests_token) in [(true, false), (false, true)] {
        let guard = try_lock(&locks, "a").await.expect("a free lock");
        if restarts {
            server.kill().expect("killed");
            server.restart(Data::Keep).await.expect("restarted");
        }
        let force_released =
            eventually(TEST_TIMEOUT, || async { locks.force_release("a", guard.claim_id()).await }).await;
        assert!(force_released.contender.is_some(), "the claim was on record");
        assert_eq!(
            force_released.fence_token.is_some_and(|token| token > guard.token()),
            suggests_token,
            "{force_released:?}"
        );
        assert_eq!(force_released.fence_token.is_some(), suggests_token, "{force_released:?}");
        if restarts {
            pass_cool_down(&time);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_longer_than_the_longest_is_refused() {
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let locks = strict_client(&server, &time).await;
    let refused = locks.mutex("a").ttl(LONG_TTL + Duration::from_millis(1)).lock().await.expect_err("too long");
    assert_eq!(refused.kind(), ErrorKind::InvalidOption, "{refused}");
    assert!(refused.to_string().contains(&format!("{LONG_TTL:?}")), "the error does not name the limit: {refused}");
    // The longest lease that any client configured applies to all clients.
    let guard = acquire_after_cool_down(&locks, &time).await;
    let longer =
        patient_client(&format!("{}?strict={}s", server.url(), LONG_TTL.as_secs() * 5), LONG_TTL, time.clients_clock())
            .await;
    assert_cooling_down(&longer, "b").await;
    assert_cooling_down(&locks, "b").await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}
