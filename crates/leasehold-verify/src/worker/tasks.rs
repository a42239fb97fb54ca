//! A worker's task: repeats its workload until the stop order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::schedule::Stop;

use super::hand::{Ask, Hand, Taker, text};
use super::record::Recorder;
use super::{Assignment, ticks};
use crate::dice::Dice;
use crate::history::{Call, Event, Mode, OpId, Outcome, Worker, Workload};
use crate::resource::{Answer, Client, Request};

/// The number of permits.
const PERMITS: u32 = 3;
/// How often a holder checks whether it holds its lock.
const LOOK: Duration = Duration::from_millis(12);
/// How long a worker that lost its lock waits for the notification.
const TOLD: Duration = Duration::from_secs(1);

/// One in this many holds lasts longer than a lease without renewals.
const LONG: u64 = 40;
/// In one of this many rounds another worker's lock is force-released.
const EVICTS: u64 = 12;
/// How often to look for a holder, and how long to pause in between.
const LOOKS: u32 = 8;
/// With a scheduled job, the longest pause between two attempts to evict a run.
const BETWEEN_EVICTIONS: Duration = Duration::from_secs(4);

const LONGEST_PAUSE: Duration = Duration::from_millis(40);

/// A worker.
pub(super) struct Task {
    worker: Worker,
    assignment: Assignment,
    taker: Taker,
    recorder: Arc<Recorder>,
    resource: Client,
    dice: Dice,
    stop: Stop,
    written: u64,
}

/// A granted lock, with the task that watches for its loss.
struct Held {
    op: OpId,
    hand: Arc<Hand>,
    /// Whether the history shows that it is not held any more.
    unheld: AtomicBool,
    watch: tokio::task::JoinHandle<()>,
}

impl Task {
    pub(super) async fn new(
        worker: Worker,
        assignment: &Assignment,
        taker: &Taker,
        recorder: &Arc<Recorder>,
        stop: Stop,
    ) -> Result<Self, String> {
        let resource = Client::connect(&assignment.resource).await.map_err(|error| format!("the resource: {error}"))?;
        Ok(Self {
            worker,
            assignment: assignment.clone(),
            taker: taker.clone(),
            recorder: Arc::clone(recorder),
            resource,
            dice: Dice::new(assignment.seed).fork(&format!("worker {worker}")),
            stop,
            written: 0,
        })
    }

    pub(super) async fn run(mut self) {
        if self.assignment.workload == Workload::Ticks {
            if let Taker::Leasehold(locks) = &self.taker {
                let hold = self.assignment.hold;
                let once = self.assignment.seed.is_multiple_of(2);
                let names = &self.assignment.locks;
                let running = ticks::run(locks, names, hold, self.worker, &self.recorder, &self.stop, once);
                tokio::join!(running, self.evict_runs());
            }
            return;
        }
        while !self.stop.is_stopped() {
            let went_well = self.round().await;
            let most = if went_well { self.assignment.hold.min(LONGEST_PAUSE) / 2 } else { self.assignment.ttl / 4 };
            let pause = self.some(most);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
        }
    }

