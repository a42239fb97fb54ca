//! How often a cache disagrees with its database, for each strategy.
//!
//! Eight keys, each with one writer that counts up and pauses; 32 readers of two clients read
//! random keys as fast as they can. The database is a MariaDB, the cache a Redis. After the row was
//! read, a load lasts up to 4 ms longer, like the work around a query. A read is stale if it
//! returns a lower number than one whose write had **returned** before the read began.
//!
//! No lock is lost here, no process dies, and no key is evicted: the tests cover how the strategies
//! handle that.

mod database;
mod load;

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold_cache::strategy::{
    CacheAside, DelayedDoubleDelete, DeleteAfter, DeleteFirst, InvalidateAfterCommit, LockProtected, Strategy, TtlOnly,
    WriteThrough,
};
use leasehold_cache::{CacheStore, Freshness, ReadThrough};
use leasehold_testbed::{mariadb, redis};
use serde_json::json;

use crate::redis::BoxError;
use crate::report::Report;
use database::Table;
use load::{LoadCounts, run_load};

/// The TTL of values that are not deleted.
const VALUE_TTL: Duration = Duration::from_secs(1);
/// The delay of the second delete.
const SECOND_DELETE_DELAY: Duration = Duration::from_millis(50);
/// How long each strategy is measured.
const MEASURED_TIME: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);

/// The strategies in the order of the table, the textbook's before ours, each with the maximum of
/// stale reads per million.
const STRATEGIES: [(&str, f64); 8] = [
    ("ttl-only", f64::INFINITY),
    ("delete-first", f64::INFINITY),
    ("delete-after", f64::INFINITY),
    ("delayed-double-delete", f64::INFINITY),
    ("lock-protected", f64::INFINITY),
    ("leasehold, serve stale", f64::INFINITY),
    ("leasehold, strong", 0.0),
    ("leasehold, strong, write through", 0.0),
];

/// One client's instance of a strategy.
async fn open_strategy(name: &str, url: &str) -> Result<Arc<dyn Strategy>, BoxError> {
    // Each strategy starts with an empty cache.
    let url = format!("{url}?prefix=bench-{}:", name.replace([' ', ','], "-"));
    let aside = CacheAside::new(&CacheStore::open(&url, TIMEOUT).await?, VALUE_TTL);
    let cache = async |mode| {
        let builder = ReadThrough::builder().freshness(mode).ttl(VALUE_TTL).stale_for(VALUE_TTL).timeout(TIMEOUT);
        builder.open(&url).await
    };
    let locks = async || Locks::open(&url).await;
    Ok(match name {
        "ttl-only" => Arc::new(TtlOnly(aside)),
        "delete-first" => Arc::new(DeleteFirst(aside)),
        "delete-after" => Arc::new(DeleteAfter(aside)),
        "delayed-double-delete" => Arc::new(DelayedDoubleDelete { cache: aside, delay: SECOND_DELETE_DELAY }),
        "lock-protected" => Arc::new(LockProtected { cache: aside, locks: locks().await? }),
        "leasehold, serve stale" => Arc::new(InvalidateAfterCommit(cache(Freshness::ServeStale).await?)),
        "leasehold, strong" => Arc::new(InvalidateAfterCommit(cache(Freshness::Strong).await?)),
        _ => Arc::new(WriteThrough { cache: cache(Freshness::Strong).await?, locks: locks().await? }),
    })
}

/// Measures all strategies.
pub(crate) async fn run(report: &mut Report, scale: u32) -> Result<(), BoxError> {
    let (redis, mariadb) = (redis::start().await?, mariadb::start().await?);
    report.print_line(&format!(
        "{:<34} {:>12} {:>22} {:>10} {:>24}",
        "strategy", "reads", "stale in a million", "writes", "loads for each write"
    ));
    let mut all = Vec::new();
    for (name, most) in STRATEGIES {
        let table = Arc::new(Table::new(&mariadb.url()).await?);
        let clients = [open_strategy(name, &redis.url()).await?, open_strategy(name, &redis.url()).await?];
        let outcome = run_load(&table, clients, MEASURED_TIME / scale).await?;
        let LoadCounts { reads, stale, writes, loads } = outcome;
        report.print_line(&format!(
            "{name:<34} {reads:>12} {:>22.1} {writes:>10} {:>24.2}",
            outcome.stale_per_million(),
            outcome.loads_per_write()
        ));
        report.add_json(json!({ "what": name, "reads": reads, "stale": stale, "writes": writes, "loads": loads }));
        all.push((name, outcome, most));
    }
    for (name, outcome, most) in all.into_iter().filter(|(.., most)| most.is_finite()) {
        let what = format!("{name}: stale reads in a million");
        report.add_figure(&what, outcome.stale_per_million(), "", most);
    }
    Ok(())
}
