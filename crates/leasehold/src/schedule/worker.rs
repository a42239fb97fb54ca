//! One job on one node: look, wait, acquire the lock, decide, run, record the end.

use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use super::job::Job;
use super::stop::Stop;
use super::store::{Loaded, Store};
use super::tick::Tick;
use crate::claim::Holder;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::locks::Locks;
use crate::logic::schedule::{self as rules, Action, Crash, Note, Overlap, Policy, Running, Scene, State, Ticks, Work};

/// How often the record is read while nothing is due. A resumption, a manual run and a jump of the
/// engine's clock are noticed within this time.
const LOOK: Duration = Duration::from_secs(10);

/// How long a node that has nothing to take over waits in the lock's queue before it checks whether
/// there still is work.
const IN_LINE: Duration = Duration::from_secs(10);

/// How long, and how often, a call that does not wait checks whether the lock's holder has recorded
/// the run: the holder acquires the lock first, and writes the entry two steps later.
const ENTRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(20));

/// The pause after an error: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a call for one tick only retries an engine that fails.
const PATIENCE: u32 = 12;

/// One job on one node.
pub(super) struct Worker {
    pub(super) locks: Locks,
    pub(super) job: Job,
    pub(super) store: Store,
    pub(super) stop: Stop,
    pub(super) policy: Policy,
    pub(super) node: String,
    /// Since when this node has the schedule.
    pub(super) since: i64,
    /// The limits of a call for one tick only.
    pub(super) once: Option<Once>,
}

/// The last tick that a call for one tick only waits for, and how long it waits for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Once {
    pub(super) last: i64,
    pub(super) wait: Option<Duration>,
}

/// The result of a turn.
pub(super) enum Turn {
    /// Run this; the record has the run already.
    Run(Guard, Running),
    /// Look again.
    Again,
    /// There is nothing more to do here.
    Over,
}

impl Worker {
    pub(super) fn new(locks: &Locks, job: Job, stop: Stop) -> Result<Self> {
        job.check(locks)?;
        let store = Store::new(locks, job.lock_name().clone())?;
        let Holder { host, pid, .. } = &*locks.shared.holder;
        let (node, policy) = (format!("{host}:{pid}"), job.policy());
        Ok(Self { locks: locks.clone(), job, store, stop, policy, node, since: 0, once: None })
    }

    fn schedule(&self) -> (&str, &str) {
        (self.job.cron.as_str(), self.job.cron.zone())
    }

    fn may_be_beside(&self) -> bool {
        matches!(self.policy.overlap, Overlap::Allow { .. })
    }

    /// Makes the job known if it is new; `since` maps the engine's present time to the time from
    /// which the job has ticks. Returns the present time. `None`: stopped before that.
    pub(super) async fn join(&mut self, since: impl Fn(i64) -> i64) -> Result<Option<i64>> {
        let mut failures = 0;
        loop {
            match self.introduce(&since).await {
                Ok(Some((state, now))) => {
                    let next = self.job.cron.next(state.watermark.max(self.since)).map(Tick::from_unix);
                    self.job.tell(&Event::Joined { next });
                    return Ok(Some(now));
                }
                Ok(None) => {}
                Err(error) => self.after(error, &mut failures).await?,
            }
            if self.stop.is_stopped() {
                return Ok(None);
            }
        }
    }

    async fn introduce(&mut self, since: impl Fn(i64) -> i64) -> Result<Option<(State, i64)>> {
        let loaded = self.store.load().await?;
        let now = loaded.seconds();
        self.since = since(now);
        if let Some(state) = loaded.state {
            if let Some(by) = state.ahead(now) {
                self.job.tell(&Event::ClockBehind { by: seconds(by) });
            }
            return Ok(Some((state, now)));
        }
        let (schedule, zone) = self.schedule();
        let state = State::new(schedule, zone, self.since);
        Ok(self.store.save(loaded.version, &state).await?.then_some((state, now)))
    }

    /// Pauses after an error that may pass; returns any other.
    pub(super) async fn after(&self, error: Error, failures: &mut u32) -> Result<()> {
        use ErrorKind as Kind;
        let passes = match error.kind() {
            // Waiting does not help against these.
            Kind::InvalidUrl | Kind::UnknownScheme | Kind::FeatureDisabled | Kind::InvalidName => false,
            Kind::InvalidOption | Kind::Unsupported | Kind::Closed => false,
            // A refusal, a full queue or an unreadable record may be fixed while we wait; until
            // then nothing runs.
            Kind::Timeout | Kind::Corrupt | Kind::Conflict | Kind::Denied | Kind::Full | Kind::Evicted => {
                self.once.is_none()
            }
            _ => true,
        };
        if !passes || (self.once.is_some() && *failures >= PATIENCE) {
            return Err(error);
        }
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let pause = crate::logic::backoff::pause(*failures, PAUSES.0, PAUSES.1, dice);
        *failures += 1;
        self.job.tell(&Event::Trouble { error: error.to_string(), again_in: pause });
        let clock = self.locks.clock();
        tokio::select! {
            () = clock.sleep_until(clock.now().after(pause)) => {}
            () = self.stop.stopped() => {}
        }
        Ok(())
    }

