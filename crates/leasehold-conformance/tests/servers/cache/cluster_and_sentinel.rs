//! Every cache operation on a cluster and behind Sentinels.

use leasehold::Locks;
use leasehold_cache::ReadThrough;
use leasehold_cache::strategy::{Strategy, WriteThrough};
use leasehold_testbed::redis::{Cluster, SentinelSet};

use crate::cache::deployments::check_every_operation;
use crate::cache::fixture::{TestTable, expect_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_in_a_cluster() {
    let cluster = Cluster::start(3, 0).await.expect("a cluster");
    check_every_operation(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_behind_sentinels() {
    let set = SentinelSet::start(1).await.expect("Sentinels");
    check_every_operation(&set.url()).await;
    let locks = Locks::open(&set.url()).await.expect("locks");
    let through = WriteThrough { cache: ReadThrough::open(&set.url()).await.expect("a cache"), locks };
    let db = TestTable::new().await;
    through.write(&db, "k", b"v2".to_vec()).await.expect("written");
    assert_eq!(expect_text(through.read(&db, "k").await), "v2");
}
