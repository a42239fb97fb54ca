//! The prices, the writers that change them, and the customers that read them.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{ClaimId, Locks, Token};
use leasehold_cache::strategy::{
    CacheAside, Database, DelayedDoubleDelete, DeleteAfter, DeleteFirst, InvalidateAfterCommit, LockProtected,
    Strategy, StrategyFuture, TtlOnly, WriteThrough,
};
use leasehold_cache::{CacheStore, Freshness, ReadThrough, Row, RowState};
use tokio::task::JoinSet;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The strategies, the textbook's first.
pub(crate) const NAMES: [&str; 8] = [
    "ttl-only",
    "delete-first",
    "delete-after",
    "delayed-double-delete",
    "lock-protected",
    "leasehold, serve stale",
    "leasehold, strong",
    "leasehold, strong, write through",
];

/// The strategies that must never show an outdated price here.
pub(crate) fn is_strong(name: &str) -> bool {
    name.contains("strong")
}

const ARTICLES: usize = 4;
const CUSTOMERS: usize = 32;
const TTL: Duration = Duration::from_secs(1);

/// Where the cache is, and how long each strategy runs.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) url: String,
    pub(crate) time: Duration,
}

/// The prices that the customers saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) reads: u64,
    /// Prices lower than one whose change was complete before the read. Prices only rise.
    pub(crate) stale: u64,
    pub(crate) writes: u64,
    pub(crate) loads: u64,
}

/// The shop's database of prices, and counts of what the customers saw.
#[derive(Default)]
struct Prices {
    prices: [AtomicU64; ARTICLES],
    /// For each article, the last price whose change has returned.
    completed: [AtomicU64; ARTICLES],
    loads: AtomicU64,
    reads: AtomicU64,
    stale: AtomicU64,
    writes: AtomicU64,
    closed: AtomicBool,
}

fn random_below(end: u64) -> u64 {
    ClaimId::random().bits() as u64 % end
}

async fn short_pause() {
    tokio::time::sleep(Duration::from_micros(random_below(3000))).await;
}

impl Prices {
    fn price(&self, key: &str) -> &AtomicU64 {
        &self.prices[key.trim_start_matches("article ").parse::<usize>().unwrap_or(0) % ARTICLES]
    }
}

impl Database for Prices {
    fn load<'a>(&'a self, key: &'a str) -> StrategyFuture<'a, Option<Row>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::SeqCst);
            short_pause().await;
            let price = self.price(key).load(Ordering::SeqCst);
            short_pause().await;
            Ok(Some(Row::from(price.to_string())))
        })
    }

    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, _: Option<Token>) -> StrategyFuture<'a, RowState> {
        Box::pin(async move {
            short_pause().await;
            let price = String::from_utf8_lossy(&value).parse().unwrap_or(0);
            self.price(key).store(price, Ordering::SeqCst);
            short_pause().await;
            Ok(RowState::Present(Row::from(value)))
        })
    }
}

async fn read_price(prices: &Prices, strategy: &dyn Strategy) -> Result<(), Failure> {
    while !prices.closed.load(Ordering::Relaxed) {
        let article = random_below(ARTICLES as u64) as usize;
        let least = prices.completed[article].load(Ordering::SeqCst);
        let shown = strategy.read(prices, &format!("article {article}")).await?.ok_or("no price")?;
        let shown: u64 = String::from_utf8(shown)?.parse()?;
        prices.reads.fetch_add(1, Ordering::Relaxed);
        prices.stale.fetch_add(u64::from(shown < least), Ordering::Relaxed);
        // In one process, no other call in this loop yields.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn change_price(prices: &Prices, strategy: &dyn Strategy, article: usize) -> Result<(), Failure> {
    let mut price = 0u64;
    while !prices.closed.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(random_below(30))).await;
        price += 1;
        strategy.write(prices, &format!("article {article}"), price.to_string().into_bytes()).await?;
        prices.completed[article].store(price, Ordering::SeqCst);
        prices.writes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl Shop {
    /// The store's URL, with a unique prefix for its keys.
    fn fresh_url(&self) -> String {
        if self.url.starts_with("memory") {
            return self.url.clone();
        }
        let mark = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{mark}prefix=shop-{:x}:", self.url, ClaimId::random().bits() as u64)
    }

    async fn strategy(&self, name: &str) -> Result<Arc<dyn Strategy>, Failure> {
        let url = self.fresh_url();
        let aside = CacheAside::new(&CacheStore::open(&url, TTL).await?, TTL);
        let cache = async |mode| ReadThrough::builder().freshness(mode).ttl(TTL).open(&url).await;
        Ok(match name {
            "ttl-only" => Arc::new(TtlOnly(aside)),
            "delete-first" => Arc::new(DeleteFirst(aside)),
            "delete-after" => Arc::new(DeleteAfter(aside)),
            "delayed-double-delete" => Arc::new(DelayedDoubleDelete { cache: aside, delay: Duration::from_millis(20) }),
            "lock-protected" => Arc::new(LockProtected { cache: aside, locks: Locks::open(&url).await? }),
            "leasehold, serve stale" => Arc::new(InvalidateAfterCommit(cache(Freshness::ServeStale).await?)),
            "leasehold, strong" => Arc::new(InvalidateAfterCommit(cache(Freshness::Strong).await?)),
            _ => Arc::new(WriteThrough { cache: cache(Freshness::Strong).await?, locks: Locks::open(&url).await? }),
        })
    }

    /// Opens the shop for a while, with this strategy.
    pub(crate) async fn run_strategy(&self, name: &str) -> Result<Observed, Failure> {
        let (prices, strategy) = (Arc::<Prices>::default(), self.strategy(name).await?);
        let mut customers = JoinSet::new();
        for _ in 0..CUSTOMERS {
            let (prices, strategy) = (Arc::clone(&prices), Arc::clone(&strategy));
            customers.spawn(async move { read_price(&prices, &*strategy).await });
        }
        for article in 0..ARTICLES {
            let (prices, strategy) = (Arc::clone(&prices), Arc::clone(&strategy));
            customers.spawn(async move { change_price(&prices, &*strategy, article).await });
        }
        tokio::time::sleep(self.time).await;
        prices.closed.store(true, Ordering::Relaxed);
        while let Some(ended) = customers.join_next().await {
            ended??;
        }
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Ok(Observed {
            reads: of(&prices.reads),
            stale: of(&prices.stale),
            writes: of(&prices.writes),
            loads: of(&prices.loads),
        })
    }

    /// Lets `count` customers read at once a price that is not in the cache. Returns how often it
    /// was loaded.
    pub(crate) async fn count_loads_of_crowd(&self, count: usize) -> Result<u64, Failure> {
        let (prices, cache) = (Arc::<Prices>::default(), ReadThrough::open(&self.fresh_url()).await?);
        let mut customers = JoinSet::new();
        for _ in 0..count {
            let (prices, cache) = (Arc::clone(&prices), cache.clone());
            customers.spawn(async move { cache.get_or_load("article 0", || prices.load("article 0")).await });
        }
        while let Some(ended) = customers.join_next().await {
            ended??.ok_or("no price")?;
        }
        Ok(prices.loads.load(Ordering::SeqCst))
    }
}
