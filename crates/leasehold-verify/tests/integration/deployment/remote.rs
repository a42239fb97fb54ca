//! Tests the user's own servers: faults hit only the network between them and the workers.

use std::time::Duration;

use leasehold_testbed::redis::{self, Redis};
use leasehold_verify::deployment::{Deployment, DeploymentOptions};
use leasehold_verify::history::FaultKind::{self, *};
use leasehold_verify::rng::Rng;

use crate::deployment::fixture::survives_fault;

const TTL: Duration = Duration::from_millis(1500);
const NETWORK_FAULTS: [FaultKind; 5] = [Cut, LostReply, Delay, Duplicate, Partition];

fn options(faults: &[FaultKind]) -> DeploymentOptions {
    DeploymentOptions { faults: faults.to_vec(), has_safeguards: true, ttl: TTL, isolates_workers: false, option: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_protected_redis_survives_network_faults() {
    let server = Redis::new().password("hunter2").start().await.expect("a server");
    // The URL has a host name, which may have more than one address.
    let url = format!("redis://:hunter2@localhost:{}/1?prefix=mine:", server.port());
    let mut deployment = Deployment::remote(&url, &options(&NETWORK_FAULTS)).await.expect("a deployment");
    assert_eq!((deployment.direct_url(), deployment.engine()), (url.as_str(), "redis"));
    let through = deployment.url();
    assert!(through.starts_with("redis://:hunter2@127.0.0.1:") && through.ends_with("/1?prefix=mine:"), "{through}");
    assert!(!through.contains(&server.port().to_string()), "{through}");
    let mut rng = Rng::new(3);
    // The other network faults are the same with servers that a run starts itself.
    for fault in [LostReply, Partition] {
        survives_fault(&mut deployment, fault, TTL, &mut rng).await;
    }
    assert!(!format!("{deployment:?}").contains("hunter2"));
    assert!(server.pid().is_some());
}

/// Without network faults any URL is used unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_without_network_faults_is_used_unchanged() {
    let server = redis::start().await.expect("a server");
    for url in [server.url(), "redis+cluster://h1,h2".to_owned(), "file:///tmp/leasehold-verify-nowhere".to_owned()] {
        let deployment = Deployment::remote(&url, &options(&[Kill, Stop])).await.expect("a deployment");
        assert_eq!((deployment.url(), deployment.direct_url()), (url.as_str(), url.as_str()));
        assert!(deployment.worker_command_prefix().is_empty() && deployment.guarantees_tokens());
    }
}
