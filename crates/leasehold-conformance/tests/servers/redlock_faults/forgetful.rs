//! A server restarts without its data. Two majorities then share a node that knows nothing of the first: two holders, and only the
//! fence is left. With `strict`, or with data that is on disk before it is acknowledged, there is one.

use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::logic::fence::{Seen, admits};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::site::{Site, attempt, claim, until_granted};

const TTL: Duration = Duration::from_secs(5);

fn now() -> Moment {
    Clock::system().now()
}

/// The known weakness, as it is documented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_strict_there_are_two_holders_and_the_fence_tells_them_apart() {
    let mut site = Site::new().await;
    site.kill(&[3, 4]);
    let a = site.engine("node-timeout=2s").await;
    let (first, end) = attempt(&a, &claim("a", None, LONG)).await.expect("an answer").expect("the lock");
    assert_eq!(site.all_claims("a").await, [1, 1, 1]);
    site.kill(&[2]);
    site.restart(&[2, 3, 4], Data::Wipe).await;
    let b = site.engine("node-timeout=2s").await;
    let (second, second_end) = until_granted(&b, &claim("a", None, LONG)).await;
    assert!(second_end < end, "the violation: both hold it");
    assert_eq!(site.all_claims("a").await, [1, 1, 1, 1, 1], "A on two, B on three");
    assert!(second > first, "{second} after {first}");
    let seen = Seen { token: second, owner: None };
    assert!(!admits(seen, first, None), "what B has written to is not A's any more");
    assert!(admits(Seen { token: first, owner: None }, second, None));
}

/// As above, but node 4 and 5 are only cut off from A: they vote.
async fn one_after_the_other(site: &mut Site, options: &str, data: Data) {
    let (a, _proxies) = site.engine_without(&[3, 4], options).await;
    let (first, _) = until_granted(&a, &claim("a", None, TTL)).await;
    // Again, on a fresh name, so that all of its time is left.
    let claim_b = claim("b", None, TTL);
    let (token, end) = eventually(SOON, || async {
        attempt(&a, &claim_b).await.map_err(|error| error.to_string())?.ok_or("it is not free".to_owned())
    })
    .await;
    assert!(token > first);
    site.kill(&[2]);
    site.restart(&[2], data).await;
    let b = site.engine(options).await;
    let claim = claim("b", None, TTL);
    let (mut refusals, mut said) = (0, String::new());
    let (second, granted) = loop {
        match attempt(&b, &claim).await {
            Ok(Some((token, _))) => break (token, now()),
            Ok(None) => refusals += 1,
            Err(error) => {
                refusals += 1;
                said = error.to_string();
            }
        }
        assert!(now() < end.after(TTL * 4), "B never gets it: {said}");
        tokio::task::yield_now().await;
    };
    assert!(granted >= end, "B holds {:?} before A's lease is over", end.since(granted));
    assert!(refusals > 0, "it was asked too late");
    assert!(second > token, "{second} after {token}");
    if options.contains("strict") {
        assert!(said.contains("abstain"), "it does not say why: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_lets_nobody_in_before_the_forgotten_lease_is_over() {
    one_after_the_other(&mut Site::new().await, "strict=5s", Data::Wipe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_disk_first_is_not_forgotten() {
    one_after_the_other(&mut Site::durable().await, "", Data::Keep).await;
}

/// Strict refuses a TTL beyond what servers abstain for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_refuses_leases_that_last_longer_than_a_restarted_server_waits() {
    let site = Site::new().await;
    let locks = site.locks_with(TTL * 2, "strict=5s").await;
    let error = locks.mutex("a").try_lock().await.expect_err("too long");
    assert!(error.to_string().contains("5s"), "{error}");
    let short = site.locks_with(TTL, "strict=5s").await;
    eventually(TTL * 4, || async {
        match short.mutex("a").try_lock().await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("busy".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}

/// Nobody is let in while servers abstain, and the error says why.
fn says_why(error: &leasehold::Error) {
    let text = error.to_string();
    assert!(text.contains("have restarted") && text.contains("abstain"), "{text}");
    assert!(!text.contains("holds it"), "nobody does: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_says_to_those_who_try_why_nobody_is_let_in() {
    let site = Site::new().await;
    let locks = site.locks_with(TTL, "strict=60s").await;
    says_why(&locks.mutex("a").try_lock().await.expect_err("all abstain"));
    site.until_claims("a", 0, TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_says_to_those_who_wait_why_nobody_is_let_in() {
    let site = Site::new().await;
    let locks = site.locks_with(TTL, "strict=60s").await;
    says_why(&locks.mutex("a").wait(TTL / 4).lock().await.expect_err("all abstain"));
}
