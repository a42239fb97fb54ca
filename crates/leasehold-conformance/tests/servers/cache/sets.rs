//! Every step there is, on a cluster and behind Sentinels.

use leasehold::Locks;
use leasehold::cache::ReadThrough;
use leasehold::cache::strategy::{Strategy, WritingThrough};
use leasehold_testbed::redis::{Cluster, SentinelSet};

use crate::cache::deployments::everything;
use crate::cache::site::{Db, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster() {
    let cluster = Cluster::start(3, 0).await.expect("a cluster");
    everything(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels() {
    let set = SentinelSet::start(1).await.expect("Sentinels");
    everything(&set.url()).await;
    let locks = Locks::open(&set.url()).await.expect("locks");
    let through = WritingThrough { cache: ReadThrough::open(&set.url()).await.expect("a cache"), locks };
    let db = Db::new().await;
    through.write(&db, "k", b"v2".to_vec()).await.expect("written");
    assert_eq!(text(through.read(&db, "k").await), "v2");
}
