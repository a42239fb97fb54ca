//! An engine on a bad line: around a real engine, it loses requests and replies, delays and refuses, by a plan.
//!
//! Nothing is pretended: every call that the plan lets through is the real engine's, with its real effect.

mod engine;
mod plan;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::engine::{Engine, Step};
use leasehold::{Error, ErrorKind, LockName};

pub use self::plan::{Fault, Method};

use self::plan::Plan;

/// A real engine on a bad line.
#[derive(Debug)]
pub struct Flaky {
    inner: Arc<dyn Engine>,
    plan: Plan,
    calls: [AtomicUsize; Method::COUNT],
    waits: Mutex<Vec<(LockName, Duration)>>,
}

impl Flaky {
    /// The engine on a good line, until [`next`](Self::next) or [`always`](Self::always) says otherwise.
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner, plan: Plan::default(), calls: Default::default(), waits: Mutex::default() }
    }

    /// What befalls the next calls of this method, one after the other; before what always does.
    pub fn next(&self, method: Method, faults: impl IntoIterator<Item = Fault>) {
        self.plan.next(method, faults);
    }

    /// What befalls every call of this method from now on; `None`: nothing.
    pub fn always(&self, method: Method, fault: impl Into<Option<Fault>>) {
        self.plan.always(method, fault.into());
    }

    /// The line is cut: nothing arrives, of any method. Until [`mend`](Self::mend).
    pub fn cut(&self) {
        for method in Method::ALL {
            self.always(method, Fault::LoseRequest);
        }
    }

    /// The line is good again.
    pub fn mend(&self) {
        for method in Method::ALL {
            self.always(method, None);
        }
    }

    /// How often the method was called, whatever became of it.
    pub fn calls(&self, method: Method) -> usize {
        self.calls[method as usize].load(Ordering::SeqCst)
    }

    /// For how long a lock was waited for at most, call by call.
    pub fn patience(&self, name: &str) -> Vec<Duration> {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.iter().filter(|(of, _)| of.as_str() == name).map(|(_, patience)| *patience).collect()
    }

    /// How often any method was called, whatever became of it.
    pub fn all_calls(&self) -> usize {
        Method::ALL.into_iter().map(|method| self.calls(method)).sum()
    }

    /// Makes one call as the plan has it.
    fn pass<T: Send + 'static>(
        &self,
        method: Method,
        call: impl FnOnce(Arc<dyn Engine>) -> Step<T> + Send + 'static,
    ) -> Step<T> {
        self.calls[method as usize].fetch_add(1, Ordering::SeqCst);
        let inner = Arc::clone(&self.inner);
        let Some(fault) = self.plan.draw(method) else { return call(inner) };
        Step::new(async move {
            match fault {
                Fault::LoseRequest => Err(away("the request was lost").effect_unknown()),
                Fault::LoseReply => {
                    let done = call(inner).await?;
                    drop(done);
                    Err(away("the reply was lost").effect_unknown())
                }
                Fault::Refuse => Err(away("the engine is busy")),
                Fault::Deny => Err(Error::new(ErrorKind::Denied, "not allowed, by the test's plan")),
                Fault::Hang => std::future::pending().await,
                Fault::Yield(times) => {
                    yields(times).await;
                    let done = call(inner).await;
                    yields(times).await;
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

async fn yields(times: u32) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

fn away(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{message}, by the test's plan")).retryable()
}
