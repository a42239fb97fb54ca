//! Inspection and force release with two servers down: a majority is enough, and a force-released
//! claim stays force-released.

use leasehold::{ClaimId, LostReason, ReleaseOutcome};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, PATIENT, ShiftedClock, connected_client, lock, release};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_force_released_with_two_servers_down_stays_released() {
    assert_stays_released(&[[1, 3]]).await;
}

/// One pair of servers after another is down.
pub(super) async fn assert_stays_released(pairs: &[[usize; 2]]) {
    let mut fixture = Fixture::durable().await;
    let ahead = ShiftedClock::new();
    let (locks, other) = (fixture.locks_with_clock(&ahead).await, fixture.locks_with_clock(&ahead).await);
    for down in pairs {
        let (held, beside) = (lock(&locks, "held").await, lock(&locks, "beside").await);
        fixture.until_claim_counts("held", 1).await;
        fixture.kill(down);
        let view = eventually(TEST_TIMEOUT, || other.inspect("held")).await;
        let seen: Vec<_> = view.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(seen, [Some(held.token())], "{down:?}: {view:?}");
        assert!(view.holders[0].holder.pid == std::process::id() && view.last_token == Some(held.token()));
        let listed = other.list("").await.expect("a list");
        let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["beside", "held"]);
        let force_released = other.force_release("held", view.holders[0].claim).await.expect("a force release");
        let fence = force_released.fence_token.expect("a token");
        assert!(force_released.contender.is_some() && fence > held.token(), "{down:?}: {force_released:?}");
        // The nodes notify the holder: its next renewal is far away.
        assert_eq!(
            timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss"),
            LostReason::Revoked
        );
        assert!(!held.is_held());
        let next = lock(&other, "held").await;
        assert!(next.token() > fence, "{down:?}");
        // Both servers missed the force release and still have the old claim on record.
        fixture.restart(down, Data::Keep).await;
        assert_eq!(held.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
        wait_claim_gone(&fixture, "held", view.holders[0].claim).await;
        fixture.renew_until_claim_counts(&ahead, &[&next, &beside], "held", 1).await;
        assert!(beside.is_held(), "other locks are unaffected");
        let again = other.force_release("held", view.holders[0].claim).await.expect("a force release");
        assert_eq!((&again.contender, again.fence_token), (&None, None), "the claim is gone");
        ahead.renew_now(&[&next, &beside], LASTING).await;
        release(next).await;
        release(beside).await;
        for name in ["held", "beside"] {
            fixture.until_claim_counts(name, 0).await;
        }
        assert!(other.list("").await.expect("a list").is_empty());
    }
}

/// Waits until no server has this claim on record: restarted servers learn of its release.
async fn wait_claim_gone(fixture: &Fixture, name: &str, claim: ClaimId) {
    eventually(TEST_TIMEOUT, || async {
        for at in 0..NODES {
            if fixture.votes(at, name).await.iter().any(|vote| vote.claim == claim) {
                return Err(format!("server {at} still has the claim"));
            }
        }
        Ok(())
    })
    .await;
}

/// A renewal of a force-released claim does not restore it on any server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_restore_a_force_released_claim() {
    let (fixture, ahead) = (Fixture::shared().await, ShiftedClock::new());
    let (proxies, url) = fixture.start_proxies(PATIENT).await;
    let (locks, other) = (connected_client(&url, LASTING, &ahead.clock()).await, fixture.locks().await);
    let held = lock(&locks, "a").await;
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    // Requests from here on arrive after the force release.
    proxies.iter().for_each(|proxy| proxy.freeze(true));
    other.force_release("a", claim).await.expect("a force release");
    assert_eq!(fixture.claim_counts("a").await, [0; NODES]);
    let sent = |at: usize| proxies[at].counts().request_bytes;
    let before: Vec<_> = (0..NODES).map(sent).collect();
    // The holder sends several renewals without a reply, so its lease expires.
    eventually(TEST_TIMEOUT, || async {
        ahead.advance(LASTING / 20);
        if held.is_held() { Err("the lock is still held") } else { Ok(()) }
    })
    .await;
    timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss");
    proxies.iter().for_each(|proxy| proxy.freeze(false));
    eventually(TEST_TIMEOUT, || async {
        let arrived = (0..NODES).filter(|at| sent(*at) > before[*at]).count();
        if arrived == NODES { Ok(()) } else { Err(format!("{arrived} connections have delivered requests")) }
    })
    .await;
    eventually(TEST_TIMEOUT, || locks.flush()).await;
    fixture.until_claim_counts("a", 0).await;
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("the lock is free");
    fixture.until_claim_counts("a", 1).await;
    assert!(next.is_held());
    release(next).await;
}
