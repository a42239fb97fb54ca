//! Tests network faults with the user's own Redlock servers.

use std::time::Duration;

use leasehold_testbed::redis::IndependentServers;
use leasehold_verify::deployment::{Deployment, DeploymentOptions};
use leasehold_verify::history::FaultKind::Partition;
use leasehold_verify::rng::Rng;

use crate::deployment::fixture::client;

const TTL: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_hits_at_most_a_minority_of_redlock() {
    let servers = IndependentServers::start(3).await.expect("servers");
    let setup = DeploymentOptions {
        faults: vec![Partition],
        has_safeguards: true,
        ttl: TTL,
        isolates_workers: false,
        option: None,
    };
    let mut deployment = Deployment::remote(&servers.url(), &setup).await.expect("a deployment");
    let locks = client(deployment.url(), TTL).await;
    let mut rng = Rng::new(3);
    for _ in 0..2 {
        let active_fault = deployment.begin_fault(Partition, &mut rng).await.expect("a fault");
        assert!(
            active_fault.target.starts_with("the connections to server ")
                && active_fault.target.contains(" of 3: no traffic"),
            "{active_fault:?}"
        );
        let guard = locks.mutex("a").timeout(TTL * 4).lock().await.expect("two of three are enough");
        assert_eq!(guard.release().await.expect("an answer"), leasehold::ReleaseOutcome::Released);
        deployment.end_fault(Partition).await.expect("its end");
    }
}