    /// One look at the record, and what follows from it. Returns early only where nothing is in
    /// progress.
    pub(super) async fn turn(&self) -> Result<Turn> {
        if self.stop.is_stopped() {
            return Ok(Turn::Over);
        }
        let loaded = self.store.load().await?;
        match self.work(&loaded) {
            Work::Now if self.leaves_it(&loaded).await? => Ok(Turn::Over),
            Work::Now => self.take(&loaded, matches!(self.policy.crash, Crash::AtMostOnce)).await,
            Work::Watch if !self.may_be_beside() => self.take(&loaded, false).await,
            Work::Watch => self.watch_beside(&loaded).await,
            Work::Idle(_) if self.has_dead_run(&loaded).await? => self.take(&loaded, true).await,
            Work::Idle(next) => self.idle(&loaded, next).await,
        }
    }

    /// The work to do, according to the record.
    fn work(&self, loaded: &Loaded) -> Work {
        // An operator removed the record, or it was lost: the next holder of the lock creates it
        // again.
        let Some(mut state) = loaded.state.clone() else { return Work::Now };
        // A record that fell behind what we have seen is corrected with the next decision.
        let _ = loaded.seen.map(|seen| seen.restore(&mut state));
        rules::look(&state, &self.job.cron, self.schedule(), &self.policy, self.since, loaded.seconds())
    }

    /// Whether the record lists a run whose node died and which will not run again. It must be
    /// recorded as crashed, though no tick is due. (With retries, the nodes already wait in the
    /// lock's queue.)
    async fn has_dead_run(&self, loaded: &Loaded) -> Result<bool> {
        let running = loaded.state.as_ref().map_or(&[][..], |state| &state.running);
        if running.is_empty() || self.policy.crash != Crash::AtMostOnce || !self.locks.capabilities().inspection {
            return Ok(false);
        }
        // Where the engine does not show the holders' tokens, the dead run is found with the next
        // tick.
        let holders = self.holders().await?;
        Ok(holders.is_some_and(|holders| running.iter().any(|run| !holders.contains(&run.token))))
    }

    /// Whether a waiter has work when it gets the lock. Only a call for one tick has none, if it
    /// neither takes over runs nor runs ticks that came due meanwhile.
    fn has_a_turn(&self) -> bool {
        self.once.is_none() || self.policy.overlap != Overlap::Skip || self.policy.crash != Crash::AtMostOnce
    }

    /// Whether the holder of the lock, for which we do not wait, does what we came for. The record
    /// may not show it yet when the lock is granted.
    async fn is_done_elsewhere(&self) -> Result<bool> {
        if self.has_a_turn() {
            return Ok(false);
        }
        let clock = self.locks.clock();
        let give_up = clock.now().after(ENTRY.0);
        loop {
            let loaded = self.store.load().await?;
            if self.work(&loaded) != Work::Now || self.leaves_it(&loaded).await? {
                return Ok(true);
            }
            if clock.now() >= give_up {
                return Ok(false);
            }
            clock.sleep_until(clock.now().after(ENTRY.1)).await;
        }
    }

    /// Whether a run is in progress that a call for one tick does not wait for: ticks that came due
    /// meanwhile do not run, and calls would pile up in the queue.
    async fn leaves_it(&self, loaded: &Loaded) -> Result<bool> {
        let running = loaded.state.as_ref().map_or(&[][..], |state| &state.running);
        if running.is_empty() || self.has_a_turn() || !self.locks.capabilities().inspection {
            return Ok(false);
        }
        let view = self.locks.inspect(self.job.lock_name()).await?;
        // Where the engine shows no tokens, any holder of the lock is taken for the run.
        let is_live =
            |run: &&Running| view.holders.iter().any(|party| party.token.is_none_or(|token| token.0 == run.token));
        let Some(run) = running.iter().find(is_live) else { return Ok(false) };
        self.job.tell(&Event::GoesOn { run: run.clone() });
        Ok(true)
    }

    /// Sleeps until the next tick, but never long without a look.
    async fn idle(&self, loaded: &Loaded, next: Option<i64>) -> Result<Turn> {
        if let Some(once) = self.once
            && next.is_none_or(|next| next > once.last)
        {
            return Ok(Turn::Over);
        }
        self.sleep(loaded, next, LOOK).await;
        Ok(Turn::Again)
    }

    /// Sleeps until the engine's clock shows `next`, as measured by our clock.
    async fn sleep(&self, loaded: &Loaded, next: Option<i64>, most: Duration) {
        let until = next.and_then(|next| u64::try_from(next).ok()).map(Duration::from_secs);
        let left = until.map_or(most, |until| until.saturating_sub(loaded.now)).min(most);
        let clock = self.locks.clock();
        tokio::select! {
            () = clock.sleep_until(loaded.at.after(left.max(Duration::from_millis(1)))) => {}
            () = self.stop.stopped() => {}
        }
    }

