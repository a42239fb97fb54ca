//! A wrapper of a real engine that simulates a bad connection: it loses requests and replies,
//! delays and rejects, as planned.
//!
//! Calls that the plan lets through have the real engine's effect.

mod engine;
mod plan;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::engine::{Engine, Step};
use leasehold::{Error, ErrorKind, LockName};

pub use self::plan::{Fault, Method};

use self::plan::FaultPlan;

/// A real engine behind a simulated bad connection.
#[derive(Debug)]
pub struct FlakyEngine {
    inner: Arc<dyn Engine>,
    plan: FaultPlan,
    calls: [AtomicUsize; Method::COUNT],
    recorded_waits: Mutex<Vec<(LockName, Duration)>>,
}

impl FlakyEngine {
    /// Wraps an engine. The connection works until [`fail_next`](Self::fail_next),
    /// [`fail_always`](Self::fail_always) or [`disconnect`](Self::disconnect) is called.
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner, plan: FaultPlan::default(), calls: Default::default(), recorded_waits: Mutex::default() }
    }

    /// Adds the faults of the next calls of this method, one for each call; they come before the
    /// fault of [`fail_always`](Self::fail_always).
    pub fn fail_next(&self, method: Method, faults: impl IntoIterator<Item = Fault>) {
        self.plan.next(method, faults);
    }

    /// Sets the fault of every call of this method from now on; `None` clears it.
    pub fn fail_always(&self, method: Method, fault: impl Into<Option<Fault>>) {
        self.plan.always(method, fault.into());
    }

    /// Cuts the connection: no request of any method arrives, until [`reconnect`](Self::reconnect).
    pub fn disconnect(&self) {
        for method in Method::ALL {
            self.fail_always(method, Fault::LoseRequest);
        }
    }

    /// Restores the connection.
    pub fn reconnect(&self) {
        for method in Method::ALL {
            self.fail_always(method, None);
        }
    }

    /// Number of calls of the method, whatever their outcome.
    pub fn call_count(&self, method: Method) -> usize {
        self.calls[method as usize].load(Ordering::SeqCst)
    }

    /// The timeouts that the library requested in its waits for this lock, in order.
    pub fn wait_timeouts(&self, name: &str) -> Vec<Duration> {
        let waits = self.recorded_waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().filter(|(of, _)| of.as_str() == name).map(|(_, patience)| *patience).collect()
    }

    /// Number of calls of all methods, whatever their outcome.
    pub fn total_calls(&self) -> usize {
        Method::ALL.into_iter().map(|method| self.call_count(method)).sum()
    }

    /// Makes one call with its planned fault.
    fn call_with_fault<T: Send + 'static>(
        &self,
        method: Method,
        call: impl FnOnce(Arc<dyn Engine>) -> Step<T> + Send + 'static,
    ) -> Step<T> {
        self.calls[method as usize].fetch_add(1, Ordering::SeqCst);
        let inner = Arc::clone(&self.inner);
        let Some(fault) = self.plan.take(method) else { return call(inner) };
        Step::new(async move {
            match fault {
                Fault::LoseRequest => Err(unavailable_error("the request was lost").effect_unknown()),
                Fault::LoseReply => {
                    let done = call(inner).await?;
                    drop(done);
                    Err(unavailable_error("the reply was lost").effect_unknown())
                }
                Fault::Refuse => Err(unavailable_error("the engine is busy")),
                Fault::Deny => Err(Error::new(ErrorKind::Denied, "not allowed, by the test's plan")),
                Fault::Hang => std::future::pending().await,
                Fault::Yield(times) => {
                    yield_times(times).await;
                    let done = call(inner).await;
                    yield_times(times).await;
                    done
                }
                Fault::Delay(time) => {
                    tokio::time::sleep(time).await;
                    call(inner).await
                }
            }
        })
    }
}

async fn yield_times(times: u32) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

fn unavailable_error(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{message}, by the test's plan")).retryable()
}
