//! The stock in this process: a number and its version, with a delay between reading and writing,
//! as with every remote store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Token;
use leasehold::fence::Fence;

use super::stock::{BuyResult, Stock, StockConnection, StockFuture};

/// The delay of a reply.
const REPLY_DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Default)]
struct Row {
    units: i64,
    version: u64,
}

/// The stock in this process. A read is atomic, and so is a write; a read and a write together are
/// not.
#[derive(Clone, Default)]
pub(crate) struct MemoryStock {
    row: Arc<Mutex<Row>>,
    fence: Arc<Fence>,
}

impl MemoryStock {
    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the row; the reply is delayed, so it may be outdated when it arrives.
    async fn read(&self) -> Row {
        let row = *self.row();
        if row.units > 0 {
            tokio::time::sleep(REPLY_DELAY).await;
        }
        row
    }
}

impl Stock for MemoryStock {
    fn open<'a>(&'a self) -> StockFuture<'a, Box<dyn StockConnection>> {
        let connection = self.clone();
        Box::pin(async move { Ok(Box::new(connection) as Box<dyn StockConnection>) })
    }
}

impl StockConnection for MemoryStock {
    fn fill(&mut self, items: u32) -> StockFuture<'_, ()> {
        *self.row() = Row { units: i64::from(items), version: 0 };
        Box::pin(async { Ok(()) })
    }

    fn buy(&mut self, token: Option<Token>) -> StockFuture<'_, BuyResult> {
        Box::pin(async move {
            let seen = self.read().await;
            if seen.units > 0 {
                let mut row = self.row();
                if let Some(token) = token {
                    self.fence.admit("flash sale", token)?;
                }
                *row = Row { units: seen.units - 1, version: row.version + 1 };
            }
            Ok((seen.units > 0, 0))
        })
    }

    fn buy_by_version(&mut self) -> StockFuture<'_, BuyResult> {
        Box::pin(async {
            let mut retries = 0;
            loop {
                let seen = self.read().await;
                if seen.units <= 0 {
                    return Ok((false, retries));
                }
                let mut row = self.row();
                if row.version == seen.version {
                    *row = Row { units: seen.units - 1, version: seen.version + 1 };
                    return Ok((true, retries));
                }
                retries += 1;
            }
        })
    }

    fn units_left(&mut self) -> StockFuture<'_, i64> {
        let units = self.row().units;
        Box::pin(async move { Ok(units) })
    }

    fn clear(&mut self) -> StockFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
