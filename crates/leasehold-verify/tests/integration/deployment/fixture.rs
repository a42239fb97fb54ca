//! Starts deployments and clients for the tests, and puts a deployment through a fault.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::eventually;
use leasehold_verify::deployment::{Deployment, DeploymentOptions, LocalEngine};
use leasehold_verify::history::FaultKind;
use leasehold_verify::rng::Rng;
use tokio::time::timeout;

/// The longest wait for anything; only a failing test waits this long.
pub(crate) const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// Options for these faults, with a TTL that outlives them.
pub(crate) fn options(local: LocalEngine, faults: &[FaultKind], has_safeguards: bool) -> DeploymentOptions {
    DeploymentOptions {
        faults: faults.to_vec(),
        has_safeguards,
        ttl: local.ttl_for(faults, None),
        isolates_workers: false,
        option: None,
    }
}

/// All faults of the engine except those of workers (kill, stop) and the excluded ones.
pub(crate) fn faults_except(local: LocalEngine, excluded: &[FaultKind]) -> Vec<FaultKind> {
    let all = local.faults().into_iter();
    all.filter(|fault| ![FaultKind::Kill, FaultKind::Stop].contains(fault) && !excluded.contains(fault)).collect()
}

/// Starts a deployment that supports these faults.
pub(crate) async fn start(local: LocalEngine, faults: &[FaultKind], has_safeguards: bool) -> Deployment {
    let started = Deployment::start(local, &options(local, faults, has_safeguards)).await;
    started.unwrap_or_else(|trouble| panic!("{local} with {faults:?}: {trouble}"))
}

/// Opens the engine at this URL, and retries until it can be reached.
pub(crate) async fn client(url: &str, ttl: Duration) -> Locks {
    let opened = eventually(TEST_TIMEOUT, || Locks::builder().ttl(ttl).open(url));
    opened.await
}

/// Waits until the lock `a` is granted, and releases it. `when` is for the error message.
pub(crate) async fn wait_for_grant(locks: &Locks, when: &str) {
    eventually(TEST_TIMEOUT, || async {
        match locks.mutex("a").timeout(Duration::from_secs(10)).lock().await {
            Ok(guard) => guard.release().await.map(drop).map_err(|error| format!("{when}: {error}")),
            Err(error) => Err(format!("{when}: {error}")),
        }
    })
    .await;
}

/// Acquires and releases the lock `a` repeatedly; never returns.
async fn acquire_repeatedly(locks: &Locks) {
    loop {
        if let Ok(guard) = locks.mutex("a").timeout(Duration::from_millis(200)).lock().await {
            // The release may fail during the fault.
            let _ = guard.release().await;
        }
        tokio::task::yield_now().await;
    }
}

/// Begins and ends a fault while a client works; fails unless both that client and one without the
/// proxies are granted a lock afterwards. Returns the fault's target and result, in words.
pub(crate) async fn survives_fault(
    deployment: &mut Deployment,
    fault: FaultKind,
    ttl: Duration,
    rng: &mut Rng,
) -> String {
    let (proxied, direct) = (client(deployment.url(), ttl).await, client(deployment.direct_url(), ttl).await);
    wait_for_grant(&proxied, &format!("before {fault}")).await;
    let active_fault = deployment.begin_fault(fault, rng).await.unwrap_or_else(|trouble| panic!("{fault}: {trouble}"));
    assert!(
        !active_fault.target.is_empty() && active_fault.duration <= active_fault.max_duration(ttl),
        "{active_fault:?}"
    );
    assert!(deployment.begin_fault(fault, rng).await.is_err(), "{fault} is already active");
    let _ = timeout(active_fault.duration, acquire_repeatedly(&proxied)).await;
    let note = deployment.end_fault(fault).await.unwrap_or_else(|trouble| panic!("{fault}: {trouble}"));
    let _ = deployment.end_fault(fault).await.expect_err("it has ended already");
    wait_for_grant(&proxied, &format!("after {fault}")).await;
    wait_for_grant(&direct, &format!("after {fault}, without the proxies")).await;
    println!("{} {fault}: {active_fault:?} {note}", deployment.engine());
    format!("{}: {note}", active_fault.target)
}
