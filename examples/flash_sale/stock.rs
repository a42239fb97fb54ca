//! The interface of the stock, for every place that stores it.

use std::error::Error;
use std::pin::Pin;

use leasehold::Token;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type StockFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Whether the buyer got a unit, and how many tries failed before, because another buyer was
/// faster.
pub(crate) type BuyResult = (bool, u32);

/// One connection to the stock.
pub(crate) trait StockConnection: Send {
    /// Sets the stock to this many units.
    fn fill(&mut self, items: u32) -> StockFuture<'_, ()>;

    /// Reads, subtracts and writes; correct only without concurrent buyers. With a token, the write
    /// is refused if the stock has seen a higher one.
    fn buy(&mut self, token: Option<Token>) -> StockFuture<'_, BuyResult>;

    /// Buys by version: if another buyer was faster, reads again.
    fn buy_by_version(&mut self) -> StockFuture<'_, BuyResult>;

    /// How many units are left.
    fn units_left(&mut self) -> StockFuture<'_, i64>;

    /// Removes the stock.
    fn clear(&mut self) -> StockFuture<'_, ()>;
}

/// Opens connections to the stock.
pub(crate) trait Stock: Send + Sync {
    fn open<'a>(&'a self) -> StockFuture<'a, Box<dyn StockConnection>>;
}

/// How the stock is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Technique {
    pub(crate) name: &'static str,
    /// Buys under a lock, with these options of the engine.
    pub(crate) lock: Option<&'static str>,
    /// Passes the lock's token to the stock.
    pub(crate) fenced: bool,
    /// Buys by a version beside the units.
    pub(crate) by_version: bool,
}

impl Technique {
    const fn none(name: &'static str) -> Self {
        Self { name, lock: None, fenced: false, by_version: false }
    }

    const fn lock(name: &'static str, options: &'static str) -> Self {
        Self { lock: Some(options), ..Self::none(name) }
    }

    const fn fence(options: &'static str) -> Self {
        Self { fenced: true, ..Self::lock("fence", options) }
    }

    const fn version() -> Self {
        Self { by_version: true, ..Self::none("version") }
    }

    pub(crate) fn protects(self) -> bool {
        self.lock.is_some() || self.by_version
    }
}

/// The techniques if the engine is the database that has the stock.
const IN_DATABASE: [Technique; 6] = [
    Technique::none("none"),
    Technique::lock("row", "technique=row"),
    Technique::lock("for-update", "technique=for-update"),
    Technique::lock("session", "technique=session"),
    Technique::fence("technique=row"),
    Technique::version(),
];

/// The techniques on any other engine.
const ELSEWHERE: [Technique; 4] =
    [Technique::none("none"), Technique::lock("lock", ""), Technique::fence(""), Technique::version()];

/// Whether this engine is a database that can keep the stock, too.
pub(crate) fn is_database(url: &str) -> bool {
    ["mysql:", "postgres:", "postgresql:"].iter().any(|scheme| url.starts_with(scheme))
}

pub(crate) fn techniques(url: &str) -> &'static [Technique] {
    if is_database(url) { &IN_DATABASE } else { &ELSEWHERE }
}
