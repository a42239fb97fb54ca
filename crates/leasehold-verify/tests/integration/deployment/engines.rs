//! Injects every fault into every engine, which must grant locks again afterwards.

use leasehold_testbed::eventually;
use leasehold_testbed::redis::RespClient;
use leasehold_verify::deployment::{Deployment, DeploymentOptions, LocalEngine};
use leasehold_verify::history::FaultKind::{self, *};
use leasehold_verify::rng::Rng;

use crate::deployment::fixture::{TEST_TIMEOUT, faults_except, start, survives_fault};

/// Injects these faults, one after the other, into one deployment whose servers' version begins
/// with `version`. Returns each fault's target and result, in words.
async fn survives_all_faults(local: LocalEngine, faults: &[FaultKind], version: &str) -> Vec<String> {
    // The default TTL: here no lease needs to outlive a fault.
    let ttl = local.default_ttl();
    let setup =
        DeploymentOptions { faults: faults.to_vec(), has_safeguards: true, ttl, isolates_workers: false, option: None };
    let mut deployment = Deployment::start(local, &setup).await.expect("a deployment");
    assert_eq!(deployment.engine(), local.as_str());
    let versions = deployment.versions().join(", ");
    assert!(versions.starts_with(version) && versions.chars().any(|c| c.is_ascii_digit()), "{versions}");
    // In a cluster, the names determine which slots move.
    deployment.lock_names("verify:engines", "", 1);
    let mut rng = Rng::new(7);
    let mut notes = Vec::new();
    for fault in faults {
        notes.push(survives_fault(&mut deployment, *fault, ttl, &mut rng).await);
    }
    let shown = format!("{deployment:?}");
    assert!(!shown.contains("password"), "{shown}");
    notes
}

async fn test_redis() {
    let faults = faults_except(LocalEngine::Redis, &[]);
    let notes = survives_all_faults(LocalEngine::Redis, &faults, "redis-server 7").await;
    assert!(notes.iter().any(|note| note.contains("0 keys were evicted")), "noeviction: {notes:?}");
    assert!(notes.iter().any(|note| note.contains("back: it stays")), "the clock: {notes:?}");
}

async fn test_redis_sentinel() {
    let notes = survives_all_faults(
        LocalEngine::RedisSentinel,
        &[Failover, Crash, Cut, Wipe, Delay, Partition, Failover],
        "redis-server 7",
    )
    .await;
    // Which server is the first master depends on timing: Sentinels replace one without processor
    // time.
    let replaced =
        |(old, new)| notes[0].contains(&format!("server {old} of 2, the master: server {new} of 2 is the master now"));
    assert!([(1, 2), (2, 1)].into_iter().any(replaced), "{notes:?}");
    let settled = notes.iter().filter(|note| note.contains("is the master now")).count();
    assert_eq!(settled, 4, "{notes:?}");
}

async fn test_redis_cluster() {
    let notes = survives_all_faults(
        LocalEngine::RedisCluster,
        &faults_except(LocalEngine::RedisCluster, &[]),
        "redis-server 7",
    )
    .await;
    for part in
        ["is a master now", "it is running again", "they have moved", "the node has left", "it accepts writes again"]
    {
        assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:?}");
    }
}

async fn test_redlock() {
    let notes =
        survives_all_faults(LocalEngine::Redlock, &faults_except(LocalEngine::Redlock, &[]), "redis-server 7").await;
    assert!(notes.iter().any(|note| note.contains("they stay there")), "{notes:?}");
}

async fn test_zookeeper() {
    let notes =
        survives_all_faults(LocalEngine::Zookeeper, &faults_except(LocalEngine::Zookeeper, &[]), "zookeeper 3").await;
    let led = notes.iter().filter(|note| note.contains("leads now")).count();
    assert_eq!(led, 3, "crash, leader, partition: {notes:?}");
}

/// Without server faults, one ZooKeeper server is started and no ensemble.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_zookeeper_server_suffices_if_none_is_hit() {
    let deployment = start(LocalEngine::Zookeeper, &[Kill, Cut], true).await;
    assert!(!deployment.direct_url().contains(','), "{}", deployment.direct_url());
    assert_ne!(deployment.url(), deployment.direct_url(), "a proxy is in between");
}

async fn test_mysql() {
    survives_all_faults(LocalEngine::Mysql, &faults_except(LocalEngine::Mysql, &[]), "mariadbd 1").await;
}

async fn test_postgres() {
    survives_all_faults(LocalEngine::Postgres, &faults_except(LocalEngine::Postgres, &[]), "postgres 1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_server_engines_survive_every_fault() {
    tokio::join!(test_redis(), test_mysql(), test_postgres());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_server_engines_survive_every_fault() {
    tokio::join!(test_redis_sentinel(), test_redis_cluster(), test_redlock(), test_zookeeper());
}

/// A fail-over that no fault requested is detected, even after a second one made the old master the
/// master again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrequested_failover_is_detected() {
    let mut deployment = start(LocalEngine::RedisSentinel, &[Failover], true).await;
    let sentinels = deployment.direct_url().trim_start_matches("redis+sentinel://").split(['/', ',']).next();
    let sentinel = sentinels.and_then(|addr| addr.parse().ok()).expect("an address");
    for _ in 0..2 {
        deployment.save_baseline().await.expect("a master");
        deployment.check_no_foreign_failover().await.expect("no fail-over yet");
        eventually(TEST_TIMEOUT, || async {
            // For some seconds after a fail-over, Sentinels refuse another one: try again.
            let _ = RespClient::connect(sentinel).await?.command(&["SENTINEL", "FAILOVER", "mymaster"]).await?;
            match deployment.check_no_foreign_failover().await {
                Err(trouble) if trouble.to_string().contains("without a fault") => Ok(()),
                other => Err(leasehold_testbed::Error::NotRunning { program: format!("{other:?}") }),
            }
        })
        .await;
    }
    // A requested fail-over is not reported.
    deployment.save_baseline().await.expect("a master");
    survives_fault(&mut deployment, Failover, LocalEngine::RedisSentinel.default_ttl(), &mut Rng::new(3)).await;
    deployment.check_no_foreign_failover().await.expect("the fail-over was requested");
}
