//! Helpers that the tests share.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::eventually;
use leasehold_verify::deploy::{Deployment, Local, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind;
use tokio::time::timeout;

/// Only a failing test waits this long.
pub(crate) const BOUND: Duration = leasehold_testbed::BOUND;

pub(crate) fn setup(local: Local, faults: &[FaultKind], guard: bool) -> Setup {
    Setup { faults: faults.to_vec(), guard, ttl: local.ttl_for(faults, None), apart: false, option: None }
}

/// All faults of the engine, except those of workers and these.
pub(crate) fn faults(local: Local, but: &[FaultKind]) -> Vec<FaultKind> {
    let all = local.faults().into_iter();
    all.filter(|fault| ![FaultKind::Kill, FaultKind::Stop].contains(fault) && !but.contains(fault)).collect()
}

/// A deployment for these faults.
pub(crate) async fn start(local: Local, faults: &[FaultKind], guard: bool) -> Deployment {
    let started = Deployment::start(local, &setup(local, faults, guard)).await;
    started.unwrap_or_else(|trouble| panic!("{local} with {faults:?}: {trouble}"))
}

/// A client.
pub(crate) async fn client(url: &str, ttl: Duration) -> Locks {
    let opened = eventually(BOUND, || Locks::builder().ttl(ttl).open(url));
    opened.await
}

/// Waits until the lock is granted, and releases it.
pub(crate) async fn grants(locks: &Locks, when: &str) {
    eventually(BOUND, || async {
        match locks.mutex("a").wait(Duration::from_secs(10)).lock().await {
            Ok(guard) => guard.release().await.map(drop).map_err(|error| format!("{when}: {error}")),
            Err(error) => Err(format!("{when}: {error}")),
        }
    })
    .await;
}

/// Acquires and releases it repeatedly.
async fn work(locks: &Locks) {
    loop {
        if let Ok(guard) = locks.mutex("a").wait(Duration::from_millis(200)).lock().await {
            // It may be lost by now.
            let _ = guard.release().await;
        }
        tokio::task::yield_now().await;
    }
}

/// Begins and ends a fault while a client works; then every client is granted the lock again.
pub(crate) async fn survives(deployment: &mut Deployment, fault: FaultKind, ttl: Duration, dice: &mut Dice) -> String {
    let (through, past) = (client(deployment.url(), ttl).await, client(deployment.own_url(), ttl).await);
    grants(&through, &format!("before {fault}")).await;
    let strike = deployment.begin(fault, dice).await.unwrap_or_else(|trouble| panic!("{fault}: {trouble}"));
    assert!(!strike.target.is_empty() && strike.lasts <= strike.longest(ttl), "{strike:?}");
    assert!(deployment.begin(fault, dice).await.is_err(), "{fault} goes on already");
    let _ = timeout(strike.lasts, work(&through)).await;
    let note = deployment.end(fault).await.unwrap_or_else(|trouble| panic!("{fault}: {trouble}"));
    let _ = deployment.end(fault).await.expect_err("it has ended already");
    grants(&through, &format!("after {fault}")).await;
    grants(&past, &format!("after {fault}, past the proxies")).await;
    println!("{} {fault}: {strike:?} {note}", deployment.engine());
    format!("{}: {note}", strike.target)
}