    /// A random duration of at most `most`.
    fn some(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.dice.below(most.as_nanos() as u64 + 1))
    }

    /// Holds a lock as long as possible, and acquires it again after a loss.
    pub(super) async fn anchor(mut self, lock: String) {
        let pause = self.assignment.ttl / 8;
        while !self.stop.is_stopped() {
            if let Some(held) = self.take(&lock, Mode::Exclusive, None, false).await {
                while self.look(&held) && !self.stop.is_stopped() {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.stopped() => {}
                    }
                }
                self.give_back(held).await;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
        }
    }

    /// Acquires a lock, holds it and releases it. `false`: an error occurred.
    async fn round(&mut self) -> bool {
        let lock = self.dice.pick(&self.assignment.locks).cloned().unwrap_or_default();
        let workload = self.assignment.workload;
        if self.assignment.evicts && self.dice.one_in(EVICTS) {
            self.evict(&lock).await;
            return true;
        }
        let mode = match workload {
            Workload::Rwlock if self.dice.below(10) < 7 => Mode::Shared,
            Workload::Semaphore => Mode::Permits { n: 1 + u32::from(self.dice.below(3) == 0), limit: PERMITS },
            _ => Mode::Exclusive,
        };
        let owner = (workload == Workload::Reentrant).then(|| format!("worker {}", self.worker));
        let waits = workload == Workload::Queue || self.dice.below(5) > 0;
        let Some(held) = self.take(&lock, mode, owner.as_deref(), waits).await else { return false };
        let again = match &owner {
            Some(owner) => self.take(&lock, mode, Some(owner), true).await,
            None => None,
        };
        let hold = match self.dice.below(LONG) {
            _ if self.assignment.steady => self.assignment.hold,
            0 if workload != Workload::Queue => self.assignment.ttl * 5 / 4,
            _ => self.some(self.assignment.hold),
        };
        match workload {
            Workload::Fenced | Workload::Unfenced => self.write(&held, &lock, hold).await,
            Workload::Counter => self.count(&held, &lock, hold).await,
            _ => self.hold(&held, hold).await,
        }
        if let Some(again) = again {
            self.give_back(again).await;
        }
        self.give_back(held).await
    }

    async fn take(&mut self, lock: &str, mode: Mode, owner: Option<&str>, waits: bool) -> Option<Held> {
        let ttl = self.assignment.ttl;
        let wait = waits.then(|| ttl * 3 + self.some(ttl * 2));
        let op = self.recorder.number(self.worker);
        let ask = Ask {
            lock: lock.to_owned(),
            mode,
            owner: owner.map(str::to_owned),
            wait,
            election: self.assignment.workload == Workload::Election,
            text: text(op),
        };
        let due = self.recorder.now() + wait.unwrap_or(ttl).as_nanos() as u64;
        let call = Call::Lock { lock: lock.to_owned(), mode, owner: ask.owner.clone(), waits };
        self.recorder.begin_as(self.worker, op, Some(due), call);
        let taken = if self.assignment.workload == Workload::Queue {
            let (recorder, taker) = (&self.recorder, &self.taker);
            let mut taking = std::pin::pin!(taker.take(&ask));
            let seen = async {
                // An inspection costs the engine work, too.
                let mut pause = Duration::from_millis(2);
                while !taker.sees(&ask.lock, &ask.text).await {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LOOK);
                }
                recorder.put(&Event::Queued { t: recorder.now(), op });
            };
            tokio::select! {
                biased;
                taken = &mut taking => taken,
                () = seen => taking.await,
            }
        } else {
            self.taker.take(&ask).await
        };
        match taken {
            Ok(hand) => {
                // The deadline is read after the time: it can only be later.
                let t = self.recorder.now();
                let deadline = hand.deadline(&self.recorder);
                let outcome = Outcome::Granted { token: hand.token(), deadline };
                self.recorder.put(&Event::End { t, op, outcome });
                Some(self.watch(op, hand))
            }
            Err(outcome) => {
                self.recorder.end(op, outcome);
                None
            }
        }
    }

    /// Force-releases a lock's holder, preferably one that has held it for a while, and makes the
    /// resource refuse it from then on.
    async fn evict(&mut self, lock: &str) {
        let Some((evicts, token)) =
            force_release(&self.assignment, &self.taker, &self.recorder, self.worker, lock).await
        else {
            return;
        };
        let registers = matches!(self.assignment.workload, Workload::Fenced | Workload::Counter);
        if registers && self.assignment.fenced {
            self.show(evicts, lock, Some(token)).await;
        }
    }

    /// Force-releases runs of a scheduled job until the stop order. An eviction that has begun is
    /// completed.
    async fn evict_runs(&self) {
        let mut dice = self.dice.fork("evict runs");
        let lock = super::lock_names(Workload::Ticks, &self.assignment.locks).into_iter().next().unwrap_or_default();
        while !self.stop.is_stopped() {
            let pause = dice.time(BETWEEN_EVICTIONS / 4, BETWEEN_EVICTIONS);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
            if self.assignment.evicts && !self.stop.is_stopped() {
                force_release(&self.assignment, &self.taker, &self.recorder, self.worker, &lock).await;
            }
        }
    }

    /// Records when the holder is notified of the loss, and of a release request.
    fn watch(&self, op: OpId, hand: Hand) -> Held {
        let hand = Arc::new(hand);
        let (watched, recorder) = (Arc::clone(&hand), Arc::clone(&self.recorder));
        let watch = tokio::spawn(async move {
            let requested = async {
                watched.release_requested().await;
                recorder.put(&Event::Requested { t: recorder.now(), op });
                std::future::pending().await
            };
            let reason = tokio::select! {
                reason = watched.lost() => reason,
                reason = requested => reason,
            };
            let (t, deadline) = (recorder.now(), watched.deadline(&recorder));
            recorder.put(&Event::Lost { t, op, deadline, reason });
        });
        Held { op, hand, unheld: AtomicBool::new(false), watch }
    }

    /// Checks whether the lock is held, and records the result. The notification of the loss is
    /// separate, see [`watch`](Self::watch).
    fn look(&self, held: &Held) -> bool {
        let t = self.recorder.now();
        let is_held = held.hand.is_held();
        if is_held {
            let deadline = held.hand.deadline(&self.recorder);
            self.recorder.put(&Event::Held { t, op: held.op, deadline });
        } else if !held.unheld.swap(true, Ordering::Relaxed) {
            self.recorder.put(&Event::Unheld { t: self.recorder.now(), op: held.op });
        }
        is_held
    }

    /// Holds the lock for a while, with repeated checks.
    async fn hold(&self, held: &Held, hold: Duration) {
        let until = self.recorder.now() + hold.as_nanos() as u64;
        while self.look(held) && !self.stop.is_stopped() {
            let left = Duration::from_nanos(until.saturating_sub(self.recorder.now()));
            // Every second holder follows a release request; the others lose the lock at their
            // deadline.
            let obeys = held.op.is_multiple_of(2) && held.hand.is_release_requested();
            if left.is_zero() || obeys {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Reads a register and writes it some time later, without checking the lock again: as programs
    /// do.
    async fn write(&mut self, held: &Held, lock: &str, hold: Duration) {
        self.read(held, lock).await;
        self.hold(held, hold).await;
        self.written += 1;
        let value = u64::from(self.worker) << 24 | self.written;
        self.store(held, lock, value).await;
    }

    /// Reads a number, and writes the next one some time later.
    async fn count(&mut self, held: &Held, lock: &str, hold: Duration) {
        let Some(value) = self.read(held, lock).await else { return };
        self.hold(held, hold).await;
        self.store(held, lock, value.unwrap_or(0) + 1).await;
    }

    fn token(&self, held: &Held) -> Option<u64> {
        self.assignment.fenced.then(|| held.hand.token())
    }

    async fn read(&mut self, held: &Held, register: &str) -> Option<Option<u64>> {
        self.show(held.op, register, self.token(held)).await
    }

    /// Reads a register, and presents a token to it.
    async fn show(&mut self, hold: OpId, register: &str, token: Option<u64>) -> Option<Option<u64>> {
        let call = Call::Read { hold, register: register.to_owned(), token };
        let op = self.recorder.begin(self.worker, None, call);
        let request = Request { register: register.to_owned(), hold, token, value: None };
        let (outcome, value) = match self.resource.ask(&request).await {
            Ok(Answer::Done(value)) => (Outcome::Value { value }, Some(value)),
            Ok(Answer::Refused(seen)) => (Outcome::Refused { seen }, None),
            Err(error) => (Outcome::Unknown { error: error.to_string() }, None),
        };
        self.recorder.end(op, outcome);
        value
    }

    async fn store(&mut self, held: &Held, register: &str, value: u64) {
        let (hold, token) = (held.op, self.token(held));
        let call = Call::Write { hold, register: register.to_owned(), token, value };
        let op = self.recorder.begin(self.worker, None, call);
        let request = Request { register: register.to_owned(), hold, token, value: Some(value) };
        let outcome = match self.resource.ask(&request).await {
            Ok(Answer::Done(_)) => Outcome::Accepted,
            Ok(Answer::Refused(seen)) => Outcome::Refused { seen },
            Err(error) => Outcome::Unknown { error: error.to_string() },
        };
        self.recorder.end(op, outcome);
    }

    async fn give_back(&self, mut held: Held) -> bool {
        // Without a notification by then, the holder never got one; the checker reports that.
        let told = !self.look(&held) && tokio::time::timeout(TOLD, &mut held.watch).await.is_ok();
        if !told {
            held.watch.abort();
            // It may be recording its last event.
            let _ = held.watch.await;
        }
        let Ok(hand) = Arc::try_unwrap(held.hand).map_err(drop) else { return false };
        let due = hand.deadline(&self.recorder).max(self.recorder.now());
        let op = self.recorder.begin(self.worker, Some(due), Call::Release { hold: held.op });
        let outcome = hand.release().await;
        let went_well = outcome == Outcome::Released;
        self.recorder.end(op, outcome);
        went_well
    }
}

/// Finds a holder of a lock and force-releases it, or, every third time, requests its release.
/// Returns the call, and the fence token if the holder was still there.
async fn force_release(
    assignment: &Assignment,
    taker: &Taker,
    recorder: &Recorder,
    worker: Worker,
    lock: &str,
) -> Option<(OpId, u64)> {
    let mut found = None;
    for number in 1..=LOOKS {
        let holders = taker.holders(lock).await;
        found = holders.into_iter().max_by_key(|one| one.age);
        // At once: most holders hold it only briefly. Sometimes the holder is gone nevertheless,
        // which must do no harm.
        if found.as_ref().is_some_and(|one| one.age > assignment.hold || number > LOOKS / 2) {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let seen = found?;
    let op = recorder.number(worker);
    let graceful = op.is_multiple_of(3);
    let call = Call::Evict { lock: lock.to_owned(), hold: seen.hold, token: seen.token, graceful };
    let due = recorder.now() + assignment.ttl.as_nanos() as u64;
    recorder.begin_as(worker, op, Some(due), call);
    let outcome = taker.evict(lock, &seen, graceful).await;
    let token = if let Outcome::Evicted { token, gone: false } = outcome { token } else { None };
    recorder.end(op, outcome);
    token.map(|token| (op, token))
}
