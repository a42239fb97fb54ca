//! A wrapper of the memory engine that records every call and answers as the test orders.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::engine::{
    Answer, Capabilities, Engine, Evicted, LockView, Losses, PartyView, RecordStore, Released, Renewal, Step,
};
use leasehold::{Claim, ClaimId, Error, ErrorKind, LockName};
use tokio::sync::Semaphore;

/// The method that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt,
    Wait,
    Renew,
    Release,
    Inspect,
}

/// The outcome of one call.
#[derive(Clone)]
pub(crate) enum Play {
    /// The real engine's answer.
    Pass,
    /// This answer for every lease of the renewal, without calling the engine.
    Say(Renewal),
    /// An answer to a renewal that covers none of its leases.
    Short,
    /// Not free, without calling the engine.
    Busy,
    /// Refused without effect; `true`: retryable.
    Fail(bool),
    /// Done by the engine, but the reply is lost.
    LoseReply,
    /// Done by the engine, but the reply comes when the gate opens.
    Late(Arc<Semaphore>),
    /// Never arrives, never answers.
    Silence,
}

/// One recorded call.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) call: Call,
    pub(crate) at: Moment,
    /// How many claims it was about.
    pub(crate) claims: usize,
}

#[derive(Debug)]
pub(crate) struct Spy {
    inner: Arc<dyn Engine>,
    clock: Clock,
    notes: Mutex<Vec<Note>>,
    plays: Mutex<Plays>,
}

#[derive(Default)]
struct Plays {
    next: VecDeque<(Call, Play)>,
    always: Vec<(Call, Play)>,
}

impl std::fmt::Debug for Plays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} plays", self.next.len())
    }
}

impl Spy {
    /// A spy on a new memory engine.
    pub(crate) async fn new(clock: &Clock) -> Arc<Self> {
        let inner = leasehold::engine::open("memory:", clock).await.unwrap();
        Arc::new(Self { inner, clock: clock.clone(), notes: Mutex::default(), plays: Mutex::default() })
    }

    /// Sets the outcome of the next call of this kind.
    pub(crate) fn next(&self, call: Call, play: Play) {
        self.plays.lock().unwrap().next.push_back((call, play));
    }

    /// Sets the outcome of all calls of this kind from now on.
    pub(crate) fn always(&self, call: Call, play: Play) {
        let mut plays = self.plays.lock().unwrap();
        plays.always.retain(|(known, _)| *known != call);
        plays.always.push((call, play));
    }

    /// The calls of this kind so far.
    pub(crate) fn notes(&self, call: Call) -> Vec<Note> {
        self.notes.lock().unwrap().iter().filter(|note| note.call == call).cloned().collect()
    }

    /// How many calls of this kind there were so far.
    pub(crate) fn count(&self, call: Call) -> usize {
        self.notes(call).len()
    }

    fn note(&self, call: Call, claims: usize) -> Play {
        self.notes.lock().unwrap().push(Note { call, at: self.clock.now(), claims });
        let mut plays = self.plays.lock().unwrap();
        if let Some(index) = plays.next.iter().position(|(planned, _)| *planned == call) {
            return plays.next.remove(index).unwrap().1;
        }
        plays.always.iter().find(|(planned, _)| *planned == call).map_or(Play::Pass, |(_, play)| play.clone())
    }

    fn play<T: Send + 'static>(
        &self,
        call: Call,
        claims: usize,
        told: impl FnOnce(&Play) -> Option<T>,
        ask: impl FnOnce() -> Step<T>,
    ) -> Step<T> {
        let play = self.note(call, claims);
        if let Some(answer) = told(&play) {
            return Step::ready(Ok(answer));
        }
        match play {
            Play::Pass | Play::Say(_) | Play::Short | Play::Busy => ask(),
            Play::Fail(again) => Step::ready(Err(refused(again))),
            Play::Silence => Step::new(std::future::pending()),
            Play::LoseReply => {
                let step = ask();
                Step::new(async move {
                    step.await?;
                    Err(refused(true).effect_unknown())
                })
            }
            Play::Late(gate) => {
                let step = ask();
                Step::new(async move {
                    let answer = step.await;
                    gate.acquire().await.unwrap().forget();
                    answer
                })
            }
        }
    }
}

/// The error of a spy that has to fail.
fn refused(again: bool) -> Error {
    let error = Error::new(ErrorKind::Unavailable, "the spy was told to fail");
    if again { error.retryable() } else { error }
}

impl Engine for Spy {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn url(&self) -> String {
        "spy:".into()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        let told = |play: &Play| matches!(play, Play::Busy).then_some(Answer::Busy { recheck: None });
        self.play(Call::Attempt, 1, told, || Arc::clone(&self.inner).attempt(claim, queue))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        self.play(Call::Wait, 1, |_| None, || Arc::clone(&self.inner).wait(claim, patience))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        let count = claims.len();
        let told = |play: &Play| match play {
            Play::Say(answer) => Some(vec![*answer; count]),
            Play::Short => Some(Vec::new()),
            _ => None,
        };
        self.play(Call::Renew, count, told, || Arc::clone(&self.inner).renew(claims))
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        self.play(Call::Release, 1, |_| None, || Arc::clone(&self.inner).release(claim))
    }

    fn losses(&self) -> Losses {
        self.inner.losses()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        Arc::clone(&self.inner).watch(name, patience)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        self.play(Call::Inspect, 1, |_| None, || Arc::clone(&self.inner).inspect(name))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Arc::clone(&self.inner).list(prefix)
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        Arc::clone(&self.inner).evict(name, claim, reason)
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        Arc::clone(&self.inner).request_release(name, claim, reason)
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).farewell()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Arc::clone(&self.inner).records()
    }
}