    /// With concurrent runs no node waits in the queue: it looks up the remaining holders.
    async fn watch_beside(&self, loaded: &Loaded) -> Result<Turn> {
        let holders = self.beside().await?;
        let state = loaded.state.as_ref();
        if state.is_some_and(|state| state.running.iter().any(|run| !holders.contains(&run.token))) {
            return self.take(loaded, true).await;
        }
        let next = state.and_then(|state| self.job.cron.next(state.watermark));
        let ttl = self.job.ttl.unwrap_or(self.locks.shared.ttl);
        self.sleep(loaded, next, (ttl / 3).min(LOOK)).await;
        Ok(Turn::Again)
    }

    /// The tokens of the holders; `None` if the engine does not show all of them.
    async fn holders(&self) -> Result<Option<Vec<u64>>> {
        let view = self.locks.inspect(self.job.lock_name()).await?;
        Ok(view.holders.iter().map(|party| Some(party.token?.0)).collect())
    }

    /// The same where the tokens must be known: a run that is not among them is taken for dead.
    async fn beside(&self) -> Result<Vec<u64>> {
        let unknown =
            || Error::new(ErrorKind::Unsupported, "does not show the tokens of holders, which runs side by side need");
        self.holders().await?.ok_or_else(|| self.locks.shared.locate(unknown()))
    }

    /// Acquires the lock and decides.
    async fn take(&self, loaded: &Loaded, leaves_line: bool) -> Result<Turn> {
        let once = self.once.and_then(|once| once.wait);
        let wait = once.or_else(|| leaves_line.then_some(IN_LINE));
        let guard = tokio::select! {
            biased;
            guard = self.lock(wait) => guard,
            () = self.stop.stopped() => return Ok(Turn::Over),
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout && once.is_none() => return Ok(Turn::Again),
            Err(error) if error.kind() == ErrorKind::Timeout && self.is_done_elsewhere().await? => {
                return Ok(Turn::Over);
            }
            Err(error) => return Err(error),
        };
        let mut failures = 0;
        loop {
            match self.decide(&guard).await {
                Ok(Some(Action::Start(run))) => return Ok(Turn::Run(guard, run)),
                Ok(Some(Action::Nothing)) => break,
                Ok(Some(Action::Stale(fence))) => {
                    self.job.tell(&Event::Stale { token: guard.token().0, fence });
                    self.sleep(loaded, None, PAUSES.1).await;
                    break;
                }
                // Another client wrote: start over.
                Ok(None) => {}
                Err(error) => self.after(error, &mut failures).await?,
            }
            if !guard.is_held() || self.stop.is_stopped() {
                break;
            }
        }
        let _ = guard.release().await?;
        Ok(Turn::Again)
    }

    async fn lock(&self, wait: Option<Duration>) -> Result<Guard> {
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
                if let Some(wait) = wait {
                    lock = lock.wait(wait);
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

    /// Reads the record under the lock, decides, and writes the decision. `None`: another client
    /// wrote meanwhile.
    async fn decide(&self, guard: &Guard) -> Result<Option<Action>> {
        let loaded = self.store.load().await?;
        // After the record, so that a run that is recorded and holds is found.
        let beside = if self.may_be_beside() { self.beside().await? } else { Vec::new() };
        let decision = rules::decide(
            loaded.state.as_ref(),
            &Scene {
                schedule: self.schedule(),
                timetable: &self.job.cron,
                policy: &self.policy,
                since: self.since,
                seen: loaded.seen,
                run: loaded.run(),
                now: loaded.millis(),
                token: guard.token().0,
                node: &self.node,
                beside: &beside,
            },
        );
        if matches!(decision.action, Action::Stale(_)) {
            return Ok(Some(decision.action));
        }
        if decision.is_to_be_written_over(loaded.state.as_ref())
            && !self.store.save_decision(&loaded, &decision.state).await?
        {
            return Ok(None);
        }
        self.tell(&decision.notes, decision.state.watermark, loaded.seconds());
        Ok(Some(decision.action))
    }

    fn tell(&self, notes: &[Note], watermark: i64, now: i64) {
        let gauges = &self.locks.shared.desk.gauges;
        for note in notes {
            match note {
                Note::Skipped(entry) => {
                    gauges.count("leasehold_schedule_ticks_total", Some(("result", entry.outcome.as_str())));
                    self.job.tell(&Event::Skipped(entry.clone()));
                }
                Note::Crashed(run, again) => {
                    gauges.count("leasehold_schedule_ticks_total", Some(("result", "crashed")));
                    self.job.tell(&Event::Crashed { run: run.clone(), again: *again });
                }
                Note::Rescheduled(from) => self.job.tell(&Event::Rescheduled { from: from.clone() }),
            }
        }
        if watermark.saturating_sub(now) > rules::AHEAD {
            self.job.tell(&Event::ClockBehind { by: seconds(watermark - now) });
        }
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.job.name().into()
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
