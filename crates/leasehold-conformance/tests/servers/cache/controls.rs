//! What goes wrong without what ours does: the controls of the races.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::cache::strategy::{Answer, Source, Strategy};
use leasehold::logic::cache::Data;
use leasehold_testbed::redis::Reply;
use tokio::sync::OnceCell;

use crate::cache::site::{Db, Point, by_hand, fresh, text};

/// A client that has the key `lease`, which ends by itself, loads and stores, without a look whether it is still its own.
pub(super) struct Naive {
    lease: String,
    value: String,
}

impl Naive {
    pub(super) fn new() -> Self {
        let name = fresh("naive");
        Self { lease: format!("{name}:lease"), value: format!("{name}:value") }
    }
}

impl Strategy for Naive {
    fn name(&self) -> &'static str {
        "a lease that nobody checks"
    }

    fn read<'a>(&'a self, source: &'a dyn Source, key: &'a str) -> Answer<'a, Data> {
        Box::pin(async move {
            loop {
                if let Reply::Bulk(value) = by_hand(&["GET", &self.value]).await {
                    return Ok(Some(value.into_bytes()));
                }
                // As long as that of ours.
                if by_hand(&["SET", &self.lease, "x", "NX", "PX", "100"]).await != Reply::Nil {
                    let Some(row) = source.load(key).await? else { return Ok(None) };
                    let value = String::from_utf8(row.value.clone()).expect("a text");
                    by_hand(&["SET", &self.value, &value]).await;
                    by_hand(&["DEL", &self.lease]).await;
                    return Ok(Some(row.value));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }

    fn write<'a>(&'a self, source: &'a dyn Source, key: &'a str, value: Vec<u8>) -> Answer<'a, ()> {
        Box::pin(async move {
            source.store(key, value, None).await?;
            by_hand(&["DEL", &self.value]).await;
            Ok(())
        })
    }
}

/// Loads that are under way, by key: whoever comes meanwhile joins, and when a load ends it is forgotten.
#[derive(Clone, Default)]
pub(super) struct Flights(Arc<Mutex<HashMap<&'static str, Flight>>>);

/// A load, and how many wait for it.
type Flight = (Arc<OnceCell<String>>, usize);

impl Flights {
    pub(super) fn aboard(&self) -> usize {
        self.0.lock().expect("a list").get("k").map_or(0, |(_, count)| *count)
    }

    fn join(&self) -> Arc<OnceCell<String>> {
        let mut flights = self.0.lock().expect("a list");
        let (cell, count) = flights.entry("k").or_default();
        *count += 1;
        Arc::clone(cell)
    }

    pub(super) async fn read(self, db: Db) -> String {
        let load = async || {
            let value = text(Ok(db.load("k").await.expect("a row").map(|row| row.value)));
            self.0.lock().expect("a list").remove("k");
            value
        };
        self.join().get_or_init(load).await.clone()
    }
}

/// A counter beside the value, which writers raise: a value is stored if the counter is as it was before the load.
#[derive(Clone)]
pub(super) struct Counter {
    count: String,
    value: String,
}

impl Counter {
    async fn read(self, db: Db) -> String {
        if let Reply::Bulk(value) = by_hand(&["GET", &self.value]).await {
            return value;
        }
        let before = by_hand(&["GET", &self.count]).await;
        let value = text(Ok(db.load("k").await.expect("a row").map(|row| row.value)));
        if by_hand(&["GET", &self.count]).await == before {
            by_hand(&["SET", &self.value, &value]).await;
        }
        value
    }
}

/// A counter that was evicted is as it was before anybody wrote. What does the next reader get?
pub(super) async fn a_value_let_in_by_a_counter(evicted: bool) -> String {
    let (name, db) = (fresh("counter"), Db::new().await);
    let counter = Counter { count: format!("{name}:count"), value: format!("{name}:value") };
    let gate = db.hold(Point::Loaded);
    let late = tokio::spawn(counter.clone().read(db.clone()));
    gate.reached().await;
    db.set("v2").await;
    by_hand(&["INCR", &counter.count]).await;
    by_hand(&["DEL", &counter.value]).await;
    if evicted {
        by_hand(&["DEL", &counter.count]).await;
    }
    gate.open();
    assert_eq!(late.await.expect("a reader"), "v1", "it read before the write");
    counter.read(db).await
}
