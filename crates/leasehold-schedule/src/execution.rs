//! A run: from its start to the recording of its outcome.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::event::JobEvent;
use super::run::Run;
use super::worker::JobWorker;
use crate::logic::{ActiveRun, Crash, TickOutcome};
use leasehold::Guard;
use leasehold::LostReason;
use leasehold::clock::Instant;
use leasehold::{Error, ErrorKind};

/// The maximum length of a run's error text, in bytes.
pub(super) const MAX_ERROR_TEXT: usize = 160;

/// The minimum time for which a node tries to record the end of a run while the engine does not
/// respond.
const MIN_RECORDING_TIME: Duration = Duration::from_secs(30);

/// How long before `max_hold` a run counts as timed out, at most; a twentieth of `max_hold`, if
/// that is less.
const MAX_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// A run of this node that has ended.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{self as schedule, Job, TickOutcome};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// let job = Job::new("mail", "* * * * * *")?;
/// for finished in schedule::run_due(&locks, job, None, None, work).await? {
///     println!("the tick {} on {}: {}", finished.run.tick, finished.run.node, finished.text);
///     assert_eq!(finished.outcome, TickOutcome::Done);
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinishedRun {
    /// The tick, the token and the attempt of the run.
    pub run: ActiveRun,
    /// Whether the run succeeded, or why not.
    pub outcome: TickOutcome,
    /// The error message of the run, shortened to 160 bytes; empty if there is none.
    pub text: String,
}

/// What the job's own function returned.
enum WorkResult<E> {
    Completed(Result<(), E>),
    /// The function stopped before it was done ([`Run::mark_interrupted`]); with its error, if it
    /// returned one.
    Interrupted(Option<E>),
}

/// The end of a run, and whether the job's record has it.
struct RunEnd {
    outcome: TickOutcome,
    /// The error message of the run; empty if there is none.
    text: String,
    duration: Duration,
    /// Whether the record has this outcome. If not, another node has recorded the run as crashed,
    /// or will.
    is_recorded: bool,
}

impl JobWorker {
    /// Calls `work` for a run that the record already lists, records its outcome, and releases the
    /// lock.
    pub(super) async fn execute<F, Fut, E>(&self, guard: Guard, entry: ActiveRun, work: &F) -> FinishedRun
    where
        F: Fn(Run) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Display,
    {
        let clock = self.locks.clock();
        let began = clock.now();
        let late = Duration::from_millis(entry.started).saturating_sub(tick_time(&entry));
        let metrics = leasehold_internals::metrics::of(&self.locks);
        metrics.record_duration("leasehold_schedule_lag_seconds", late);
        self.job.emit(&JobEvent::RunStarted { run: entry.clone(), delay: late });
        let guard = Arc::new(guard);
        let interrupted = Arc::new(AtomicBool::new(false));
        let run = Run {
            job: self.name(),
            entry: entry.clone(),
            guard: Arc::clone(&guard),
            is_interrupted: Arc::clone(&interrupted),
        };
        let work = async {
            let result = work(run).await;
            if interrupted.load(Ordering::SeqCst) {
                WorkResult::Interrupted(result.err())
            } else {
                WorkResult::Completed(result)
            }
        };
        let RunEnd { outcome, text, duration, is_recorded } = self.await_and_record(&guard, began, work).await;
        metrics.increment("leasehold_schedule_ticks_total", Some(("result", outcome.as_str())));
        self.job.emit(&JobEvent::RunEnded { run: entry.clone(), outcome, text: text.clone(), duration, is_recorded });
        if outcome != TickOutcome::Lost {
            tokio::select! {
                () = clock.sleep_until(began.saturating_add(self.job.min_hold)) => {}
                _ = guard.lost() => {}
                () = self.stop.stopped() => {}
            }
        }
        // A `Run` that the work has kept holds the lock until it is dropped.
        if let Ok(guard) = Arc::try_unwrap(guard)
            && let Err(error) = guard.release().await
        {
            tracing::debug!(job = self.job.name(), %error, "the lock expires at its TTL");
        }
        FinishedRun { run: entry, outcome, text }
    }

