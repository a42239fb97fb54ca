//! With the guard off, a fault violates what the guard protects: two hold the lock at once. With it
//! on, never.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_verify::deploy::{Deployment, Local, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind;
use tokio::task::JoinSet;

use crate::deploy::site::{client, grants};

/// Longer than a server takes to restart, and Sentinels to replace one, on a busy machine.
const TTL: Duration = Duration::from_secs(6);
/// How many of the last locks are checked.
const LAST: usize = 5;
/// The interval between new locks.
const PACE: Duration = Duration::from_millis(25);
/// How often the fault is repeated at most, if it shows nothing at first: the clients that do not
/// notice it are chosen at random.
const STRIKES: usize = 3;
/// The holders' guards by lock, kept until the end.
type Held = Arc<Mutex<Vec<(String, Guard)>>>;

/// Acquires new locks until the end of the fault: the last of them after it has begun.
async fn take(locks: Locks, who: String, held: Held, over: Arc<AtomicBool>) {
    let mut pace = tokio::time::interval(PACE);
    for number in 0.. {
        pace.tick().await;
        let enough = held.lock().expect("no panic").len() >= LAST;
        if enough && over.load(Ordering::SeqCst) {
            return;
        }
        let name = format!("{who}-{number}");
        if let Ok(Some(guard)) = locks.mutex(&name).try_lock().await {
            held.lock().expect("no panic").push((name, guard));
        }
    }
}

/// Waits until enough locks are held.
async fn has_some(held: &Held) {
    leasehold_testbed::eventually(TTL * 10, || async {
        let count = held.lock().expect("no panic").len();
        if count >= LAST { Ok(()) } else { Err(format!("{count} locks")) }
    })
    .await;
}

/// Waits for the last locks of another client; each wait returns whether that client still had the
/// lock.
fn wait_for(held: &Held, locks: &Locks, waits: &mut JoinSet<bool>) {
    for (name, guard) in held.lock().expect("no panic").iter().rev().take(LAST) {
        let (watch, mutex) = (guard.watch(), locks.mutex(name).wait(TTL * 3 / 2));
        waits.spawn(async move {
            let second = mutex.lock().await;
            // The first guard is checked after the second grant, and the second one after that: if
            // both are held, both held the lock at once.
            watch.is_held() && second.is_ok_and(|second| second.is_held())
        });
    }
}

/// How many of the last locks two clients held at once, in one fault.
async fn strike(deployment: &mut Deployment, clients: [&Locks; 2], fault: FaultKind, dice: &mut Dice) -> usize {
    let (held, over) = ([Held::default(), Held::default()], Arc::<AtomicBool>::default());
    let mut takers = JoinSet::new();
    for (locks, held) in clients.iter().zip(&held) {
        let who = format!("{:x}", dice.roll());
        takers.spawn(take((*locks).clone(), who, Arc::clone(held), Arc::clone(&over)));
        has_some(held).await;
    }
    // With the guard on, the fault hits as many voting servers as with it off.
    deployment.widen(fault);
    let strike = deployment.begin(fault, dice).await.expect("a fault");
    over.store(true, Ordering::SeqCst);
    let mut waits = JoinSet::new();
    wait_for(&held[0], clients[1], &mut waits);
    wait_for(&held[1], clients[0], &mut waits);
    tokio::time::sleep(strike.lasts.min(TTL / 4)).await;
    let note = deployment.end(fault).await.expect("its end");
    let together = waits.join_all().await.into_iter().filter(|both| *both).count();
    takers.join_all().await;
    println!("{} {fault}: {}: {note}: {together} of {} met", deployment.engine(), strike.target, 2 * LAST);
    together
}

/// How many locks two clients held at once.
async fn together(local: Local, fault: FaultKind, guard: bool) -> usize {
    let setup = Setup { faults: vec![fault], guard, ttl: TTL, apart: false, option: None };
    let mut deployment = Deployment::start(local, &setup).await.expect("a deployment");
    assert_eq!(deployment.control().is_some(), !guard);
    let (one, two) = (client(deployment.url(), TTL).await, client(deployment.url(), TTL).await);
    let mut dice = Dice::new(5);
    let mut met = 0;
    for _ in 0..if guard { 1 } else { STRIKES } {
        grants(&one, "before it").await;
        grants(&two, "before it").await;
        met += strike(&mut deployment, [&one, &two], fault, &mut dice).await;
        if met > 0 {
            break;
        }
    }
    met
}

/// Off: two clients hold a lock. On: never.
async fn guards(local: Local, fault: FaultKind) {
    let (off, on) = tokio::join!(together(local, fault, false), together(local, fault, true));
    assert!(off > 0, "{local} {fault}: the control shows nothing");
    assert_eq!(on, 0, "{local} {fault}: two are in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_forget() {
    tokio::join!(
        guards(Local::Redis, FaultKind::Wipe),
        guards(Local::RedisSentinel, FaultKind::Failover),
        guards(Local::RedisCluster, FaultKind::Failover),
        guards(Local::Redlock, FaultKind::Wipe),
        guards(Local::Redis, FaultKind::Evict),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_clocks() {
    tokio::join!(
        guards(Local::Redis, FaultKind::Clock),
        guards(Local::Redlock, FaultKind::Clock),
        guards(Local::Mysql, FaultKind::Clock),
        guards(Local::Postgres, FaultKind::Clock),
    );
}
