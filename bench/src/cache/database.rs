//! The database: a row per key, whose value counts its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{ClaimId, Token};
use leasehold_cache::strategy::{Database, StrategyFuture};
use leasehold_cache::{CacheError, Row, RowState};
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

use crate::redis::BoxError;

/// How many keys there are.
pub(crate) const KEY_COUNT: usize = 8;
/// The longest additional time of a load after it has read the row.
const MAX_EXTRA_LOAD_TIME: Duration = Duration::from_millis(4);

/// A table, and how often it was read.
pub(crate) struct Table {
    pool: Pool,
    pub(crate) loads: AtomicU64,
}

pub(crate) fn key(number: usize) -> String {
    format!("row {number}")
}

/// A random number below `end`.
pub(crate) fn random_below(end: u64) -> u64 {
    ClaimId::random().bits() as u64 % end
}

fn loader_error(error: mysql_async::Error) -> CacheError {
    CacheError::Loader(Arc::new(error))
}

impl Table {
    pub(crate) async fn new(url: &str) -> Result<Self, BoxError> {
        let connections = PoolConstraints::new(4, 32).ok_or("no pool")?;
        let options = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false).tcp_nodelay(true);
        let pool = Pool::new(options.pool_opts(PoolOpts::default().with_constraints(connections)));
        let mut conn = pool.get_conn().await?;
        conn.query_drop("CREATE OR REPLACE TABLE cached (id VARCHAR(50) PRIMARY KEY, value BIGINT NOT NULL)").await?;
        for number in 0..KEY_COUNT {
            conn.exec_drop("INSERT INTO cached VALUES (?, 0)", (key(number),)).await?;
        }
        drop(conn);
        Ok(Self { pool, loads: AtomicU64::new(0) })
    }
}

impl Database for Table {
    fn load<'a>(&'a self, key: &'a str) -> StrategyFuture<'a, Option<Row>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::Relaxed);
            let mut conn = self.pool.get_conn().await.map_err(loader_error)?;
            let value: Option<u64> =
                conn.exec_first("SELECT value FROM cached WHERE id = ?", (key,)).await.map_err(loader_error)?;
            drop(conn);
            tokio::time::sleep(MAX_EXTRA_LOAD_TIME.mul_f64(random_below(1000) as f64 / 1000.0)).await;
            Ok(value.map(|value| Row::from(value.to_string())))
        })
    }

    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, _: Option<Token>) -> StrategyFuture<'a, RowState> {
        Box::pin(async move {
            let mut conn = self.pool.get_conn().await.map_err(loader_error)?;
            conn.exec_drop("UPDATE cached SET value = ? WHERE id = ?", (&value, key)).await.map_err(loader_error)?;
            Ok(RowState::Present(Row::from(value)))
        })
    }
}
