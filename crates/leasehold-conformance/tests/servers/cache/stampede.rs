//! A thousand readers of several processes, who all find nothing.

use std::path::Path;

use leasehold_conformance::world::SOON;
use leasehold_testbed::Actor;
use serde_json::{Value, json};

use crate::cache::site::{Db, mariadb_server, redis_server};

const PROCESSES: u64 = 4;
const EACH: u64 = 250;

/// How many loads there were, for 1,000 reads.
async fn loads(how: &str) -> u64 {
    let db = Db::new().await;
    let redis = format!("{}?prefix=stampede-{how}:", redis_server().await.url());
    let mariadb = format!("{}?prefer_socket=false", mariadb_server().await.url());
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-cache-actor"));
    let mut actors = Vec::new();
    for _ in 0..PROCESSES {
        let words = ["read", &redis, &mariadb, &db.table, &EACH.to_string(), how];
        actors.push(Actor::spawn(exe, &words, &[]).expect("a process"));
    }
    for word in ["ready", "waiting"] {
        for actor in &mut actors {
            actor.expect(|line| !line[word].is_null(), SOON).await.expect(word);
        }
        // Nobody starts, and no load ends, before all are there.
        for actor in &mut actors {
            actor.send(&json!("go")).await.expect("sent");
        }
    }
    let mut loads = 0;
    for actor in &mut actors {
        let end = actor.expect(|line| !line["right"].is_null(), SOON).await.expect("an end");
        assert_eq!(end["right"], Value::from(EACH), "everybody has the value");
        loads += end["loads"].as_u64().expect("a number");
    }
    loads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_misses_are_one_load() {
    assert_eq!(loads("ours").await, 1);
    assert_eq!(loads("naive").await, PROCESSES * EACH, "the control: everybody loads");
}
