//! Everything at once: clients that take and give back, while connections are killed at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{Locks, Outcome, Token};
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use tokio::task::JoinSet;

use crate::sql_held_faults::site::{Kind, LONG, Site};

/// A time during which somebody believed to hold the lock.
#[derive(Debug)]
struct Held {
    token: Token,
    from: Moment,
    to: Moment,
    /// Its session was ended under it.
    lost: bool,
}

async fn client(locks: Locks, stop: Arc<AtomicBool>, grants: Arc<AtomicUsize>) -> Vec<Held> {
    let clock = Clock::system();
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(guard) = locks.mutex("a").wait(Duration::from_secs(5)).lock().await else { continue };
        let (token, from) = (guard.token(), clock.now());
        let _ = guard.protect(clock.sleep_until(from.after(Duration::from_millis(5)))).await;
        let to = clock.now();
        let lost = !guard.is_held() || guard.release().await.ok() != Some(Outcome::Released);
        held.push(Held { token, from, to, lost });
        grants.fetch_add(1, Ordering::Relaxed);
    }
    held
}

/// Tokens rise with the grants, each is given once, and two are in at the same time only where the server had ended the first one's session.
async fn tokens_rise_whatever_is_killed(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..4 {
            clients.spawn(client(table.locks(LONG).await, Arc::clone(&stop), Arc::clone(&grants)));
        }
        let clock = Clock::system();
        let (mut dice, mut killed) = (leasehold::ClaimId::random().bits() as u64, 0);
        for _ in 0..12 {
            clock.sleep_until(clock.now().after(Duration::from_millis(150))).await;
            killed += table
                .site
                .end(|_| {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    dice >> 62 == 0
                })
                .await;
        }
        eventually(SOON, || async {
            let grants = grants.load(Ordering::Relaxed);
            if grants > 20 { Ok(()) } else { Err(format!("{grants} grants")) }
        })
        .await;
        stop.store(true, Ordering::Relaxed);
        let mut held: Vec<Held> = clients.join_all().await.into_iter().flatten().collect();
        held.sort_by_key(|held| held.token);
        println!("{kind:?}, {}: {} grants, {killed} killed", table.technique, held.len());
        assert!(held.len() > 20 && killed > 5, "{kind:?}, {}", table.technique);
        for (index, one) in held.iter().enumerate() {
            for next in &held[index + 1..] {
                assert!(one.token < next.token, "{}: given twice: {one:?}, {next:?}", table.technique);
                // Whoever was ended in the moment of its grant may hear of it late.
                assert!(
                    next.to > one.from || one.lost,
                    "{}: granted before, and higher: {one:?}, {next:?}",
                    table.technique
                );
                assert!(one.to <= next.from || one.lost, "{}: two at once: {one:?}, {next:?}", table.technique);
            }
        }
    }
}

crate::sql_held_faults::on_both! { tokens_rise_whatever_is_killed }
