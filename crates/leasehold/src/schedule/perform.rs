//! A run: from its start to the recording of its outcome.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::event::Event;
use super::run::Run;
use super::worker::Worker;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::lease::LostReason;
use crate::logic::schedule::{Crash, Outcome, Running};

/// The error text of a run is cut to this many bytes.
pub(super) const MOST_TEXT: usize = 160;

/// How long a node tries to record the end of a run, at least, while the engine does not respond.
const ENTERING: Duration = Duration::from_secs(30);

/// How long before `max_hold` a run counts as timed out, at most; a twentieth of `max_hold`, if
/// that is less.
const LAST: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The run.
    pub run: Running,
    /// The outcome.
    pub outcome: Outcome,
    /// The error text.
    pub text: String,
}

/// The result of the work.
enum End<E> {
    Own(Result<(), E>),
    /// It was stopped before it was done; with its error, if it reported one.
    Interrupted(Option<E>),
}

impl Worker {
    /// Runs what was decided. The record has the run already, so the next node learns of it
    /// whatever happens now.
    pub(super) async fn perform<F, Fut, E>(&self, guard: Guard, entry: Running, work: &F) -> Ended
    where
        F: Fn(Run) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Display,
    {
        let clock = self.locks.clock();
        let began = clock.now();
        let late = Duration::from_millis(entry.started).saturating_sub(tick_time(&entry));
        let gauges = &self.locks.shared.desk.gauges;
        gauges.observe("leasehold_schedule_lag_seconds", late);
        self.job.tell(&Event::Began { run: entry.clone(), late });
        let guard = Arc::new(guard);
        let interrupted = Arc::new(AtomicBool::new(false));
        let run = Run {
            job: self.name(),
            entry: entry.clone(),
            guard: Arc::clone(&guard),
            interrupted: Arc::clone(&interrupted),
        };
        let work = async {
            let result = work(run).await;
            if interrupted.load(Ordering::SeqCst) { End::Interrupted(result.err()) } else { End::Own(result) }
        };
        let (outcome, text, took, entered) = self.see_through(&guard, began, work).await;
        gauges.count("leasehold_schedule_ticks_total", Some(("result", outcome.as_str())));
        self.job.tell(&Event::Ended { run: entry.clone(), outcome, text: text.clone(), took, entered });
        if outcome != Outcome::Lost {
            tokio::select! {
                () = clock.sleep_until(began.after(self.job.min_hold)) => {}
                _ = guard.lost() => {}
                () = self.stop.stopped() => {}
            }
        }
        // If the work still keeps the run, it keeps the lock.
        if let Ok(guard) = Arc::try_unwrap(guard)
            && let Err(error) = guard.release().await
        {
            tracing::debug!(job = self.job.name(), %error, "the lock ends with its TTL");
        }
        Ended { run: entry, outcome, text }
    }

    /// Waits for the work and records its end. Returns the outcome, the error text, the duration,
    /// and whether that was recorded.
    ///
    /// With `max_hold` the lock is free as soon as the time is over, and the next waiter would take
    /// the run for dead. The timeout is therefore recorded just before.
    async fn see_through<Fut, E>(&self, guard: &Guard, began: Moment, work: Fut) -> (Outcome, String, Duration, bool)
    where
        Fut: Future<Output = End<E>>,
        E: Display,
    {
        let clock = self.locks.clock();
        let mut work = pin!(self.stand_by(guard, work));
        let near_end = self.job.max_hold.map(|most| guard.cap().before(LAST.min(most / 20)));
        let almost_over = async {
            match near_end {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (outcome, text) = &mut work => {
                let took = clock.now().since(began);
                let entered = self.enter_end(guard, outcome, &text).await;
                (outcome, text, took, entered)
            }
            () = almost_over => {
                let ended = async {
                    work.await;
                    clock.now().since(began)
                };
                let (took, entered) = tokio::join!(ended, self.enter_end(guard, Outcome::TimedOut, ""));
                (Outcome::TimedOut, String::new(), took, entered)
            }
        }
    }

    /// Waits for the work, as long as the lock is held.
    async fn stand_by<Fut, E>(&self, guard: &Guard, work: Fut) -> (Outcome, String)
    where
        Fut: Future<Output = End<E>>,
        E: Display,
    {
        // Since the run was recorded, the lease may have ended.
        let result = if self.job.minds_loss && guard.is_held() { Ok(work.await) } else { guard.protect(work).await };
        match (guard.lost_reason(), result) {
            (Some(LostReason::MaxHold), _) => (Outcome::TimedOut, String::new()),
            (Some(reason), _) => (Outcome::Lost, reason.to_string()),
            (None, Ok(End::Own(Ok(())))) => (Outcome::Done, String::new()),
            (None, Ok(End::Own(Err(error)))) => (Outcome::Failed, shorten(&error.to_string())),
            (None, Ok(End::Interrupted(Some(error)))) => (Outcome::Lost, shorten(&error.to_string())),
            (None, Ok(End::Interrupted(None))) => (Outcome::Lost, "stopped before it was done".to_owned()),
            (None, Err(error)) => (Outcome::Lost, shorten(&error.to_string())),
        }
    }

    /// Records the end, unless another node took the run for dead meanwhile. A run that is to be
    /// retried is left for another node to find.
    async fn enter_end(&self, guard: &Guard, outcome: Outcome, text: &str) -> bool {
        if outcome == Outcome::Lost && matches!(self.policy.crash, Crash::Retry { .. }) {
            return false;
        }
        let (clock, token) = (self.locks.clock(), guard.token().0);
        let give_up = clock.now().after(ENTERING.max(self.locks.shared.ttl));
        let mut failures = 0;
        loop {
            match self.try_entering(token, outcome, text).await {
                Ok(Some(entered)) => return entered,
                Ok(None) => {}
                Err(error) => {
                    let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
                    let (first, most) = (Duration::from_millis(50), Duration::from_secs(2));
                    let pause = crate::logic::backoff::pause(failures, first, most, dice);
                    failures += 1;
                    self.job.tell(&Event::Trouble { error: error.to_string(), again_in: pause });
                    clock.sleep_until(clock.now().after(pause)).await;
                    if !may_pass(&error) {
                        return false;
                    }
                }
            }
            if clock.now() >= give_up {
                return false;
            }
        }
    }

    /// `None`: another client wrote meanwhile.
    async fn try_entering(&self, token: u64, outcome: Outcome, text: &str) -> crate::Result<Option<bool>> {
        let loaded = self.store.load().await?;
        let Some(state) = loaded.state.as_ref() else { return Ok(Some(false)) };
        match state.finished(token, outcome, text, loaded.millis()) {
            Some(after) => Ok(self.store.save(loaded.version, &after).await?.then_some(true)),
            // We wrote it and the reply was lost; or the run was taken for dead.
            None => {
                let ours = |run: &Running| run.token == token;
                let entry = state.history.iter().rev().find(|entry| entry.run.as_ref().is_some_and(ours));
                Ok(Some(entry.is_some_and(|entry| entry.outcome == outcome)))
            }
        }
    }
}

fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

fn tick_time(run: &Running) -> Duration {
    Duration::from_secs(u64::try_from(run.tick).unwrap_or(0))
}

fn shorten(text: &str) -> String {
    let end = (0..=MOST_TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
