//! Three of five servers are dead: everybody hears it in words that help, nobody holds anything, and all is well when
//! they are back.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Data, eventually};
use tokio::time::{Instant, timeout};

use crate::redlock_faults::site::{Site, give_back, lock};

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(400);
const DEAD: [usize; 3] = [0, 2, 4];

/// The error says how many are needed, and who is missing.
fn check(site: &Site, error: &Error) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("3 of 5 nodes must answer"), "{text}");
    assert!(!text.contains("somebody else holds it"), "nobody knows that: {text}");
    for at in DEAD {
        let address = site.server(at).addr().to_string();
        assert!(text.contains(&format!("{address} cannot be reached")), "it does not name {address}: {text}");
    }
}

async fn all_end(site: &Site, locks: &Locks) {
    for name in ["free", "held"] {
        check(site, &locks.mutex(name).try_lock().await.expect_err("no majority"));
        let start = Instant::now();
        let error = locks.mutex(name).wait(WAIT).lock().await.expect_err("no majority");
        assert!(start.elapsed() >= WAIT, "it could have come back: {:?}", start.elapsed());
        check(site, &error);
        check(site, &locks.inspect(name).await.expect_err("no majority"));
    }
    check(site, &locks.list("").await.expect_err("no majority"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_dead_servers_are_said_and_nobody_holds() {
    let mut site = Site::new().await;
    let (locks, other) = (site.locks_with(TTL, "").await, site.locks().await);
    let held = lock(&locks, "held").await;
    site.kill(&DEAD);
    let killed = locks.clock().now();
    // The first to write to one that has just died may hear of it from its old connection.
    other.mutex("first").try_lock().await.expect_err("no majority");
    all_end(&site, &other).await;
    let error = Locks::open(&site.url("")).await.expect_err("no majority");
    check(&site, &error);
    timeout(SOON, held.lost()).await.expect("it hears that it is lost");
    let deadline = held.deadline();
    assert!(deadline <= killed.after(TTL), "nobody could renew it: {:?} too long", deadline.since(killed.after(TTL)));
    assert!(!held.is_held());
    for name in ["free", "held"] {
        other.mutex(name).wait(WAIT).lock().await.expect_err("no majority");
    }
    let error = held.release().await;
    assert!(!matches!(error, Ok(leasehold::Outcome::Released)), "it was lost: {error:?}");
    site.restart(&DEAD, Data::Wipe).await;
    let again = site.locks().await;
    eventually(SOON, || async { other.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        give_back(lock(&again, name).await).await;
        give_back(lock(&other, name).await).await;
        site.until_claims(name, 0).await;
    }
}
