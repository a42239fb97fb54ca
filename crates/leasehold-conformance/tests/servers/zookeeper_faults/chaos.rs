//! Everything at once: clients that take and give back, while leaders die, followers are cut off, and all come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::Token;
use leasehold::clock::{Clock, Moment};
use leasehold_testbed::Data;
use leasehold_testbed::zookeeper::ZooKeeper;
use tokio::task::JoinSet;

use crate::zookeeper_faults::site::{ensemble, locks};

/// A time during which somebody believed to hold the lock.
struct Held {
    token: Token,
    from: Moment,
    to: Moment,
}

async fn client(url: String, stop: Arc<AtomicBool>) -> Vec<Held> {
    let locks = locks(&url, Duration::from_secs(2)).await;
    let clock = Clock::system();
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(guard) = locks.mutex("a").wait(Duration::from_secs(5)).lock().await else { continue };
        let from = clock.now();
        let pause = clock.sleep_until(from.after(Duration::from_millis(30)));
        let _ = guard.protect(pause).await;
        // Until when it may have believed it: its deadline, if it was lost.
        let to = if guard.is_held() { clock.now() } else { clock.now().min(guard.deadline()) };
        held.push(Held { token: guard.token(), from, to });
        let _ = guard.release().await;
    }
    held
}

/// Nobody ever holds beside another, and tokens rise with the grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_whatever_dies() {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        clients.spawn(client(format!("zookeeper://{}/c", servers.url()), Arc::clone(&stop)));
    }
    let clock = Clock::system();
    for round in 0..4 {
        clock.sleep_until(clock.now().after(Duration::from_millis(1_500))).await;
        let leader = servers.leader().await.expect("a leader");
        let follower = servers.followers().await.expect("followers")[0];
        match round % 2 {
            0 => {
                servers.server_mut(leader).kill().expect("a killed leader");
                clock.sleep_until(clock.now().after(Duration::from_secs(2))).await;
                servers.server_mut(leader).restart(Data::Keep).await.expect("a restart");
            }
            _ => {
                servers.cut_off(follower);
                clock.sleep_until(clock.now().after(Duration::from_secs(3))).await;
                servers.heal(follower);
            }
        }
        servers.settled(Duration::from_secs(60)).await.expect("all serve again");
    }
    stop.store(true, Ordering::Relaxed);
    let mut held: Vec<Held> = clients.join_all().await.into_iter().flatten().collect();
    held.sort_by_key(|held| held.from);
    println!("{} grants", held.len());
    assert!(held.len() > 50, "only {} grants", held.len());
    for pair in held.windows(2) {
        assert!(pair[0].to <= pair[1].from, "two at once for {:?}", pair[0].to.since(pair[1].from));
        assert!(pair[0].token < pair[1].token, "token {} after {}", pair[1].token, pair[0].token);
    }
}
