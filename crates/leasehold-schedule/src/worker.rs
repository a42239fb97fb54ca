//! One job on one node: read the record, wait, acquire the lock, decide, run, record the end.

use std::sync::Arc;
use std::time::Duration;

use super::event::JobEvent;
use super::job::Job;
use super::job_store::{JobStore, LoadedRecord};
use super::stop_handle::StopHandle;
use super::tick::Tick;
use crate::logic::{
    self as rules, Action, ActiveRun, Crash, DecisionEvent, DecisionInput, JobRecord, Overlap, PendingWork, Policy,
    Ticks,
};
use leasehold::Guard;
use leasehold::Holder;
use leasehold::Locks;
use leasehold::{Error, ErrorKind, Result};

/// How often a node reads the record while no tick is due. A resumption, a manual run and a jump of
/// the engine's clock are noticed within this time.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// How long a node without a run to take over waits in the lock's queue before it checks again
/// whether there is work.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(10);

/// How long a call that could not get the lock checks whether the lock's holder has recorded the
/// run. The holder writes the entry two steps after it acquired the lock.
const RECORD_CHECK_TIME: Duration = Duration::from_secs(2);
/// The pause between two such reads of the record.
const RECORD_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The pause after the first error of the engine; it grows with each further error.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause after an error of the engine.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// How many times a call for one tick only tries again after an error of the engine.
const MAX_FAILURES: u32 = 12;

/// One job on one node.
pub(super) struct JobWorker {
    pub(super) locks: Locks,
    pub(super) job: Job,
    pub(super) store: JobStore,
    pub(super) stop: StopHandle,
    pub(super) policy: Policy,
    pub(super) node: String,
    /// Since when this node has the schedule, in seconds since 1970.
    pub(super) since: i64,
    /// The limits of a call for one tick only; `None` if the job runs until it is stopped.
    pub(super) once: Option<OnceLimits>,
}

/// How long a call for one tick only waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnceLimits {
    /// The last tick that it waits for, in seconds since 1970; `i64::MIN` if it waits for none.
    pub(super) last_tick: i64,
    /// How long it waits for the job's lock; `None` for any time.
    pub(super) timeout: Option<Duration>,
}

/// What a worker does after it has read the record once.
pub(super) enum Turn {
    /// Start this run, which the record already lists.
    Run(Guard, ActiveRun),
    /// Take another turn, which reads the record again.
    Repeat,
    /// No work is left for this worker.
    Finished,
}

impl JobWorker {
    pub(super) fn new(locks: &Locks, job: Job, stop: StopHandle) -> Result<Self> {
        job.check_options(locks)?;
        let store = JobStore::new(locks, job.lock_name().clone())?;
        let Holder { host, pid, .. } = locks.holder();
        let (node, policy) = (format!("{host}:{pid}"), job.policy());
        Ok(Self { locks: locks.clone(), job, store, stop, policy, node, since: 0, once: None })
    }

    /// The job's cron expression and its time zone.
    fn schedule(&self) -> (&str, &str) {
        (self.job.cron.as_str(), self.job.cron.zone())
    }

    fn allows_concurrent_runs(&self) -> bool {
        matches!(self.policy.overlap, Overlap::Allow { .. })
    }

    /// Creates the record if the job is new; `since` maps the engine's present time to the time
    /// from which the job has ticks. Returns the present time. `None`: stopped before that.
    pub(super) async fn join(&mut self, since: impl Fn(i64) -> i64) -> Result<Option<i64>> {
        let mut failures = 0;
        loop {
            match self.create_record(&since).await {
                Ok(Some((state, now))) => {
                    let next = self.job.cron.next(state.watermark.max(self.since)).map(Tick::from_unix);
                    self.job.emit(&JobEvent::Joined { next });
                    return Ok(Some(now));
                }
                Ok(None) => {}
                Err(error) => self.pause_after_error(error, &mut failures).await?,
            }
            if self.stop.is_stopped() {
                return Ok(None);
            }
        }
    }

    /// Reads the record, and creates it if there is none. Returns it with the engine's time in
    /// seconds; `None` if another client created it first.
    async fn create_record(&mut self, since: impl Fn(i64) -> i64) -> Result<Option<(JobRecord, i64)>> {
        let loaded = self.store.load().await?;
        let now = loaded.seconds();
        self.since = since(now);
        if let Some(state) = loaded.state {
            if let Some(by) = state.seconds_ahead(now) {
                self.job.emit(&JobEvent::ClockBehind { by: duration_from_seconds(by) });
            }
            return Ok(Some((state, now)));
        }
        let (schedule, zone) = self.schedule();
        let state = JobRecord::new(schedule, zone, self.since);
        Ok(self.store.save(loaded.version, &state).await?.then_some((state, now)))
    }

