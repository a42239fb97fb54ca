//! A worker's task: repeats its workload until the run ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_schedule::StopHandle;

use super::acquired_lock::{AcquiredLock, LockBackend, LockRequest, description_of};
use super::recorder::Recorder;
use super::{Assignment, tick_job};
use crate::fenced_resource::{RegisterClient, Reply, Request};
use crate::history::{Call, Event, Mode, OpId, Outcome, WorkerId, Workload};
use crate::rng::Rng;

/// How many permits the semaphore has in all.
const PERMITS: u32 = 3;
/// The pause between two checks of a held lock, and the longest one between two inspections of a
/// queue.
const CHECK_INTERVAL: Duration = Duration::from_millis(12);
/// How long a worker whose check showed the loss of its lock waits for the notification of it.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(1);

/// One in this many holds lasts longer than the TTL, so that its lease must be renewed.
const LONG_HOLD_ODDS: u64 = 40;
/// Instead of acquiring a lock, a worker force-releases another one's with a probability of one in
/// this many.
const FORCE_RELEASE_ODDS: u64 = 12;
/// How often a worker inspects a lock to find a holder to force-release.
const MAX_HOLDER_QUERIES: u32 = 8;
/// The longest pause between two force releases of a scheduled job's runs.
const MAX_FORCE_RELEASE_PAUSE: Duration = Duration::from_secs(4);

/// The longest random pause between two holds, if the first one went well.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// A worker: one task, which makes one call at a time.
pub(super) struct WorkerTask {
    worker_id: WorkerId,
    assignment: Assignment,
    backend: LockBackend,
    recorder: Arc<Recorder>,
    resource: RegisterClient,
    rng: Rng,
    stop: StopHandle,
    /// How many values it has written, from which the next value is made.
    write_count: u64,
}

/// A granted lock, with the task that watches for its loss.
struct HeldLock {
    /// The number of the call that acquired it.
    op: OpId,
    lock: Arc<AcquiredLock>,
    /// Whether an `Unheld` event was recorded.
    is_loss_recorded: AtomicBool,
    /// The task that records the notification of the loss.
    loss_watcher: tokio::task::JoinHandle<()>,
}

impl WorkerTask {
    /// Connects a new worker to the resource.
    pub(super) async fn new(
        worker: WorkerId,
        assignment: &Assignment,
        backend: &LockBackend,
        recorder: &Arc<Recorder>,
        stop: StopHandle,
    ) -> Result<Self, String> {
        let resource =
            RegisterClient::connect(&assignment.resource).await.map_err(|error| format!("the resource: {error}"))?;
        Ok(Self {
            worker_id: worker,
            assignment: assignment.clone(),
            backend: backend.clone(),
            recorder: Arc::clone(recorder),
            resource,
            rng: Rng::new(assignment.seed).fork(&format!("worker {worker}")),
            stop,
            write_count: 0,
        })
    }

    /// Repeats the workload until the run ends.
    pub(super) async fn run(mut self) {
        if self.assignment.workload == Workload::Ticks {
            if let LockBackend::Leasehold(locks) = &self.backend {
                let hold = self.assignment.max_hold;
                let once = self.assignment.seed.is_multiple_of(2);
                let names = &self.assignment.locks;
                let running = tick_job::run_job(locks, names, hold, self.worker_id, &self.recorder, &self.stop, once);
                tokio::join!(running, self.force_release_runs());
            }
            return;
        }
        while !self.stop.is_stopped() {
            let went_well = self.hold_once().await;
            // After an error the engine gets more time.
            let max_pause =
                if went_well { (self.assignment.max_hold / 2).min(MAX_PAUSE) } else { self.assignment.ttl / 4 };
            let pause = self.random_pause(max_pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
        }
    }

    /// A random duration of at most `max`.
    fn random_pause(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.rng.below(max.as_nanos() as u64 + 1))
    }

    /// Holds an anchor lock until the run ends, and acquires it again after a loss.
    pub(super) async fn hold_anchor(mut self, lock: String) {
        let pause = self.assignment.ttl / 8;
        while !self.stop.is_stopped() {
            if let Some(held) = self.acquire(&lock, Mode::Exclusive, None, false).await {
                while self.check_held(&held) && !self.stop.is_stopped() {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.stopped() => {}
                    }
                }
                self.release(held).await;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
        }
    }

