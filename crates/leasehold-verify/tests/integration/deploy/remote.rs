//! The user's own servers: only the network before them is disturbed.

use std::time::Duration;

use leasehold_testbed::redis::{self, Redis};
use leasehold_verify::deploy::{Deployment, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind::{self, *};

use crate::deploy::site::survives;

const TTL: Duration = Duration::from_millis(1500);
const NETWORK: [FaultKind; 5] = [Cut, LostReply, Delay, Duplicate, Partition];

fn setup(faults: &[FaultKind]) -> Setup {
    Setup { faults: faults.to_vec(), guard: true, ttl: TTL, apart: false, option: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_with_a_password() {
    let server = Redis::new().password("hunter2").start().await.expect("a server");
    // A name, which may have more than one address.
    let url = format!("redis://:hunter2@localhost:{}/1?prefix=mine:", server.port());
    let mut deployment = Deployment::remote(&url, &setup(&NETWORK)).await.expect("a deployment");
    assert_eq!((deployment.own_url(), deployment.engine()), (url.as_str(), "redis"));
    let through = deployment.url();
    assert!(through.starts_with("redis://:hunter2@127.0.0.1:") && through.ends_with("/1?prefix=mine:"), "{through}");
    assert!(!through.contains(&server.port().to_string()), "{through}");
    let mut dice = Dice::new(3);
    // The other faults work as with our own servers.
    for fault in [LostReply, Partition] {
        survives(&mut deployment, fault, TTL, &mut dice).await;
    }
    assert!(!format!("{deployment:?}").contains("hunter2"));
    assert!(server.pid().is_some());
}

/// Without network faults any URL is used unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_disturbed_is_used_as_it_is() {
    let server = redis::start().await.expect("a server");
    for url in [server.url(), "redis+cluster://h1,h2".to_owned(), "file:///tmp/leasehold-verify-nowhere".to_owned()] {
        let deployment = Deployment::remote(&url, &setup(&[Kill, Stop])).await.expect("a deployment");
        assert_eq!((deployment.url(), deployment.own_url()), (url.as_str(), url.as_str()));
        assert!(deployment.enter().is_empty() && deployment.fencing());
    }
}