    /// Pauses after an error that may pass, and counts it in `failures`; returns any other error.
    pub(super) async fn pause_after_error(&self, error: Error, failures: &mut u32) -> Result<()> {
        use ErrorKind as Kind;
        let passes = match error.kind() {
            // Waiting does not help against these.
            Kind::InvalidUrl | Kind::UnknownScheme | Kind::FeatureDisabled | Kind::InvalidName => false,
            Kind::InvalidOption | Kind::Unsupported | Kind::Closed => false,
            // A refusal, a full queue or an unreadable record may be fixed during the wait; until
            // then no tick runs.
            Kind::Timeout | Kind::Corrupt | Kind::UnknownFormat | Kind::Conflict => self.once.is_none(),
            Kind::Denied | Kind::Full | Kind::ForceReleased => self.once.is_none(),
            _ => true,
        };
        if !passes || (self.once.is_some() && *failures >= MAX_FAILURES) {
            return Err(error);
        }
        let random = (leasehold_internals::random::random_bits() & u128::from(u32::MAX)) as u32;
        let pause = leasehold_internals::logic::backoff::pause(*failures, FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE, random);
        *failures += 1;
        self.job.emit(&JobEvent::EngineFailed { error: error.to_string(), retry_in: pause });
        let clock = self.locks.clock();
        tokio::select! {
            () = clock.sleep_until(clock.now().saturating_add(pause)) => {}
            () = self.stop.stopped() => {}
        }
        Ok(())
    }

    /// Reads the record once and acts on it. Returns early only where no run is in progress.
    pub(super) async fn take_turn(&self) -> Result<Turn> {
        if self.stop.is_stopped() {
            return Ok(Turn::Finished);
        }
        let loaded = self.store.load().await?;
        match self.pending_work(&loaded) {
            PendingWork::Due if self.leaves_run_in_progress(&loaded).await? => Ok(Turn::Finished),
            PendingWork::Due => self.acquire_and_decide(&loaded, matches!(self.policy.crash, Crash::AtMostOnce)).await,
            PendingWork::WatchRun if !self.allows_concurrent_runs() => self.acquire_and_decide(&loaded, false).await,
            PendingWork::WatchRun => self.watch_concurrent_runs(&loaded).await,
            PendingWork::Idle(_) if self.has_dead_run(&loaded).await? => self.acquire_and_decide(&loaded, true).await,
            PendingWork::Idle(next) => self.idle(&loaded, next).await,
        }
    }

    /// The work to do, according to the record.
    fn pending_work(&self, loaded: &LoadedRecord) -> PendingWork {
        // An operator removed the record, or it was lost: the next holder of the lock creates it
        // again.
        let Some(mut state) = loaded.state.clone() else { return PendingWork::Due };
        // A record that fell behind the state that this node saw is corrected with the next
        // decision.
        let _ = loaded.seen.map(|seen| seen.restore(&mut state));
        rules::pending_work(&state, &self.job.cron, self.schedule(), &self.policy, self.since, loaded.seconds())
    }

    /// Whether the record lists a run whose node died and which will not run again. It must be
    /// recorded as crashed, although no tick is due. (With retries, the nodes already wait in the
    /// lock's queue.)
    async fn has_dead_run(&self, loaded: &LoadedRecord) -> Result<bool> {
        let running = loaded.state.as_ref().map_or(&[][..], |state| &state.running);
        if running.is_empty() || self.policy.crash != Crash::AtMostOnce || !self.locks.capabilities().inspection {
            return Ok(false);
        }
        // Where the engine does not show the holders' tokens, the dead run is found with the next
        // tick.
        let holders = self.holder_tokens().await?;
        Ok(holders.is_some_and(|holders| running.iter().any(|run| !holders.contains(&run.token))))
    }

    /// Whether a waiter has work when it gets the lock. Only a call for one tick has none, if it
    /// neither takes over runs nor runs ticks that came due meanwhile.
    fn needs_the_lock(&self) -> bool {
        self.once.is_none() || self.policy.overlap != Overlap::Skip || self.policy.crash != Crash::AtMostOnce
    }

