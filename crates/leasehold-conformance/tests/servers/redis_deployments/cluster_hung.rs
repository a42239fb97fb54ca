//! One master of a cluster hangs: leases on the other masters are still renewed.

use leasehold::clock::ManualClock;
use leasehold_testbed::redis::{Cluster, Reply};

use crate::redis_deployments::cluster_moves::lock_name_on;
use crate::redis_deployments::deployment::{LONG_TTL, raw_command};
use crate::redis_faults::manual_time::{pass_and_renew, patient_client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_affects_only_its_own_leases() {
    let mut cluster = Cluster::start(3, 0).await.expect("a cluster");
    for addr in cluster.addrs() {
        let set = raw_command(addr, &["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
        assert_eq!(set, Reply::Simple("OK".to_owned()));
    }
    let manual_clock = ManualClock::running();
    let locks = patient_client(&cluster.url(), LONG_TTL, manual_clock.clock()).await;
    let mut guards = Vec::new();
    for node in 0..3 {
        for number in 0..4 {
            let name = lock_name_on(&cluster, node, &format!("hung-{number}")).await;
            guards.push(locks.mutex(name).lock().await.expect("a lock"));
        }
    }
    cluster.nodes_mut()[0].pause().expect("a paused master");
    let healthy = guards.split_off(4);
    for _ in 0..2 {
        pass_and_renew(&healthy, |by| manual_clock.advance(by)).await;
    }
    cluster.nodes_mut()[0].resume().expect("a resumed server");
}