    /// Acquires a lock, holds it and releases it once or, now and then, force-releases another
    /// worker's. `false`: the lock was not granted, or was lost.
    async fn hold_once(&mut self) -> bool {
        let lock = self.rng.choose(&self.assignment.locks).cloned().unwrap_or_default();
        let workload = self.assignment.workload;
        if self.assignment.force_releases && self.rng.one_in(FORCE_RELEASE_ODDS) {
            self.force_release_holder(&lock).await;
            return true;
        }
        let mode = match workload {
            Workload::Rwlock if self.rng.below(10) < 7 => Mode::Shared,
            Workload::Semaphore => Mode::Permits { n: 1 + u32::from(self.rng.below(3) == 0), limit: PERMITS },
            _ => Mode::Exclusive,
        };
        let owner = (workload == Workload::Reentrant).then(|| format!("worker {}", self.worker_id));
        let waits = workload == Workload::Queue || self.rng.below(5) > 0;
        let Some(held) = self.acquire(&lock, mode, owner.as_deref(), waits).await else { return false };
        let again = match &owner {
            Some(owner) => self.acquire(&lock, mode, Some(owner), true).await,
            None => None,
        };
        let hold = match self.rng.below(LONG_HOLD_ODDS) {
            _ if self.assignment.has_constant_hold => self.assignment.max_hold,
            0 if workload != Workload::Queue => self.assignment.ttl * 5 / 4,
            _ => self.random_pause(self.assignment.max_hold),
        };
        match workload {
            Workload::Fenced | Workload::Unfenced => self.read_then_write(&held, &lock, hold).await,
            Workload::Counter => self.increment(&held, &lock, hold).await,
            _ => self.hold_for(&held, hold).await,
        }
        if let Some(again) = again {
            self.release(again).await;
        }
        self.release(held).await
    }

    /// Requests a lock and records the call; `None`: it was not granted.
    async fn acquire(&mut self, lock: &str, mode: Mode, owner: Option<&str>, is_waiting: bool) -> Option<HeldLock> {
        let ttl = self.assignment.ttl;
        let wait = is_waiting.then(|| ttl * 3 + self.random_pause(ttl * 2));
        let op = self.recorder.next_op_id(self.worker_id);
        let request = LockRequest {
            lock: lock.to_owned(),
            mode,
            owner: owner.map(str::to_owned),
            timeout: wait,
            is_election: self.assignment.workload == Workload::Election,
            description: description_of(op),
        };
        let due = self.recorder.now() + wait.unwrap_or(ttl).as_nanos() as u64;
        let call = Call::Lock { lock: lock.to_owned(), mode, owner: request.owner.clone(), waits: is_waiting };
        self.recorder.begin_with_id(self.worker_id, op, Some(due), call);
        let result = if self.assignment.workload == Workload::Queue {
            let (recorder, backend) = (&self.recorder, &self.backend);
            let mut acquiring = std::pin::pin!(backend.acquire(&request));
            let record_queued = async {
                // Inspections are load for the engine, too.
                let mut pause = Duration::from_millis(2);
                while !backend.lists_waiter(&request.lock, &request.description).await {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(CHECK_INTERVAL);
                }
                recorder.write(&Event::Queued { t: recorder.now(), op });
            };
            tokio::select! {
                biased;
                result = &mut acquiring => result,
                () = record_queued => acquiring.await,
            }
        } else {
            self.backend.acquire(&request).await
        };
        match result {
            Ok(shared_lock) => {
                // The time is read before the deadline, so the lock was certainly granted by then.
                let t = self.recorder.now();
                let deadline = shared_lock.deadline(&self.recorder);
                let outcome = Outcome::Granted { token: shared_lock.token(), deadline };
                self.recorder.write(&Event::End { t, op, outcome });
                Some(self.watch_for_loss(op, shared_lock))
            }
            Err(outcome) => {
                self.recorder.end(op, outcome);
                None
            }
        }
    }

    /// Force-releases a holder or waiter of the lock, and presents the fence token to the resource,
    /// which then refuses the force-released holder.
    async fn force_release_holder(&mut self, lock: &str) {
        let Some((op, fence_token)) =
            force_release(&self.assignment, &self.backend, &self.recorder, self.worker_id, lock).await
        else {
            return;
        };
        let registers = matches!(self.assignment.workload, Workload::Fenced | Workload::Counter);
        if registers && self.assignment.presents_tokens {
            self.present_token(op, lock, Some(fence_token)).await;
        }
    }

