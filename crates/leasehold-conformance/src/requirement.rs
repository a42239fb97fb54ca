//! The capabilities that a case needs, and how an engine without them must refuse.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::engine::{Capabilities, Expiry, Fairness, Fencing, Reach};
use leasehold::{ClaimId, Error, ErrorKind, Locks, Owner};

use crate::test_context::{LONG_TTL, TestContext};

/// A check of an engine's behaviour; it panics if the engine behaves otherwise.
pub type EngineCheck = for<'a> fn(&'a TestContext) -> BoxFuture<'a, ()>;

/// A capability that a case needs.
#[derive(Clone, Copy)]
pub struct Requirement {
    /// The name of the capability, as in "the engine has no semaphores".
    pub capability: &'static str,
    /// Whether an engine has it.
    pub is_met: fn(&Capabilities) -> bool,
    /// Checks how an engine without it rejects a call that needs it; `None` if there is no such
    /// call.
    pub check_refused: Option<EngineCheck>,
}

impl std::fmt::Debug for Requirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Requirement").field(&self.capability).finish()
    }
}

/// The engine has shared locks: several readers hold one at the same time.
pub const SHARED: Requirement = Requirement {
    capability: "shared locks",
    is_met: |can| can.shared,
    check_refused: Some(|context| {
        assert_refused(context, async |locks| locks.rwlock("no").try_read().await.map(drop)).boxed()
    }),
};

/// The engine has semaphores: claims on a number of permits.
pub const PERMITS: Requirement = Requirement {
    capability: "semaphores",
    is_met: |can| can.permits,
    check_refused: Some(|context| {
        assert_refused(context, async |locks| locks.semaphore("no", 2).try_acquire(1).await.map(drop)).boxed()
    }),
};

/// The engine lets an owner acquire a lock again that it already holds.
pub const REENTRY: Requirement = Requirement {
    capability: "re-entry by an owner",
    is_met: |can| can.reentrancy,
    check_refused: Some(|context| {
        assert_refused(context, async |locks| locks.mutex("no").owner(&Owner::new()).try_lock().await.map(drop)).boxed()
    }),
};

/// The engine shows the holders and waiters of a lock.
pub const INSPECTION: Requirement = Requirement {
    capability: "inspection",
    is_met: |can| can.inspection,
    check_refused: Some(|context| {
        async move {
            assert_refused(context, async |locks| locks.inspect("no").await.map(drop)).await;
            assert_refused(context, async |locks| locks.list("").await.map(drop)).await;
            assert_refused(context, async |locks| locks.election("no").observe().map(drop)).await;
        }
        .boxed()
    }),
};

/// The engine lets one client force-release the claim of another.
pub const FORCE_RELEASE: Requirement = Requirement {
    capability: "force release",
    is_met: |can| can.force_release,
    check_refused: Some(|context| {
        assert_refused(context, async |locks| locks.force_release("no", ClaimId::random()).await.map(drop)).boxed()
    }),
};

/// The engine stores versioned records beside the locks.
pub const RECORDS: Requirement = Requirement {
    capability: "records",
    is_met: |can| can.records,
    check_refused: Some(|context| assert_refused(context, async |locks| locks.records().map(drop)).boxed()),
};

/// The engine has a queue: waiters are served in the order of their requests.
pub const FIFO: Requirement =
    Requirement { capability: "queue", is_met: |can| can.fairness == Fairness::Fifo, check_refused: None };

/// The engine's tokens keep rising when its server restarts.
pub const DURABLE: Requirement =
    Requirement { capability: "durable tokens", is_met: |can| can.fencing == Fencing::Durable, check_refused: None };

/// The engine's locks exclude other processes, too.
pub const MULTI_PROCESS: Requirement = Requirement {
    capability: "reach beyond one process",
    is_met: |can| can.reach != Reach::Process,
    check_refused: None,
};

/// The engine frees the locks of a dead process at once, before their TTL.
pub const DEATH_DETECTION: Requirement = Requirement {
    capability: "detection of process deaths",
    is_met: |can| can.expiry == Expiry::LeaseOrProcessDeath,
    check_refused: None,
};

/// Asserts that `request` fails with `Unsupported`, that the error names the engine, and that no
/// call reaches the engine.
async fn assert_refused(context: &TestContext, request: impl AsyncFnOnce(Locks) -> Result<(), Error>) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let error = request(locks).await.expect_err("an unsupported call is rejected");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.engine(), Some(context.capabilities().engine), "{error}");
    assert_eq!(flaky.total_calls(), 0, "rejected before any I/O");
}
