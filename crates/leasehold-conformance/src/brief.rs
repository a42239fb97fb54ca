//! Leases that end while a case looks on. Their end is only awaited: a machine may be so slow that such a lease is over when its
//! holder hears of the grant, or that an answer comes after a short wait. Then a case asks again, and asserts nothing.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks};
use leasehold_testbed::eventually;

use crate::flaky::{Fault, Flaky, Method};
use crate::world::{SOON, World};

/// The shortest TTL that a case uses, where an engine would allow less.
const SHORT: Duration = Duration::from_millis(300);

/// How often something is done that is more telling the more often it is done: seldom in the gate, often in the nightly run.
pub const fn times(gate: u32, nightly: u32) -> u32 {
    if cfg!(feature = "nightly") { nightly } else { gate }
}

/// The error of a request that must not be granted: any but one that says that the engine did not answer in time.
pub async fn not_granted<T: Debug, F: Future<Output = Result<T, Error>>>(mut ask: impl FnMut() -> F) -> Error {
    eventually(SOON, || {
        let asked = ask();
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

impl World {
    /// A TTL that ends within a case.
    pub fn short(&self) -> Duration {
        self.capabilities().min_ttl.max(SHORT)
    }

    /// A client with a short TTL whose renewals never arrive.
    pub async fn unrenewed(&self) -> (Locks, Arc<Flaky>) {
        let (locks, flaky) = self.flaky(self.short()).await;
        flaky.always(Method::Renew, Fault::LoseRequest);
        (locks, flaky)
    }

    /// A lock that such a client took and that ends by itself; the line is cut behind it.
    pub async fn expiring(&self, name: &str) -> (Locks, Arc<Flaky>, Guard) {
        let (locks, flaky) = self.unrenewed().await;
        let guard = eventually(SOON, || async { locks.mutex(name).lock().await }).await;
        flaky.cut();
        (locks, flaky, guard)
    }
}
