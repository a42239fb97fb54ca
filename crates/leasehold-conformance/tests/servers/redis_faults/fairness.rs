//! Contenders for one lock are served equally often.

use std::sync::{Arc, Mutex};

use leasehold::Locks;
use leasehold_conformance::test_context::LONG_TTL;

use crate::redis_faults::fixture::{Fixture, release, until_waiting};

/// Eight contenders loop over one lock and are served equally often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_are_served_equally() {
    const ROUNDS: usize = 400;
    let fixture = Fixture::shared().await;
    let served = Arc::new(Mutex::new(vec![0usize; 8]));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(fixture.locks(LONG_TTL).await);
    }
    let start = clients[0].mutex("a").lock().await.expect("a lock");
    let contend = |number: usize, locks: &Locks| {
        let (mutex, served) = (locks.mutex("a"), Arc::clone(&served));
        tokio::spawn(async move {
            loop {
                let guard = mutex.lock().await.expect("the lock");
                let over = {
                    let mut served = served.lock().expect("no panic");
                    served[number] += 1;
                    served.iter().sum::<usize>() >= ROUNDS
                };
                release(guard).await;
                if over {
                    return;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..8).map(|number| contend(number, &clients[number % 4])).collect();
    until_waiting(&clients[0], "a", 8).await;
    release(start).await;
    for task in tasks {
        task.await.expect("no panic");
    }
    let served = served.lock().expect("no panic").clone();
    let (least, most) = (served.iter().min(), served.iter().max());
    assert!(least.zip(most).is_some_and(|(least, most)| least * 2 > *most), "{served:?}");
}
