//! The crowd, and how each of it buys.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Locks, Outcome};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use crate::stock::Till;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// How the stock is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Technique {
    /// Not at all: read, then write.
    Naive,
    /// The same under a lock of this engine's technique.
    Lock(&'static str),
    /// By a version column.
    Version,
}

pub(crate) const TECHNIQUES: [Technique; 5] = [
    Technique::Naive,
    Technique::Lock("row"),
    Technique::Lock("for-update"),
    Technique::Lock("session"),
    Technique::Version,
];

impl Technique {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Naive => "none",
            Self::Lock(name) => name,
            Self::Version => "version",
        }
    }

    pub(crate) fn protects(self) -> bool {
        self != Self::Naive
    }
}

/// The sale.
#[derive(Clone, Debug)]
pub(crate) struct Sale {
    pub(crate) url: String,
    pub(crate) buyers: u32,
    pub(crate) items: u32,
    /// How many buyers are at it at the same time.
    pub(crate) at_once: usize,
}

/// How it went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sold {
    /// How many buyers were told that they have one.
    pub(crate) units: u32,
    /// What the stock says.
    pub(crate) left: i64,
    pub(crate) retries: u32,
    pub(crate) time: Duration,
}

/// How many connections to the stock there are.
const TILLS: usize = 16;

/// The connections, of which each buyer takes a free one.
struct Tills {
    free: Semaphore,
    tills: Mutex<Vec<Till>>,
}

impl Tills {
    async fn open(url: &str) -> Result<Self, Failure> {
        let mut tills = Vec::new();
        for _ in 0..TILLS {
            tills.push(Till::open(url).await?);
        }
        Ok(Self { free: Semaphore::new(TILLS), tills: Mutex::new(tills) })
    }

    /// Buys one unit, if there is one: whether there was, and how often it was tried in vain.
    async fn buy(&self, technique: Technique) -> Result<(bool, u32), Failure> {
        let _free = self.free.acquire().await?;
        let mut till = self.tills.lock().await.pop().ok_or("there is one for each permit")?;
        let bought = match technique {
            Technique::Version => till.buy_by_version().await,
            Technique::Naive | Technique::Lock(_) => till.buy().await,
        };
        self.tills.lock().await.push(till);
        bought
    }
}

impl Sale {
    /// Sells to all buyers, protected like this.
    pub(crate) async fn hold(&self, technique: Technique) -> Result<Sold, Failure> {
        let mut manager = Till::open(&self.url).await?;
        manager.fill(self.items).await?;
        let tills = Arc::new(Tills::open(&self.url).await?);
        let locks = match technique {
            Technique::Lock(name) => {
                let mark = if self.url.contains('?') { '&' } else { '?' };
                Some(Locks::open(&format!("{}{mark}technique={name}", self.url)).await?)
            }
            Technique::Naive | Technique::Version => None,
        };
        let door = Arc::new(Semaphore::new(self.at_once));
        let clock = Clock::system();
        let start = clock.now();
        let mut crowd = JoinSet::new();
        for _ in 0..self.buyers {
            let (tills, locks, door) = (Arc::clone(&tills), locks.clone(), Arc::clone(&door));
            crowd.spawn(async move {
                let _inside = door.acquire().await?;
                let Some(locks) = locks else { return tills.buy(technique).await };
                let guard = locks.mutex("flash sale").lock().await?;
                let bought = guard.protect(tills.buy(technique)).await?;
                match guard.release().await? {
                    Outcome::Released => bought,
                    Outcome::WasLost(reason) => Err(format!("the lock was lost: {reason:?}").into()),
                }
            });
        }
        let (mut units, mut retries) = (0, 0);
        while let Some(ended) = crowd.join_next().await {
            let (bought, again) = ended??;
            units += u32::from(bought);
            retries += again;
        }
        let time = clock.now().since(start);
        if let Some(locks) = locks {
            locks.close().await?;
        }
        let left = manager.left().await?;
        manager.clear().await?;
        Ok(Sold { units, left, retries, time })
    }
}
