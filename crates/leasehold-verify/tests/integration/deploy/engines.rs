//! Every fault of every engine.

use leasehold_testbed::eventually;
use leasehold_testbed::redis::Resp;
use leasehold_verify::deploy::{Deployment, Local, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind::{self, *};

use crate::deploy::site::{BOUND, faults, start, survives};

/// Each of these faults, one after the other, on one deployment.
async fn survives_all(local: Local, faults: &[FaultKind], version: &str) -> Vec<String> {
    // These tests need no leases that outlive a fault.
    let ttl = local.ttl();
    let setup = Setup { faults: faults.to_vec(), guard: true, ttl, apart: false, option: None };
    let mut deployment = Deployment::start(local, &setup).await.expect("a deployment");
    assert_eq!(deployment.engine(), local.as_str());
    let versions = deployment.versions().join(", ");
    assert!(versions.starts_with(version) && versions.chars().any(|c| c.is_ascii_digit()), "{versions}");
    // In a cluster, the names determine which slots move.
    deployment.names("verify:engines", "", 1);
    let mut dice = Dice::new(7);
    let mut notes = Vec::new();
    for fault in faults {
        notes.push(survives(&mut deployment, *fault, ttl, &mut dice).await);
    }
    let shown = format!("{deployment:?}");
    assert!(!shown.contains("password"), "{shown}");
    notes
}

async fn redis_alone() {
    let faults = faults(Local::Redis, &[]);
    let notes = survives_all(Local::Redis, &faults, "redis-server 7").await;
    assert!(notes.iter().any(|note| note.contains("0 keys were thrown away")), "noeviction: {notes:?}");
    assert!(notes.iter().any(|note| note.contains("back: it stays")), "the clock: {notes:?}");
}

async fn redis_with_sentinels() {
    let notes =
        survives_all(Local::RedisSentinel, &[Failover, Crash, Cut, Wipe, Delay, Partition, Failover], "redis-server 7")
            .await;
    // The master depends on timing: a server without processor time was replaced before.
    let replaced =
        |(old, new)| notes[0].contains(&format!("server {old} of 2, the master: server {new} of 2 is the master now"));
    assert!([(1, 2), (2, 1)].into_iter().any(replaced), "{notes:?}");
    let settled = notes.iter().filter(|note| note.contains("is the master now")).count();
    assert_eq!(settled, 4, "{notes:?}");
}

async fn redis_cluster() {
    let notes = survives_all(Local::RedisCluster, &faults(Local::RedisCluster, &[]), "redis-server 7").await;
    for said in ["is a master now", "it goes on", "they have moved", "the node has left", "it accepts writes again"] {
        assert!(notes.iter().any(|note| note.contains(said)), "{said}: {notes:?}");
    }
}

async fn redlock() {
    let notes = survives_all(Local::Redlock, &faults(Local::Redlock, &[]), "redis-server 7").await;
    assert!(notes.iter().any(|note| note.contains("they stay there")), "{notes:?}");
}

async fn zookeeper() {
    let notes = survives_all(Local::Zookeeper, &faults(Local::Zookeeper, &[]), "zookeeper 3").await;
    let led = notes.iter().filter(|note| note.contains("leads now")).count();
    assert_eq!(led, 3, "crash, leader, partition: {notes:?}");
}

/// One server is enough if none is hit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_alone() {
    let deployment = start(Local::Zookeeper, &[Kill, Cut], true).await;
    assert!(!deployment.own_url().contains(','), "{}", deployment.own_url());
    assert_ne!(deployment.url(), deployment.own_url(), "a proxy stands before it");
}

async fn mysql() {
    survives_all(Local::Mysql, &faults(Local::Mysql, &[]), "mariadbd 1").await;
}

async fn postgres() {
    survives_all(Local::Postgres, &faults(Local::Postgres, &[]), "postgres 1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_of_one_server() {
    tokio::join!(redis_alone(), mysql(), postgres());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_of_several_servers() {
    tokio::join!(redis_with_sentinels(), redis_cluster(), redlock(), zookeeper());
}

/// An unrequested fail-over is detected, even if the old master is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_act_by_themselves() {
    let mut deployment = start(Local::RedisSentinel, &[Failover], true).await;
    let sentinels = deployment.own_url().trim_start_matches("redis+sentinel://").split(['/', ',']).next();
    let sentinel = sentinels.and_then(|addr| addr.parse().ok()).expect("an address");
    for _ in 0..2 {
        deployment.remember().await.expect("a master");
        deployment.surprised().await.expect("nothing has happened");
        eventually(BOUND, || async {
            // The Sentinels refuse for some seconds after the last one.
            let _ = Resp::connect(sentinel).await?.command(&["SENTINEL", "FAILOVER", "mymaster"]).await?;
            match deployment.surprised().await {
                Err(trouble) if trouble.to_string().contains("unasked") => Ok(()),
                other => Err(leasehold_testbed::Error::NotRunning { program: format!("{other:?}") }),
            }
        })
        .await;
    }
    // A requested fail-over is not reported.
    deployment.remember().await.expect("a master");
    survives(&mut deployment, Failover, Local::RedisSentinel.ttl(), &mut Dice::new(3)).await;
    deployment.surprised().await.expect("it was asked for");
}
