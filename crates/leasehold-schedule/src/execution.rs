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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinishedRun {
    /// The run.
    pub run: ActiveRun,
    /// The outcome.
    pub outcome: TickOutcome,
    /// The error text.
    pub text: String,
}

/// The result of the work.
enum WorkResult<E> {
    Completed(Result<(), E>),
    /// It was stopped before it was done; with its error, if it reported one.
    Interrupted(Option<E>),
}

impl JobWorker {
    /// Executes a decided run. The record lists the run already, so the next node finds it even
    /// after a crash.
    pub(super) async fn execute<F, Fut, E>(&self, guard: Guard, entry: ActiveRun, work: &F) -> FinishedRun
    where
        F: Fn(Run) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Display,
    {
        let clock = self.locks.clock();
        let began = clock.now();
        let late = Duration::from_millis(entry.started).saturating_sub(tick_time(&entry));
        let gauges = leasehold_internals::metrics::of(&self.locks);
        gauges.record_duration("leasehold_schedule_lag_seconds", late);
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
        let (outcome, text, took, entered) = self.await_and_record(&guard, began, work).await;
        gauges.increment("leasehold_schedule_ticks_total", Some(("result", outcome.as_str())));
        self.job.emit(&JobEvent::RunEnded {
            run: entry.clone(),
            outcome,
            text: text.clone(),
            duration: took,
            is_recorded: entered,
        });
        if outcome != TickOutcome::Lost {
            tokio::select! {
                () = clock.sleep_until(began.saturating_add(self.job.min_hold)) => {}
                _ = guard.lost() => {}
                () = self.stop.stopped() => {}
            }
        }
        // If the work still has the run, it keeps the lock.
        if let Ok(guard) = Arc::try_unwrap(guard)
            && let Err(error) = guard.release().await
        {
            tracing::debug!(job = self.job.name(), %error, "the lock expires at its TTL");
        }
        FinishedRun { run: entry, outcome, text }
    }

    /// Waits for the work and records its end. Returns the outcome, the error text, the duration,
    /// and whether that was recorded.
    ///
    /// With `max_hold` the lock expires at that time, and the next holder would record the run as
    /// crashed. So this node records the timeout just before.
    async fn await_and_record<Fut, E>(
        &self,
        guard: &Guard,
        began: Instant,
        work: Fut,
    ) -> (TickOutcome, String, Duration, bool)
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
                let took = clock.now().duration_since(began);
                let entered = self.record_end(guard, outcome, &text).await;
                (outcome, text, took, entered)
            }
            () = almost_over => {
                let ended = async {
                    work.await;
                    clock.now().duration_since(began)
                };
                let (took, entered) = tokio::join!(ended, self.record_end(guard, TickOutcome::TimedOut, ""));
                (TickOutcome::TimedOut, String::new(), took, entered)
            }
        }
    }

    /// Waits for the work, as long as the lock is held.
    async fn await_while_held<Fut, E>(&self, guard: &Guard, work: Fut) -> (TickOutcome, String)
    where
        Fut: Future<Output = WorkResult<E>>,
        E: Display,
    {
        // Since the run was recorded, the lease may have ended.
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

    /// Records the end, unless another node recorded the run as crashed meanwhile. A run that is to
    /// be retried stays listed, so that another node finds it.
    async fn record_end(&self, guard: &Guard, outcome: TickOutcome, text: &str) -> bool {
        if outcome == TickOutcome::Lost && matches!(self.policy.crash, Crash::Retry { .. }) {
            return false;
        }
        let (clock, token) = (self.locks.clock(), guard.token().0);
        let give_up_at = clock.now().saturating_add(MIN_RECORDING_TIME.max(self.locks.ttl()));
        let mut failures = 0;
        loop {
            match self.try_record_end(token, outcome, text).await {
                Ok(Some(entered)) => return entered,
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

    /// `None`: another client wrote meanwhile.
    async fn try_record_end(&self, token: u64, outcome: TickOutcome, text: &str) -> leasehold::Result<Option<bool>> {
        let loaded = self.store.load().await?;
        let Some(state) = loaded.state.as_ref() else { return Ok(Some(false)) };
        match state.with_run_ended(token, outcome, text, loaded.millis()) {
            Some(after) => Ok(self.store.save(loaded.version, &after).await?.then_some(true)),
            // We wrote it and the reply was lost; or another node recorded the run as crashed.
            None => {
                let ours = |run: &ActiveRun| run.token == token;
                let entry = state.history.iter().rev().find(|entry| entry.run.as_ref().is_some_and(ours));
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
