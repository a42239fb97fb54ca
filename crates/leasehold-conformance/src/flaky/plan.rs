//! The faults planned for each call.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A method of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the engine's methods are")]
pub enum Method {
    Attempt,
    AttemptAll,
    Wait,
    Renew,
    Release,
    Watch,
    Inspect,
    List,
    ForceRelease,
    RequestRelease,
    GetRecord,
    CompareAndSetRecord,
    ListRecords,
}

impl Method {
    /// Number of methods.
    pub const COUNT: usize = Self::ALL.len();
    /// All methods.
    pub const ALL: [Self; 13] = [
        Self::Attempt,
        Self::AttemptAll,
        Self::Wait,
        Self::Renew,
        Self::Release,
        Self::Watch,
        Self::Inspect,
        Self::List,
        Self::ForceRelease,
        Self::RequestRelease,
        Self::GetRecord,
        Self::CompareAndSetRecord,
        Self::ListRecords,
    ];
}

/// How a call to the engine fails, or is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request never arrives, and the caller cannot know.
    LoseRequest,
    /// The call takes effect, but its reply is lost.
    LoseReply,
    /// A temporary error without effect.
    Refuse,
    /// A permanent error without effect.
    Deny,
    /// The call never returns and never takes effect.
    Hang,
    /// The call takes effect, with this many await points before and after it.
    Yield(u32),
    /// The call takes effect after this delay.
    Delay(Duration),
}

#[derive(Debug, Default)]
struct MethodFaults {
    next: VecDeque<Fault>,
    always: Option<Fault>,
}

/// The planned faults by method.
#[derive(Debug, Default)]
pub(super) struct FaultPlan([Mutex<MethodFaults>; Method::COUNT]);

impl FaultPlan {
    fn with_faults<T>(&self, method: Method, act: impl FnOnce(&mut MethodFaults) -> T) -> T {
        act(&mut self.0[method as usize].lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn next(&self, method: Method, faults: impl IntoIterator<Item = Fault>) {
        self.with_faults(method, |planned| planned.next.extend(faults));
    }

    pub(super) fn always(&self, method: Method, fault: Option<Fault>) {
        self.with_faults(method, |planned| planned.always = fault);
    }

    /// Takes the fault of the current call.
    pub(super) fn take(&self, method: Method) -> Option<Fault> {
        self.with_faults(method, |planned| planned.next.pop_front().or(planned.always))
    }
}
