//! Leases that end within a case. A case only waits for their end: on a slow machine such a lease
//! may end before its holder receives the grant, or a reply may come after a short timeout. Then
//! the case retries and asserts nothing.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks};
use leasehold_testbed::eventually;

use crate::flaky::{Fault, FlakyEngine, Method};
use crate::test_context::{TEST_TIMEOUT, TestContext};

/// The shortest TTL of a case, even if the engine allows a shorter one.
const SHORT_TTL: Duration = Duration::from_millis(300);

/// How often a check is repeated that finds more the more often it runs: `gate` times in the gate,
/// `nightly` times in nightly runs.
pub const fn repetitions(gate: u32, nightly: u32) -> u32 {
    if cfg!(feature = "nightly") { nightly } else { gate }
}

/// The error with which a request fails that must not be granted. The request is sent again while
/// the engine does not answer in time.
pub async fn expect_not_granted<T: Debug, F: Future<Output = Result<T, Error>>>(
    mut request: impl FnMut() -> F,
) -> Error {
    eventually(TEST_TIMEOUT, || {
        let result = request();
        async {
            match result.await {
                Ok(granted) => panic!("granted although held: {granted:?}"),
                Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
                Err(error) => Ok(error),
            }
        }
    })
    .await
}

impl TestContext {
    /// A TTL that ends within a case.
    pub fn short_ttl(&self) -> Duration {
        self.capabilities().min_ttl.max(SHORT_TTL)
    }

    /// A client with a short TTL whose renewals never arrive.
    pub async fn open_unrenewed(&self) -> (Locks, Arc<FlakyEngine>) {
        let (locks, flaky) = self.open_flaky(self.short_ttl()).await;
        flaky.fail_always(Method::Renew, Fault::LoseRequest);
        (locks, flaky)
    }

    /// A lock that such a client holds; the client is disconnected, so the lease expires.
    pub async fn acquire_expiring(&self, name: &str) -> (Locks, Arc<FlakyEngine>, Guard) {
        let (locks, flaky) = self.open_unrenewed().await;
        let guard = eventually(TEST_TIMEOUT, || async { locks.mutex(name).lock().await }).await;
        flaky.disconnect();
        (locks, flaky, guard)
    }
}
