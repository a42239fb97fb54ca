//! A thousand readers in several processes all miss the cache.

use std::path::Path;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::Actor;
use serde_json::{Value, json};

use crate::cache::fixture::{TestTable, mariadb_server, redis_server};

const PROCESSES: u64 = 4;
const READS_PER_PROCESS: u64 = 250;

/// Returns the number of loads for 1,000 reads.
async fn count_loads(mode: &str) -> u64 {
    let db = TestTable::new().await;
    let redis = format!("{}?prefix=stampede-{mode}:", redis_server().await.url());
    let mariadb = format!("{}?prefer_socket=false", mariadb_server().await.url());
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-cache-actor"));
    let mut actors = Vec::new();
    for _ in 0..PROCESSES {
        let words = ["read", &redis, &mariadb, &db.table, &READS_PER_PROCESS.to_string(), mode];
        actors.push(Actor::spawn(exe, &words, &[]).expect("a process"));
    }
    for word in ["ready", "waiting"] {
        for actor in &mut actors {
            actor.recv_matching(|line| !line[word].is_null(), TEST_TIMEOUT).await.expect(word);
        }
        // No process starts, and no load ends, before all processes are ready.
        for actor in &mut actors {
            actor.send(&json!("go")).await.expect("sent");
        }
    }
    let mut loads = 0;
    for actor in &mut actors {
        let end = actor.recv_matching(|line| !line["right"].is_null(), TEST_TIMEOUT).await.expect("a result");
        assert_eq!(end["right"], Value::from(READS_PER_PROCESS), "every reader gets the value");
        loads += end["loads"].as_u64().expect("a number");
    }
    loads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_misses_cause_one_load() {
    assert_eq!(count_loads("ours").await, 1);
    assert_eq!(count_loads("naive").await, PROCESSES * READS_PER_PROCESS, "the control: every reader loads");
}
