//! The user's own Redlock.

use std::time::Duration;

use leasehold_testbed::redis::Independent;
use leasehold_verify::deploy::{Deployment, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind::Partition;

use crate::deploy::site::client;

const TTL: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redlock_loses_a_minority_at_most() {
    let servers = Independent::start(3).await.expect("servers");
    let setup = Setup { faults: vec![Partition], guard: true, ttl: TTL, apart: false, option: None };
    let mut deployment = Deployment::remote(&servers.url(), &setup).await.expect("a deployment");
    let locks = client(deployment.url(), TTL).await;
    let mut dice = Dice::new(3);
    for _ in 0..2 {
        let strike = deployment.begin(Partition, &mut dice).await.expect("a fault");
        assert!(
            strike.target.starts_with("the lines to server ") && strike.target.contains(" of 3: silent"),
            "{strike:?}"
        );
        let guard = locks.mutex("a").wait(TTL * 4).lock().await.expect("two of three are enough");
        assert_eq!(guard.release().await.expect("an answer"), leasehold::Outcome::Released);
        deployment.end(Partition).await.expect("its end");
    }
}