    /// Whether the present holder of the lock runs the tick of this call, which did not get the
    /// lock in time. Checks for a while: the record shows a run only some time after its lock was
    /// granted.
    async fn is_done_elsewhere(&self) -> Result<bool> {
        if self.needs_the_lock() {
            return Ok(false);
        }
        let clock = self.locks.clock();
        let give_up_at = clock.now().saturating_add(RECORD_CHECK_TIME);
        loop {
            let loaded = self.store.load().await?;
            if self.pending_work(&loaded) != PendingWork::Due || self.leaves_run_in_progress(&loaded).await? {
                return Ok(true);
            }
            if clock.now() >= give_up_at {
                return Ok(false);
            }
            clock.sleep_until(clock.now().saturating_add(RECORD_CHECK_INTERVAL)).await;
        }
    }

    /// Whether a run is in progress that a call for one tick does not wait for. Ticks that come due
    /// during the run do not run anyway, and the calls would pile up in the lock's queue.
    async fn leaves_run_in_progress(&self, loaded: &LoadedRecord) -> Result<bool> {
        let running = loaded.state.as_ref().map_or(&[][..], |state| &state.running);
        if running.is_empty() || self.needs_the_lock() || !self.locks.capabilities().inspection {
            return Ok(false);
        }
        let view = self.locks.inspect(self.job.lock_name()).await?;
        view.check_intact()?;
        // Where the engine shows no tokens, any holder of the lock counts as the run.
        let is_live = |run: &&ActiveRun| {
            view.holders.iter().any(|contender| contender.token.is_none_or(|token| token.0 == run.token))
        };
        let Some(run) = running.iter().find(is_live) else { return Ok(false) };
        self.job.emit(&JobEvent::RunInProgress { run: run.clone() });
        Ok(true)
    }

    /// Sleeps until the next tick, but at most until the next read of the record.
    async fn idle(&self, loaded: &LoadedRecord, next: Option<i64>) -> Result<Turn> {
        if let Some(once) = self.once
            && next.is_none_or(|next| next > once.last_tick)
        {
            return Ok(Turn::Finished);
        }
        self.sleep_until_tick(loaded, next, POLL_INTERVAL).await;
        Ok(Turn::Repeat)
    }

    /// Sleeps until the engine's clock shows `next`, but at most for `most` (for `None`: exactly
    /// that long), as measured by this node's clock.
    async fn sleep_until_tick(&self, loaded: &LoadedRecord, next: Option<i64>, most: Duration) {
        let until = next.and_then(|next| u64::try_from(next).ok()).map(Duration::from_secs);
        let left = until.map_or(most, |until| until.saturating_sub(loaded.engine_time)).min(most);
        let clock = self.locks.clock();
        tokio::select! {
            () = clock.sleep_until(loaded.read_at.saturating_add(left.max(Duration::from_millis(1)))) => {}
            () = self.stop.stopped() => {}
        }
    }

    /// Takes over a concurrent run if its holder is gone; otherwise sleeps until the next check.
    /// With concurrent runs, nodes do not wait in the lock's queue for that.
    async fn watch_concurrent_runs(&self, loaded: &LoadedRecord) -> Result<Turn> {
        let holders = self.required_holder_tokens().await?;
        let state = loaded.state.as_ref();
        if state.is_some_and(|state| state.running.iter().any(|run| !holders.contains(&run.token))) {
            return self.acquire_and_decide(loaded, true).await;
        }
        let next = state.and_then(|state| self.job.cron.next(state.watermark));
        let ttl = self.job.ttl.unwrap_or(self.locks.ttl());
        self.sleep_until_tick(loaded, next, (ttl / 3).min(POLL_INTERVAL)).await;
        Ok(Turn::Repeat)
    }

    /// The tokens of the holders; `None` if the engine does not show all of them.
    async fn holder_tokens(&self) -> Result<Option<Vec<u64>>> {
        let view = self.locks.inspect(self.job.lock_name()).await?;
        view.check_intact()?;
        Ok(view.holders.iter().map(|contender| Some(contender.token?.0)).collect())
    }

    /// The tokens of all holders, which concurrent runs need: a run whose token is not among them
    /// is dead. `Unsupported` if the engine does not show them.
    async fn required_holder_tokens(&self) -> Result<Vec<u64>> {
        let unknown =
            || Error::new(ErrorKind::Unsupported, "does not show the tokens of holders, which concurrent runs need");
        self.holder_tokens().await?.ok_or_else(|| self.locks.add_location(unknown()))
    }

