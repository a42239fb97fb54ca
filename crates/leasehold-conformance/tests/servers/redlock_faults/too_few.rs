//! Three of five servers are dead: everybody hears it in time and in words that help, nobody holds anything, and all is well when
//! they are back.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::{Data, eventually};
use tokio::time::{Instant, timeout};

use crate::redlock_faults::site::{Site, give_back, lock};

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const MORE: Duration = Duration::from_secs(1);
const DEAD: [usize; 3] = [0, 2, 4];

/// The error says how many are needed, and who is missing.
fn check(site: &Site, error: &Error, taken: Duration, allowed: Duration) {
    assert!(taken < allowed, "{taken:?}: {error}");
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("3 of 5 nodes must answer"), "{text}");
    assert!(!text.contains("somebody else holds it"), "nobody knows that: {text}");
    for at in DEAD {
        let address = site.servers.server(at).addr().to_string();
        assert!(text.contains(&format!("{address} cannot be reached")), "it does not name {address}: {text}");
    }
}

async fn all_end_in_time(site: &Site, locks: &Locks) {
    for name in ["free", "held"] {
        let start = Instant::now();
        let error = locks.mutex(name).try_lock().await.expect_err("no majority");
        check(site, &error, start.elapsed(), MORE);
        let start = Instant::now();
        let error = locks.mutex(name).wait(WAIT).lock().await.expect_err("no majority");
        assert!(start.elapsed() >= WAIT, "it could have come back: {:?}", start.elapsed());
        check(site, &error, start.elapsed(), WAIT + MORE);
        let start = Instant::now();
        let error = locks.inspect(name).await.expect_err("no majority");
        check(site, &error, start.elapsed(), MORE);
    }
    let error = locks.list("").await.expect_err("no majority");
    check(site, &error, Duration::ZERO, MORE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_dead_servers_are_said_in_time_and_nobody_holds() {
    let mut site = Site::new().await;
    let (locks, other) = (site.locks(TTL).await, site.locks(LONG).await);
    let held = lock(&locks, "held").await;
    site.kill(&DEAD);
    let killed = locks.clock().now();
    // The first to write to one that has just died may hear of it from its old connection.
    other.mutex("first").try_lock().await.expect_err("no majority");
    all_end_in_time(&site, &other).await;
    let error = Locks::open(&site.url("connect-timeout=500ms")).await.expect_err("no majority");
    check(&site, &error, Duration::ZERO, MORE);
    timeout(SOON, held.lost()).await.expect("it hears that it is lost");
    let (now, deadline) = (locks.clock().now(), held.deadline());
    assert!(deadline <= killed.after(TTL), "nobody could renew it: {:?} too long", deadline.since(killed.after(TTL)));
    assert!(!held.is_held() && now.since(deadline) < MORE, "told {:?} after its end", now.since(deadline));
    for name in ["free", "held"] {
        other.mutex(name).wait(WAIT).lock().await.expect_err("no majority");
    }
    let error = held.release().await;
    assert!(!matches!(error, Ok(leasehold::Outcome::Released)), "it was lost: {error:?}");
    site.restart(&DEAD, Data::Wipe).await;
    eventually(SOON, || async { other.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        give_back(lock(&locks, name).await).await;
        give_back(lock(&other, name).await).await;
        site.until_claims(name, 0, SOON).await;
    }
}
