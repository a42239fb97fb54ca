//! A server restarts without its data, and leases end by themselves.

use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::site::{Site, attempt, claim, until_granted};

const TTL: Duration = Duration::from_secs(5);

fn now() -> Moment {
    Clock::system().now()
}

/// Node 4 and 5 are cut off from A, and vote; node 3 restarts.
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
        assert!(now() < end.after(SOON), "B never gets it: {said}");
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
    eventually(SOON, || async {
        match short.mutex("a").try_lock().await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("busy".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}