    /// Force-releases runs of the scheduled job, now and then, until the run of the test ends. A
    /// force release that has begun is completed.
    async fn force_release_runs(&self) {
        let mut rng = self.rng.fork("evict runs");
        let lock = super::lock_names(Workload::Ticks, &self.assignment.locks).into_iter().next().unwrap_or_default();
        while !self.stop.is_stopped() {
            let pause = rng.duration_in(MAX_FORCE_RELEASE_PAUSE / 4, MAX_FORCE_RELEASE_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.stopped() => {}
            }
            if self.assignment.force_releases && !self.stop.is_stopped() {
                force_release(&self.assignment, &self.backend, &self.recorder, self.worker_id, &lock).await;
            }
        }
    }

    /// Starts a task that records when the holder is notified of the loss, or of a release request.
    fn watch_for_loss(&self, op: OpId, lock: AcquiredLock) -> HeldLock {
        let shared_lock = Arc::new(lock);
        let (watched, recorder) = (Arc::clone(&shared_lock), Arc::clone(&self.recorder));
        let watch = tokio::spawn(async move {
            let requested = async {
                watched.release_requested().await;
                recorder.write(&Event::Requested { t: recorder.now(), op });
                std::future::pending().await
            };
            let reason = tokio::select! {
                reason = watched.lost() => reason,
                reason = requested => reason,
            };
            let (t, deadline) = (recorder.now(), watched.deadline(&recorder));
            recorder.write(&Event::Lost { t, op, deadline, reason });
        });
        HeldLock { op, lock: shared_lock, is_loss_recorded: AtomicBool::new(false), loss_watcher: watch }
    }

    /// Checks whether the lock is held, and records the result. Does not wait for the notification
    /// of a loss, which [`watch_for_loss`](Self::watch_for_loss) records.
    fn check_held(&self, held: &HeldLock) -> bool {
        let t = self.recorder.now();
        let is_held = held.lock.is_held();
        if is_held {
            let deadline = held.lock.deadline(&self.recorder);
            self.recorder.write(&Event::Held { t, op: held.op, deadline });
        } else if !held.is_loss_recorded.swap(true, Ordering::Relaxed) {
            self.recorder.write(&Event::Unheld { t: self.recorder.now(), op: held.op });
        }
        is_held
    }

    /// Checks the lock repeatedly for this duration; returns early if it is lost, the run ends, or
    /// the holder is asked to release.
    async fn hold_for(&self, held: &HeldLock, duration: Duration) {
        let until = self.recorder.now() + duration.as_nanos() as u64;
        while self.check_held(held) && !self.stop.is_stopped() {
            let left = Duration::from_nanos(until.saturating_sub(self.recorder.now()));
            // Every other holder obeys a release request; the rest lose the lock at their deadline.
            let obeys = held.op.is_multiple_of(2) && held.lock.is_release_requested();
            if left.is_zero() || obeys {
                return;
            }
            tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
        }
    }

    /// Reads a register, and writes it some time later without checking the lock just before, as
    /// programs do.
    async fn read_then_write(&mut self, held: &HeldLock, lock: &str, duration: Duration) {
        self.read_register(held, lock).await;
        self.hold_for(held, duration).await;
        self.write_count += 1;
        let value = u64::from(self.worker_id) << 24 | self.write_count;
        self.write_register(held, lock, value).await;
    }

    /// Reads a number, and writes the next one some time later.
    async fn increment(&mut self, held: &HeldLock, lock: &str, duration: Duration) {
        let Some(value) = self.read_register(held, lock).await else { return };
        self.hold_for(held, duration).await;
        self.write_register(held, lock, value.unwrap_or(0) + 1).await;
    }

    /// The token to present to the resource; `None`: this workload presents none.
    fn presented_token(&self, held: &HeldLock) -> Option<u64> {
        self.assignment.presents_tokens.then(|| held.lock.token())
    }

    /// Reads a register under this hold; `None`: refused or failed. The inner value is `None` if
    /// nothing was written yet.
    async fn read_register(&mut self, held: &HeldLock, register: &str) -> Option<Option<u64>> {
        self.present_token(held.op, register, self.presented_token(held)).await
    }

