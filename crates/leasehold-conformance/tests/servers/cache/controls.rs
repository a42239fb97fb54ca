//! Controls for the races: strategies that lack one protection and serve stale values.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_cache::logic::Data;
use leasehold_cache::strategy::{Database, Strategy, StrategyFuture};
use leasehold_testbed::redis::Reply;
use tokio::sync::OnceCell;

use crate::cache::fixture::{PausePoint, TestTable, expect_text, redis_command, unique_name};

/// Loads under a lease key with a TTL and stores the value without checking that it still holds the
/// lease.
pub(super) struct UncheckedLease {
    lease: String,
    value: String,
}

impl UncheckedLease {
    pub(super) fn new() -> Self {
        let name = unique_name("naive");
        Self { lease: format!("{name}:lease"), value: format!("{name}:value") }
    }
}

impl Strategy for UncheckedLease {
    fn name(&self) -> &'static str {
        "an unchecked lease"
    }

    fn read<'a>(&'a self, source: &'a dyn Database, key: &'a str) -> StrategyFuture<'a, Data> {
        Box::pin(async move {
            loop {
                if let Reply::Bulk(value) = redis_command(&["GET", &self.value]).await {
                    return Ok(Some(value.into_bytes()));
                }
                // The lease lasts as long as in the tests of leasehold's strategies.
                if redis_command(&["SET", &self.lease, "x", "NX", "PX", "100"]).await != Reply::Nil {
                    let Some(row) = source.load(key).await? else { return Ok(None) };
                    let value = String::from_utf8(row.value.clone()).expect("a text");
                    redis_command(&["SET", &self.value, &value]).await;
                    redis_command(&["DEL", &self.lease]).await;
                    return Ok(Some(row.value));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }

    fn write<'a>(&'a self, source: &'a dyn Database, key: &'a str, value: Vec<u8>) -> StrategyFuture<'a, ()> {
        Box::pin(async move {
            source.store(key, value, None).await?;
            redis_command(&["DEL", &self.value]).await;
            Ok(())
        })
    }
}

/// Loads in progress, by key. Readers of the same key join the load; a finished load leaves the
/// map.
#[derive(Clone, Default)]
pub(super) struct KeyedLoads(Arc<Mutex<HashMap<&'static str, SharedLoad>>>);

/// A load and the number of readers that wait for it.
type SharedLoad = (Arc<OnceCell<String>>, usize);

impl KeyedLoads {
    pub(super) fn waiter_count(&self) -> usize {
        self.0.lock().expect("a list").get("k").map_or(0, |(_, count)| *count)
    }

    fn join(&self) -> Arc<OnceCell<String>> {
        let mut loads = self.0.lock().expect("a list");
        let (cell, count) = loads.entry("k").or_default();
        *count += 1;
        Arc::clone(cell)
    }

    pub(super) async fn read(self, db: TestTable) -> String {
        let load = async || {
            let value = expect_text(Ok(db.load("k").await.expect("a row").map(|row| row.value)));
            self.0.lock().expect("a list").remove("k");
            value
        };
        self.join().get_or_init(load).await.clone()
    }
}

/// Keeps a counter beside the value. Writers increment it; a reader stores its value only if the
/// counter did not change during the load.
#[derive(Clone)]
pub(super) struct CounterCache {
    count_key: String,
    value_key: String,
}

impl CounterCache {
    async fn read(self, db: TestTable) -> String {
        if let Reply::Bulk(value) = redis_command(&["GET", &self.value_key]).await {
            return value;
        }
        let before = redis_command(&["GET", &self.count_key]).await;
        let value = expect_text(Ok(db.load("k").await.expect("a row").map(|row| row.value)));
        if redis_command(&["GET", &self.count_key]).await == before {
            redis_command(&["SET", &self.value_key, &value]).await;
        }
        value
    }
}

/// Returns what a reader gets after a late store. An evicted counter looks the same as one that no
/// writer has touched.
pub(super) async fn read_after_late_counter_store(is_counter_evicted: bool) -> String {
    let (name, db) = (unique_name("counter"), TestTable::new().await);
    let counter = CounterCache { count_key: format!("{name}:count"), value_key: format!("{name}:value") };
    let gate = db.pause_next_at(PausePoint::Loaded);
    let late = tokio::spawn(counter.clone().read(db.clone()));
    gate.wait_reached().await;
    db.write_directly("v2").await;
    redis_command(&["INCR", &counter.count_key]).await;
    redis_command(&["DEL", &counter.value_key]).await;
    if is_counter_evicted {
        redis_command(&["DEL", &counter.count_key]).await;
    }
    gate.open();
    assert_eq!(late.await.expect("a reader"), "v1", "the read came before the write");
    counter.read(db).await
}
