//! The buyers, and how each of them buys.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Locks, ReleaseOutcome, Token};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::stock::{BuyResult, Failure, Stock, StockConnection, Technique};

/// What is sold, to how many buyers, and where the locks are.
#[derive(Clone)]
pub(crate) struct Sale {
    /// Where the locks are.
    pub(crate) url: String,
    pub(crate) stock: Arc<dyn Stock>,
    pub(crate) buyers: u32,
    pub(crate) items: u32,
    /// How many buyers are active at the same time.
    pub(crate) concurrency: usize,
}

/// The result of a sale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaleResult {
    /// How many buyers got a unit.
    pub(crate) units: u32,
    /// How many units the stock has left.
    pub(crate) units_left: i64,
    pub(crate) retries: u32,
    pub(crate) time: Duration,
}

/// The number of connections to the stock.
const CONNECTIONS: usize = 16;

/// The connections; each buyer uses a free one.
struct ConnectionPool {
    free: Semaphore,
    connections: Mutex<Vec<Box<dyn StockConnection>>>,
}

impl ConnectionPool {
    async fn open(stock: &dyn Stock) -> Result<Self, Failure> {
        let mut pool = Vec::new();
        for _ in 0..CONNECTIONS {
            pool.push(stock.open().await?);
        }
        Ok(Self { free: Semaphore::new(CONNECTIONS), connections: Mutex::new(pool) })
    }

    /// Buys one unit, if there is one.
    async fn buy(&self, technique: Technique, token: Option<Token>) -> Result<BuyResult, Failure> {
        let _free = self.free.acquire().await?;
        let mut connection = self.connections.lock().await.pop().ok_or("there is one for each permit")?;
        let bought = if technique.by_version { connection.buy_by_version().await } else { connection.buy(token).await };
        self.connections.lock().await.push(connection);
        bought
    }
}

/// Buys one unit, with the protection of `technique`.
async fn buy(pool: &ConnectionPool, locks: Option<&Locks>, technique: Technique) -> Result<BuyResult, Failure> {
    let Some(locks) = locks else { return pool.buy(technique, None).await };
    let guard = locks.mutex("flash sale").lock().await?;
    let token = technique.fenced.then(|| guard.token());
    let bought = guard.protect(pool.buy(technique, token)).await?;
    match guard.release().await? {
        ReleaseOutcome::Released => bought,
        ReleaseOutcome::AlreadyLost(reason) => Err(format!("the lock was lost: {reason:?}").into()),
    }
}

impl Sale {
    async fn locks(&self, technique: Technique) -> Result<Option<Locks>, Failure> {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        Ok(match technique.lock {
            None => None,
            Some("") => Some(Locks::open(&self.url).await?),
            Some(options) => Some(Locks::open(&format!("{}{mark}{options}", self.url)).await?),
        })
    }

    /// Sells to all buyers, with this protection. Removes the stock afterwards, even if the sale
    /// fails.
    pub(crate) async fn run(&self, technique: Technique) -> Result<SaleResult, Failure> {
        let mut manager = self.stock.open().await?;
        manager.fill(self.items).await?;
        let sold = self.run_with_stock(technique, &mut *manager).await;
        manager.clear().await?;
        sold
    }

    async fn run_with_stock(
        &self,
        technique: Technique,
        connection: &mut dyn StockConnection,
    ) -> Result<SaleResult, Failure> {
        let pool = Arc::new(ConnectionPool::open(&*self.stock).await?);
        let locks = self.locks(technique).await?;
        let door = Arc::new(Semaphore::new(self.concurrency));
        let clock = Clock::system();
        let start = clock.now();
        let mut crowd = JoinSet::new();
        for _ in 0..self.buyers {
            let (pool, locks, door) = (Arc::clone(&pool), locks.clone(), Arc::clone(&door));
            crowd.spawn(async move {
                let _inside = door.acquire().await?;
                buy(&pool, locks.as_ref(), technique).await
            });
        }
        let (mut units, mut retries) = (0, 0);
        while let Some(ended) = crowd.join_next().await {
            let (bought, again) = ended??;
            units += u32::from(bought);
            retries += again;
        }
        let time = clock.now().duration_since(start);
        if let Some(locks) = locks {
            locks.close().await?;
        }
        Ok(SaleResult { units, units_left: connection.units_left().await?, retries, time })
    }

    /// Whether exactly the available units were sold.
    pub(crate) fn is_correct(&self, sold: &SaleResult) -> bool {
        sold.units == self.buyers.min(self.items) && sold.units_left == i64::from(self.items) - i64::from(sold.units)
    }
}