    /// Reads a register and presents this token to it; `None`: refused or failed. The inner value
    /// is `None` if nothing was written yet.
    async fn present_token(&mut self, hold: OpId, register: &str, token: Option<u64>) -> Option<Option<u64>> {
        let call = Call::Read { hold, register: register.to_owned(), token };
        let op = self.recorder.begin(self.worker_id, None, call);
        let request = Request { register: register.to_owned(), hold, token, value: None };
        let (outcome, value) = match self.resource.request(&request).await {
            Ok(Reply::Done(value)) => (Outcome::Value { value }, Some(value)),
            Ok(Reply::Refused(seen)) => (Outcome::Refused { seen }, None),
            Err(error) => (Outcome::Unknown { error: error.to_string() }, None),
        };
        self.recorder.end(op, outcome);
        value
    }

    /// Writes this value to a register under this hold, and records the call.
    async fn write_register(&mut self, held: &HeldLock, register: &str, value: u64) {
        let (hold, token) = (held.op, self.presented_token(held));
        let call = Call::Write { hold, register: register.to_owned(), token, value };
        let op = self.recorder.begin(self.worker_id, None, call);
        let request = Request { register: register.to_owned(), hold, token, value: Some(value) };
        let outcome = match self.resource.request(&request).await {
            Ok(Reply::Done(_)) => Outcome::Accepted,
            Ok(Reply::Refused(seen)) => Outcome::Refused { seen },
            Err(error) => Outcome::Unknown { error: error.to_string() },
        };
        self.recorder.end(op, outcome);
    }

    /// Releases the lock and records the call. `false`: the lock was lost, or the release failed.
    async fn release(&self, mut held: HeldLock) -> bool {
        // If no notification of the loss comes in time, none is recorded, and the checker reports
        // that.
        let notified =
            !self.check_held(&held) && tokio::time::timeout(NOTIFICATION_TIMEOUT, &mut held.loss_watcher).await.is_ok();
        if !notified {
            held.loss_watcher.abort();
            // Wait for the task, which may be recording its last event.
            let _ = held.loss_watcher.await;
        }
        let Ok(shared_lock) = Arc::try_unwrap(held.lock).map_err(drop) else { return false };
        let due = shared_lock.deadline(&self.recorder).max(self.recorder.now());
        let op = self.recorder.begin(self.worker_id, Some(due), Call::Release { hold: held.op });
        let outcome = shared_lock.release().await;
        let went_well = outcome == Outcome::Released;
        self.recorder.end(op, outcome);
        went_well
    }
}

/// Force-releases a holder of a lock. Every third time it only asks the holder to release, and
/// every fourth time it force-releases a waiter, if there is one. Returns the number of the call
/// and the fence token; `None`: no target was found, it was already gone, or there is no token.
async fn force_release(
    assignment: &Assignment,
    backend: &LockBackend,
    recorder: &Recorder,
    worker: WorkerId,
    lock: &str,
) -> Option<(OpId, u64)> {
    let (op, mut found) = (recorder.next_op_id(worker), None);
    for number in 1..=MAX_HOLDER_QUERIES {
        let (holders, waiters) = backend.list_contenders(lock).await;
        let waiter = waiters.into_iter().find(|waiter| waiter.hold.is_some());
        if op.is_multiple_of(4) && waiter.is_some() {
            found = waiter;
            break;
        }
        found = holders.into_iter().max_by_key(|one| one.age);
        // Most holders hold it only briefly, so there is no pause before the force release. If the
        // target releases just before, the force release must do no harm.
        if found.as_ref().is_some_and(|one| one.age > assignment.max_hold || number > MAX_HOLDER_QUERIES / 2) {
            break;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let target = found?;
    let graceful = op.is_multiple_of(3) && target.token > 0;
    let call = Call::Evict { lock: lock.to_owned(), hold: target.hold, token: target.token, graceful };
    let due = recorder.now() + assignment.ttl.as_nanos() as u64;
    recorder.begin_with_id(worker, op, Some(due), call);
    let outcome = backend.force_release(lock, &target, graceful).await;
    let token = if let Outcome::Evicted { token, gone: false } = outcome { token } else { None };
    recorder.end(op, outcome);
    token.map(|token| (op, token))
}
