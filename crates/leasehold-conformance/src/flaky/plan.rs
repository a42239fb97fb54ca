//! What befalls which call.

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
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
    /// All of them.
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

/// What befalls a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives; the caller cannot know.
    LoseRequest,
    /// It is done, and the caller never hears of it.
    LoseReply,
    /// The engine says that it cannot now, and that nothing was done.
    Refuse,
    /// The engine says no for good, and that nothing was done.
    Deny,
    /// It is never answered and never done.
    Hang,
    /// It is done, and so many await points lie before it and after it.
    Yield(u32),
    /// It is done so much later.
    Delay(Duration),
}

#[derive(Debug, Default)]
struct MethodFaults {
    next: VecDeque<Fault>,
    always: Option<Fault>,
}

/// The faults to come, by method.
#[derive(Debug, Default)]
pub(super) struct FaultPlan([Mutex<MethodFaults>; Method::COUNT]);

impl FaultPlan {
    fn with_faults<T>(&self, method: Method, act: impl FnOnce(&mut MethodFaults) -> T) -> T {
        act(&mut self.0[method as usize].lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn next(&self, method: Method, faults: impl IntoIterator<Item = Fault>) {
        self.with_faults(method, |line| line.next.extend(faults));
    }

    pub(super) fn always(&self, method: Method, fault: Option<Fault>) {
        self.with_faults(method, |line| line.always = fault);
    }

    /// What befalls the call that is made now.
    pub(super) fn take(&self, method: Method) -> Option<Fault> {
        self.with_faults(method, |line| line.next.pop_front().or(line.always))
    }
}
