//! A spy: a wrapper of the memory engine that records every call and answers as the test scripts
//! it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, LockView, LossEvents, RecordStore,
    ReleaseReply, RenewReply, Step,
};
use leasehold::{Claim, ClaimId, Error, ErrorKind, LockName};
use tokio::sync::Semaphore;

/// The method of the engine that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt,
    Wait,
    Renew,
    Release,
    Inspect,
}

/// How the spy answers a call.
#[derive(Clone)]
pub(crate) enum ScriptedReply {
    /// With the answer of the real engine.
    Forward,
    /// With this answer for every lease of the renewal, without calling the engine.
    RenewAs(RenewReply),
    /// With an empty list of answers to a renewal.
    TooFewAnswers,
    /// That the lock is not free, without calling the engine.
    Busy,
    /// With an error without effect; `true`: a retryable one.
    Fail(bool),
    /// With an error of unknown effect, although the engine did the call.
    LoseReply,
    /// With the answer of the real engine, once the semaphore has a permit.
    AfterGate(Arc<Semaphore>),
    /// Never, without calling the engine.
    NoResponse,
}

/// One recorded call.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) call: Call,
    pub(crate) at: Instant,
    /// The number of claims in the call.
    pub(crate) claims: usize,
}

/// The spy.
#[derive(Debug)]
pub(crate) struct Spy {
    inner: Arc<dyn Engine>,
    clock: Clock,
    calls: Mutex<Vec<RecordedCall>>,
    replies: Mutex<ScriptedReplies>,
}

/// The replies that the test has scripted, by the calls that they answer.
#[derive(Default)]
struct ScriptedReplies {
    /// Used once each, in this order.
    next: VecDeque<(Call, ScriptedReply)>,
    /// Used whenever `next` has none for the call.
    always: Vec<(Call, ScriptedReply)>,
}

impl std::fmt::Debug for ScriptedReplies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} scripted replies", self.next.len())
    }
}

impl Spy {
    /// A spy on a new memory engine.
    pub(crate) async fn new(clock: &Clock) -> Arc<Self> {
        let inner = leasehold::registry::open("memory:", clock).await.unwrap();
        Arc::new(Self { inner, clock: clock.clone(), calls: Mutex::default(), replies: Mutex::default() })
    }

    /// Scripts the reply to the next call of this kind.
    pub(crate) fn reply_next(&self, call: Call, reply: ScriptedReply) {
        self.replies.lock().unwrap().next.push_back((call, reply));
    }

    /// Scripts the reply to all calls of this kind from now on.
    pub(crate) fn reply_always(&self, call: Call, reply: ScriptedReply) {
        let mut replies = self.replies.lock().unwrap();
        replies.always.retain(|(known, _)| *known != call);
        replies.always.push((call, reply));
    }

    /// The calls of this kind so far.
    pub(crate) fn calls(&self, call: Call) -> Vec<RecordedCall> {
        self.calls.lock().unwrap().iter().filter(|recorded| recorded.call == call).cloned().collect()
    }

    /// How many calls of this kind there were so far.
    pub(crate) fn count(&self, call: Call) -> usize {
        self.calls(call).len()
    }

    /// Records a call about this many claims, and returns the reply to it.
    fn record_call(&self, call: Call, claims: usize) -> ScriptedReply {
        self.calls.lock().unwrap().push(RecordedCall { call, at: self.clock.now(), claims });
        let mut replies = self.replies.lock().unwrap();
        if let Some(index) = replies.next.iter().position(|(planned, _)| *planned == call) {
            return replies.next.remove(index).unwrap().1;
        }
        replies
            .always
            .iter()
            .find(|(planned, _)| *planned == call)
            .map_or(ScriptedReply::Forward, |(_, reply)| reply.clone())
    }

    /// Records a call and answers it. `scripted` is the answer of those replies that do not need
    /// the engine, and `forward` calls the engine.
    fn reply<T: Send + 'static>(
        &self,
        call: Call,
        claims: usize,
        scripted: impl FnOnce(&ScriptedReply) -> Option<T>,
        forward: impl FnOnce() -> Step<T>,
    ) -> Step<T> {
        let reply = self.record_call(call, claims);
        if let Some(answer) = scripted(&reply) {
            return Step::ready(Ok(answer));
        }
        match reply {
            ScriptedReply::Forward | ScriptedReply::RenewAs(_) | ScriptedReply::TooFewAnswers | ScriptedReply::Busy => {
                forward()
            }
            ScriptedReply::Fail(is_retryable) => Step::ready(Err(scripted_error(is_retryable))),
            ScriptedReply::NoResponse => Step::new(std::future::pending()),
            ScriptedReply::LoseReply => {
                let step = forward();
                Step::new(async move {
                    step.await?;
                    Err(scripted_error(true).effect_unknown())
                })
            }
            ScriptedReply::AfterGate(gate) => {
                let step = forward();
                Step::new(async move {
                    let answer = step.await;
                    gate.acquire().await.unwrap().forget();
                    answer
                })
            }
        }
    }
}

/// The error of a call that is scripted to fail.
fn scripted_error(is_retryable: bool) -> Error {
    let error = Error::new(ErrorKind::Unavailable, "a scripted failure");
    if is_retryable { error.retryable() } else { error }
}

impl Engine for Spy {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn url(&self) -> String {
        "spy:".into()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        let scripted = |reply: &ScriptedReply| {
            matches!(reply, ScriptedReply::Busy).then_some(AcquireReply::Busy { recheck_after: None })
        };
        self.reply(Call::Attempt, 1, scripted, || Arc::clone(&self.inner).attempt(claim, queue))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        self.reply(Call::Wait, 1, |_| None, || Arc::clone(&self.inner).wait(claim, timeout))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        let count = claims.len();
        let scripted = |reply: &ScriptedReply| match reply {
            ScriptedReply::RenewAs(answer) => Some(vec![*answer; count]),
            ScriptedReply::TooFewAnswers => Some(Vec::new()),
            _ => None,
        };
        self.reply(Call::Renew, count, scripted, || Arc::clone(&self.inner).renew(claims))
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        self.reply(Call::Release, 1, |_| None, || Arc::clone(&self.inner).release(claim))
    }

    fn loss_events(&self) -> LossEvents {
        self.inner.loss_events()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        Arc::clone(&self.inner).watch(name, timeout)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        self.reply(Call::Inspect, 1, |_| None, || Arc::clone(&self.inner).inspect(name))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Arc::clone(&self.inner).list(prefix)
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        Arc::clone(&self.inner).force_release(name, claim, reason)
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        Arc::clone(&self.inner).request_release(name, claim, reason)
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).shutdown()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Arc::clone(&self.inner).records()
    }
}