    /// Waits for the work, which began at `began`, and records its end.
    ///
    /// With `max_hold` the lock expires at that time, and the next holder would record the run as
    /// crashed. So this node records the timeout just before.
    async fn await_and_record<Fut, E>(&self, guard: &Guard, began: Instant, work: Fut) -> RunEnd
    where
        Fut: Future<Output = WorkResult<E>>,
        E: Display,
    {
        let clock = self.locks.clock();
        let mut work = pin!(self.await_while_held(guard, work));
        let near_end =
            self.job.max_hold.map(|most| guard.max_deadline().saturating_sub(MAX_TIMEOUT_MARGIN.min(most / 20)));
        let almost_over = async {
            match near_end {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (outcome, text) = &mut work => {
                let duration = clock.now().duration_since(began);
                let is_recorded = self.record_end(guard, outcome, &text).await;
                RunEnd { outcome, text, duration, is_recorded }
            }
            () = almost_over => {
                let ended = async {
                    work.await;
                    clock.now().duration_since(began)
                };
                let (duration, is_recorded) =
                    tokio::join!(ended, self.record_end(guard, TickOutcome::TimedOut, ""));
                RunEnd { outcome: TickOutcome::TimedOut, text: String::new(), duration, is_recorded }
            }
        }
    }

    /// Waits for the work, and drops it when the lock is lost, unless the job handles that itself.
    /// Returns the outcome and the error message, which is empty if there is none.
    async fn await_while_held<Fut, E>(&self, guard: &Guard, work: Fut) -> (TickOutcome, String)
    where
        Fut: Future<Output = WorkResult<E>>,
        E: Display,
    {
        // The lease may already have ended since the run was recorded: then the work does not
        // begin.
        let result = if self.job.handles_loss && guard.is_held() { Ok(work.await) } else { guard.protect(work).await };
        match (guard.lost_reason(), result) {
            (Some(LostReason::MaxHold), _) => (TickOutcome::TimedOut, String::new()),
            (Some(reason), _) => (TickOutcome::Lost, reason.to_string()),
            (None, Ok(WorkResult::Completed(Ok(())))) => (TickOutcome::Done, String::new()),
            (None, Ok(WorkResult::Completed(Err(error)))) => (TickOutcome::Failed, shorten(&error.to_string())),
            (None, Ok(WorkResult::Interrupted(Some(error)))) => (TickOutcome::Lost, shorten(&error.to_string())),
            (None, Ok(WorkResult::Interrupted(None))) => (TickOutcome::Lost, "stopped before it was done".to_owned()),
            (None, Err(error)) => (TickOutcome::Lost, shorten(&error.to_string())),
        }
    }

    /// Records the end, and tries again while the engine fails. Returns whether the record has it:
    /// not if another node recorded the run as crashed meanwhile, and not for a lost run that is to
    /// be retried, which stays listed so that another node finds it.
    async fn record_end(&self, guard: &Guard, outcome: TickOutcome, text: &str) -> bool {
        if outcome == TickOutcome::Lost && matches!(self.policy.crash, Crash::Retry { .. }) {
            return false;
        }
        let (clock, token) = (self.locks.clock(), guard.token().0);
        let give_up_at = clock.now().saturating_add(MIN_RECORDING_TIME.max(self.locks.ttl()));
        let mut failures = 0;
        loop {
            match self.try_record_end(token, outcome, text).await {
                Ok(Some(is_recorded)) => return is_recorded,
                Ok(None) => {}
                Err(error) => {
                    let random = (leasehold_internals::random::random_bits() & u128::from(u32::MAX)) as u32;
                    let (first, most) = (Duration::from_millis(50), Duration::from_secs(2));
                    let pause = leasehold_internals::logic::backoff::pause(failures, first, most, random);
                    failures += 1;
                    self.job.emit(&JobEvent::EngineFailed { error: error.to_string(), retry_in: pause });
                    clock.sleep_until(clock.now().saturating_add(pause)).await;
                    if !is_transient(&error) {
                        return false;
                    }
                }
            }
            if clock.now() >= give_up_at {
                return false;
            }
        }
    }

    /// Tries once to record the end of the run with this token. `Some(true)`: the record has it.
    /// `Some(false)`: another node recorded the run as crashed, or the record is gone. `None`:
    /// another client changed the record meanwhile, so try again.
    async fn try_record_end(&self, token: u64, outcome: TickOutcome, text: &str) -> leasehold::Result<Option<bool>> {
        let loaded = self.store.load().await?;
        let Some(state) = loaded.state.as_ref() else { return Ok(Some(false)) };
        match state.with_run_ended(token, outcome, text, loaded.millis()) {
            Some(after) => Ok(self.store.save(loaded.version, &after).await?.then_some(true)),
            // This node wrote it and the reply was lost; or another node recorded the run as
            // crashed.
            None => {
                let is_this_run = |run: &ActiveRun| run.token == token;
                let entry = state.history.iter().rev().find(|entry| entry.run.as_ref().is_some_and(is_this_run));
                Ok(Some(entry.is_some_and(|entry| entry.outcome == outcome)))
            }
        }
    }
}

fn is_transient(error: &Error) -> bool {
    error.is_retryable() || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

fn tick_time(run: &ActiveRun) -> Duration {
    Duration::from_secs(u64::try_from(run.tick).unwrap_or(0))
}

fn shorten(text: &str) -> String {
    let end = (0..=MAX_ERROR_TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
