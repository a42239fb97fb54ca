//! Leases that end while a case looks on. Their end is only awaited: a machine may be so slow that such a lease is over when its
//! holder hears of the grant, or that an answer comes after a short wait. Then a case asks again, and asserts nothing.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks};
use leasehold_testbed::eventually;

use crate::flaky::{Fault, FlakyEngine, Method};
use crate::test_context::{TEST_TIMEOUT, TestContext};

/// The shortest TTL that a case uses, where an engine would allow less.
const SHORT_TTL: Duration = Duration::from_millis(300);

/// How often something is done that is more telling the more often it is done: seldom in the gate, often in the nightly run.
pub const fn repetitions(gate: u32, nightly: u32) -> u32 {
    if cfg!(feature = "nightly") { nightly } else { gate }
}

/// The error of a request that must not be granted: any but one that says that the engine did not answer in time.
pub async fn expect_not_granted<T: Debug, F: Future<Output = Result<T, Error>>>(
    mut request: impl FnMut() -> F,
) -> Error {
    eventually(TEST_TIMEOUT, || {
        let asked = request();
        async {
            match asked.await {
                Ok(granted) => panic!("it is held, and yet granted: {granted:?}"),
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

    /// A lock that such a client took and that ends by itself; the line is cut behind it.
    pub async fn acquire_expiring(&self, name: &str) -> (Locks, Arc<FlakyEngine>, Guard) {
        let (locks, flaky) = self.open_unrenewed().await;
        let guard = eventually(TEST_TIMEOUT, || async { locks.mutex(name).lock().await }).await;
        flaky.disconnect();
        (locks, flaky, guard)
    }
}
