//! Looking at locks and putting holders out, with two servers down: a majority is enough, and who was put out stays out.

use leasehold::{ClaimId, LostReason, ReleaseOutcome};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, PATIENT, ShiftedClock, connected_client, lock, release};

/// Finds a claim among those of a lock's record, which follow what is said of the last that was given back; nil: it is not there.
const FIND_CLAIM_SCRIPT: &str =
    "local id = string.gsub(ARGV[1], '..', function(byte) return string.char(tonumber(byte, 16)) end)
return string.find(redis.call('GET', KEYS[1]) or '', id, 49, true)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_force_released_with_two_servers_down_stays_released() {
    assert_stays_released(&[[1, 3]]).await;
}

/// One pair of servers after the other is down meanwhile.
pub(super) async fn assert_stays_released(pairs: &[[usize; 2]]) {
    let mut site = Fixture::durable().await;
    let ahead = ShiftedClock::new();
    let (locks, other) = (site.locks_with_clock(&ahead).await, site.locks_with_clock(&ahead).await);
    for down in pairs {
        let (held, beside) = (lock(&locks, "held").await, lock(&locks, "beside").await);
        site.until_claim_counts("held", 1).await;
        site.kill(down);
        let view = eventually(TEST_TIMEOUT, || other.inspect("held")).await;
        let seen: Vec<_> = view.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(seen, [Some(held.token())], "{down:?}: {view:?}");
        assert!(view.holders[0].holder.pid == std::process::id() && view.last_token == Some(held.token()));
        let listed = other.list("").await.expect("a list");
        let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["beside", "held"]);
        let evicted = other.force_release("held", view.holders[0].claim).await.expect("an eviction");
        let fence = evicted.fence_token.expect("a token");
        assert!(evicted.contender.is_some() && fence > held.token(), "{down:?}: {evicted:?}");
        // The nodes tell it: no renewal is due for a long time.
        assert_eq!(timeout(TEST_TIMEOUT, held.lost()).await.expect("it is told"), LostReason::Revoked);
        assert!(!held.is_held());
        let next = lock(&other, "held").await;
        assert!(next.token() > fence, "{down:?}");
        // The two have missed all that, and still have the old claim on record.
        site.restart(down, Data::Keep).await;
        assert_eq!(held.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
        wait_claim_gone(&site, "held", view.holders[0].claim).await;
        site.renew_until_claim_counts(&ahead, &[&next, &beside], "held", 1).await;
        assert!(beside.is_held(), "nobody else is touched");
        let again = other.force_release("held", view.holders[0].claim).await.expect("an eviction");
        assert_eq!((&again.contender, again.fence_token), (&None, None), "it is gone");
        ahead.renew_now(&[&next, &beside], LASTING).await;
        release(next).await;
        release(beside).await;
        for name in ["held", "beside"] {
            site.until_claim_counts(name, 0).await;
        }
        assert!(other.list("").await.expect("a list").is_empty());
    }
}

/// Waits until no server has this claim on record: those that were down are told of its end when they are back.
async fn wait_claim_gone(site: &Fixture, name: &str, claim: ClaimId) {
    let (key, id) = (site.key(name), format!("{:032x}", claim.bits()));
    eventually(TEST_TIMEOUT, || async {
        for at in 0..NODES {
            if site.command(at, &["EVAL", FIND_CLAIM_SCRIPT, "1", &key, &id]).await != Reply::Nil {
                return Err(format!("server {at} has it still"));
            }
        }
        Ok(())
    })
    .await;
}

/// A renewal of somebody who was put out brings nothing back, on any server, however often it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_restore_a_force_released_claim() {
    let (site, ahead) = (Fixture::shared().await, ShiftedClock::new());
    let (proxies, url) = site.start_proxies(PATIENT).await;
    let (locks, other) = (connected_client(&url, LASTING, &ahead.clock()).await, site.locks().await);
    let held = lock(&locks, "a").await;
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    // What it sends from here on arrives after the eviction.
    proxies.iter().for_each(|line| line.freeze(true));
    other.force_release("a", claim).await.expect("an eviction");
    assert_eq!(site.claim_counts("a").await, [0; NODES]);
    let sent = |at: usize| proxies[at].counts().request_bytes;
    let before: Vec<_> = (0..NODES).map(sent).collect();
    // It asks several times, hears nothing, and so it is lost.
    eventually(TEST_TIMEOUT, || async {
        ahead.advance(LASTING / 20);
        if held.is_held() { Err("it is held still") } else { Ok(()) }
    })
    .await;
    timeout(TEST_TIMEOUT, held.lost()).await.expect("it is told");
    proxies.iter().for_each(|line| line.freeze(false));
    eventually(TEST_TIMEOUT, || async {
        let arrived = (0..NODES).filter(|at| sent(*at) > before[*at]).count();
        if arrived == NODES { Ok(()) } else { Err(format!("{arrived} lines have spoken again")) }
    })
    .await;
    eventually(TEST_TIMEOUT, || locks.flush()).await;
    site.until_claim_counts("a", 0).await;
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("free");
    site.until_claim_counts("a", 1).await;
    assert!(next.is_held());
    release(next).await;
}
