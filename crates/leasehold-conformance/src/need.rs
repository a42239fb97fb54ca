//! What a case needs of the engine, and how an engine without it must refuse.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::engine::{Capabilities, Expiry, Fairness, Fencing, Reach};
use leasehold::{ClaimId, Error, ErrorKind, Locks, Owner};

use crate::world::{LONG, World};

/// A check on an engine.
pub type Check = for<'a> fn(&'a World) -> BoxFuture<'a, ()>;

/// What a case needs of the engine.
#[derive(Clone, Copy)]
pub struct Need {
    /// In words, after "has no".
    pub what: &'static str,
    /// Whether an engine has it.
    pub met: fn(&Capabilities) -> bool,
    /// How an engine without it must answer whoever asks for it; `None` if it cannot be asked for.
    pub refused: Option<Check>,
}

impl std::fmt::Debug for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Need").field(&self.what).finish()
    }
}

/// Shared mode.
pub const SHARED: Need = Need {
    what: "shared locks",
    met: |can| can.shared,
    refused: Some(|world| refused(world, async |locks| locks.rwlock("no").try_read().await.map(drop)).boxed()),
};

/// Permits.
pub const PERMITS: Need = Need {
    what: "semaphores",
    met: |can| can.permits,
    refused: Some(|world| {
        refused(world, async |locks| locks.semaphore("no", 2).try_acquire(1).await.map(drop)).boxed()
    }),
};

/// Re-entry by the same owner.
pub const REENTRY: Need = Need {
    what: "re-entry by an owner",
    met: |can| can.reentry,
    refused: Some(|world| {
        refused(world, async |locks| locks.mutex("no").owner(&Owner::new()).try_lock().await.map(drop)).boxed()
    }),
};

/// Holders and waiters can be seen.
pub const INSPECTION: Need = Need {
    what: "inspection",
    met: |can| can.inspection,
    refused: Some(|world| {
        async move {
            refused(world, async |locks| locks.inspect("no").await.map(drop)).await;
            refused(world, async |locks| locks.list("").await.map(drop)).await;
            refused(world, async |locks| locks.election("no").observe().map(drop)).await;
        }
        .boxed()
    }),
};

/// Claims can be put out.
pub const EVICTION: Need = Need {
    what: "eviction",
    met: |can| can.eviction,
    refused: Some(|world| refused(world, async |locks| locks.evict("no", ClaimId::random()).await.map(drop)).boxed()),
};

/// Records are kept beside the locks.
pub const RECORDS: Need = Need {
    what: "records",
    met: |can| can.records,
    refused: Some(|world| refused(world, async |locks| locks.records().map(drop)).boxed()),
};

/// Waiters are served in order.
pub const FIFO: Need = Need { what: "queue", met: |can| can.fairness == Fairness::Fifo, refused: None };

/// Tokens rise over restarts, too.
pub const DURABLE: Need = Need { what: "durable tokens", met: |can| can.fencing == Fencing::Durable, refused: None };

/// Other processes see the locks.
pub const PROCESSES: Need =
    Need { what: "reach beyond one process", met: |can| can.reach != Reach::Process, refused: None };

/// A dead process's locks are free at once.
pub const DEATH: Need =
    Need { what: "eye on its clients' lives", met: |can| can.expiry == Expiry::LeaseOrDeath, refused: None };

/// The engine refuses `ask` with `Unsupported`, names itself, and was not called for it.
async fn refused(world: &World, ask: impl AsyncFnOnce(Locks) -> Result<(), Error>) {
    let (locks, flaky) = world.flaky(LONG).await;
    let error = ask(locks).await.expect_err("what the engine cannot do is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.engine(), Some(world.capabilities().engine), "{error}");
    assert_eq!(flaky.all_calls(), 0, "refused before any I/O");
}