    /// Acquires the lock and decides. With `leaves_queue` it waits at most [`MAX_QUEUE_TIME`], and
    /// then reads the record again.
    async fn acquire_and_decide(&self, loaded: &LoadedRecord, leaves_queue: bool) -> Result<Turn> {
        let once = self.once.and_then(|once| once.timeout);
        let wait = once.or_else(|| leaves_queue.then_some(MAX_QUEUE_TIME));
        let guard = tokio::select! {
            biased;
            guard = self.lock(wait) => guard,
            () = self.stop.stopped() => return Ok(Turn::Finished),
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout && once.is_none() => return Ok(Turn::Repeat),
            Err(error) if error.kind() == ErrorKind::Timeout && self.is_done_elsewhere().await? => {
                return Ok(Turn::Finished);
            }
            Err(error) => return Err(error),
        };
        let mut failures = 0;
        loop {
            match self.decide(&guard).await {
                Ok(Some(Action::Start(run))) => return Ok(Turn::Run(guard, run)),
                Ok(Some(Action::None)) => break,
                Ok(Some(Action::Superseded(fence))) => {
                    self.job.emit(&JobEvent::Superseded { token: guard.token().0, newer_token: fence });
                    self.sleep_until_tick(loaded, None, MAX_RETRY_PAUSE).await;
                    break;
                }
                // The record has changed: start over.
                Ok(None) => {}
                Err(error) => self.pause_after_error(error, &mut failures).await?,
            }
            if !guard.is_held() || self.stop.is_stopped() {
                break;
            }
        }
        let _ = guard.release().await?;
        Ok(Turn::Repeat)
    }

    /// Acquires the job's lock, or one of its permits with `Overlap::Allow`. Waits at most
    /// `timeout`; `None` for any time.
    async fn lock(&self, timeout: Option<Duration>) -> Result<Guard> {
        /// The options that both lock types have.
        macro_rules! with_options {
            ($lock:expr) => {{
                let mut lock = $lock;
                if let Some(ttl) = self.job.ttl {
                    lock = lock.ttl(ttl);
                }
                if let Some(most) = self.job.max_hold {
                    lock = lock.max_hold(most);
                }
                if let Some(timeout) = timeout {
                    lock = lock.timeout(timeout);
                }
                if let Some(text) = &self.job.describe {
                    lock = lock.describe(text);
                }
                lock
            }};
        }
        match self.policy.overlap {
            Overlap::Allow { max } => with_options!(self.locks.semaphore(self.job.lock_name(), max)).acquire(1).await,
            _ => with_options!(self.locks.mutex(self.job.lock_name())).lock().await,
        }
    }

    /// Reads the record under the lock, decides, and writes the decision if it must be stored.
    /// `None`: it was not written, because another client wrote meanwhile or the servers have lost
    /// data since the read.
    async fn decide(&self, guard: &Guard) -> Result<Option<Action>> {
        let loaded = self.store.load().await?;
        // After the record, so that a run that is recorded and holds is found.
        let concurrent_tokens =
            if self.allows_concurrent_runs() { self.required_holder_tokens().await? } else { Vec::new() };
        let decision = rules::decide(
            loaded.state.as_ref(),
            &DecisionInput {
                schedule: self.schedule(),
                ticks: &self.job.cron,
                policy: &self.policy,
                since: self.since,
                seen: loaded.seen,
                server_run: loaded.server_run(),
                now: loaded.millis(),
                token: guard.token().0,
                node: &self.node,
                concurrent_tokens: &concurrent_tokens,
            },
        );
        if matches!(decision.action, Action::Superseded(_)) {
            return Ok(Some(decision.action));
        }
        if decision.must_be_written(loaded.state.as_ref())
            && !self.store.save_decision(&loaded, &decision.state).await?
        {
            return Ok(None);
        }
        self.report_events(&decision.events, decision.state.watermark, loaded.seconds());
        Ok(Some(decision.action))
    }

    fn report_events(&self, events: &[DecisionEvent], watermark: i64, now: i64) {
        let metrics = leasehold_internals::metrics::of(&self.locks);
        for event in events {
            match event {
                DecisionEvent::TicksSkipped(entry) => {
                    metrics.increment("leasehold_schedule_ticks_total", Some(("result", entry.outcome.as_str())));
                    self.job.emit(&JobEvent::TicksSkipped(entry.clone()));
                }
                DecisionEvent::RunCrashed(run, will_retry) => {
                    metrics.increment("leasehold_schedule_ticks_total", Some(("result", "crashed")));
                    self.job.emit(&JobEvent::RunCrashed { run: run.clone(), will_retry: *will_retry });
                }
                DecisionEvent::ScheduleChanged(from) => {
                    self.job.emit(&JobEvent::ScheduleChanged { previous: from.clone() })
                }
            }
        }
        if watermark.saturating_sub(now) > rules::MAX_WATERMARK_AHEAD {
            self.job.emit(&JobEvent::ClockBehind { by: duration_from_seconds(watermark - now) });
        }
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.job.name().into()
    }
}

fn duration_from_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
