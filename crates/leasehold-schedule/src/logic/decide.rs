//! Decides under the lock which run to start.

use super::job_record::{ActiveRun, HistoryEntry, JobRecord, OperatorRequest, TickOutcome};
use super::pending_work::last_settled_tick;
use super::seen_state::SeenState;
use super::ticks::{DueTicks, Ticks, due_ticks};
use super::{Crash, MAX_TICKS, Missed, Overlap, Policy};

/// The note on a run with a known start and an unknown end.
const MAYBE_ENDED_NOTE: &str = "or the engine has lost its outcome";

/// The input of a decision, besides the record.
#[derive(Clone, Copy)]
pub struct DecisionInput<'a> {
    /// The job's expression and its time zone.
    pub schedule: (&'a str, &'a str),
    /// Its ticks.
    pub ticks: &'a dyn Ticks,
    /// Its policies.
    pub policy: &'a Policy,
    /// When this node first had the schedule: if the schedule is new, earlier ticks do not count.
    pub since: i64,
    /// The newest state of the record that this node has seen: no decision goes below it.
    pub seen: Option<SeenState>,
    /// The server run from which the record was read, and when it began, in seconds; `None`: the
    /// engine does not report it.
    pub server_run: Option<(&'a str, i64)>,
    /// The engine's time in milliseconds since 1970, read after the lock was granted.
    pub now: u64,
    /// The guard's token.
    pub token: u64,
    /// The name of this node.
    pub node: &'a str,
    /// The tokens of the other concurrent holders, read *after* the record; empty if there can be
    /// none.
    pub concurrent_tokens: &'a [u64],
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new record. It replaces the one that was read, before anything runs.
    pub state: JobRecord,
    /// The action once it is written.
    pub action: Action,
    /// Other decisions, to be reported.
    pub events: Vec<DecisionEvent>,
}

impl Decision {
    /// Whether the record must be written before acting on the decision. A higher token alone does
    /// not justify a write. A run that begins always does, even if our run is already in the
    /// record: the write that added it was not confirmed.
    pub fn must_be_written(&self, before: Option<&JobRecord>) -> bool {
        let but_for_fence = |state: &JobRecord| JobRecord { fence: 0, ..state.clone() };
        matches!(self.action, Action::Start(_))
            || before.is_none_or(|before| but_for_fence(before) != but_for_fence(&self.state))
    }
}

/// The action of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// No run.
    None,
    /// Start this run.
    Start(ActiveRun),
    /// A node with this higher token decided meanwhile: this node has lost the lock, even if its
    /// guard reports otherwise. Write nothing.
    Superseded(u64),
}

/// Other decisions, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionEvent {
    /// Ticks that will not run.
    TicksSkipped(HistoryEntry),
    /// A run whose holder died, and whether it is run again.
    RunCrashed(ActiveRun, bool),
    /// The schedule differs from the one of the node that decided last.
    ScheduleChanged(String),
}

/// Decides. `None`: the job is new or, if this node saw it before, its record is lost.
pub fn decide(state: Option<&JobRecord>, input: &DecisionInput<'_>) -> Decision {
    let is_lost = state.is_none() && input.seen.is_some();
    let state = state.cloned().unwrap_or_else(|| new_record(input));
    let may_be_beside = matches!(input.policy.overlap, Overlap::Allow { .. });
    if input.token < state.fence && !may_be_beside {
        let fence = state.fence;
        return Decision { state, action: Action::Superseded(fence), events: Vec::new() };
    }
    // Our own run: its entry was written, but the reply was lost or not all replicas confirmed it.
    // Write it again.
    if let Some(ours) = state.run_of(input.token).cloned() {
        return Decision { state, action: Action::Start(ours), events: Vec::new() };
    }
    let mut manager = Decider { state, input, events: Vec::new() };
    if is_lost {
        manager.restart_from_now();
    }
    let unknown = input.seen.map_or_else(Vec::new, |seen| seen.restore(&mut manager.state));
    manager.skip(TickOutcome::Unknown, &unknown);
    manager.check_server_run();
    manager.state.fence = manager.state.fence.max(input.token);
    let retried = manager.end_dead_runs();
    let next = retried.or_else(|| manager.choose_next_run());
    if let Some(run) = &next {
        manager.state.running.push(run.clone());
    }
    let action = next.map_or(Action::None, Action::Start);
    Decision { state: manager.state, action, events: manager.events }
}

/// A job without a record. If this node saw a record before, the job continues from there.
fn new_record(scene: &DecisionInput<'_>) -> JobRecord {
    let (schedule, zone) = scene.schedule;
    match scene.seen {
        None => JobRecord::new(schedule, zone, scene.since),
        Some(seen) => JobRecord { resets: seen.resets, ..JobRecord::new(schedule, zone, seen.watermark) },
    }
}

fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1000).unwrap_or(i64::MAX)
}

struct Decider<'a> {
    state: JobRecord,
    input: &'a DecisionInput<'a>,
    events: Vec<DecisionEvent>,
}

impl Decider<'_> {
    fn now(&self) -> i64 {
        seconds(self.input.now)
    }

    /// The record that this node saw is gone. It is unknown how often ticks since then have begun,
    /// so the job continues from now.
    fn restart_from_now(&mut self) {
        let from = self.state.watermark;
        let due = due_ticks(self.input.ticks, from, self.now(), MAX_TICKS);
        self.state.watermark = self.now().max(from);
        self.state.since = self.state.watermark;
        self.skip_due(TickOutcome::Unknown, &due);
    }

    /// In a server run that is new to the record, entries may have been lost. Ticks and manual runs
    /// up to the beginning of the server run may have begun.
    fn check_server_run(&mut self) {
        let Some((run, began)) = self.input.server_run else { return };
        if self.state.run == run {
            return;
        }
        run.clone_into(&mut self.state.run);
        self.state.doubt = self.state.doubt.max(began);
        if self.may_retry_uncertain() {
            return;
        }
        let doubt = self.state.doubt;
        let wanted = self.state.wanted.extract_if(.., |wanted| wanted.at <= doubt).map(|wanted| wanted.at);
        let mut unknown: Vec<i64> = wanted.collect();
        unknown.extend(self.state.queue.extract_if(.., |tick| *tick <= doubt));
        unknown.sort_unstable();
        self.skip(TickOutcome::Unknown, &unknown);
    }

    /// Whether a tick that may have begun is begun again. Not with concurrent runs: the deciding
    /// node may have acquired the lock before the run that was lost, so its token would be lower.
    fn may_retry_uncertain(&self) -> bool {
        let beside = matches!(self.input.policy.overlap, Overlap::Allow { .. });
        !beside && matches!(self.input.policy.crash, Crash::Retry { attempts } if attempts > 1)
    }

    /// The first attempt that we know of; if the tick may have begun before, this counts as the
    /// second.
    fn first_attempt(&self, tick: i64, manual: bool) -> ActiveRun {
        self.start_run(tick, if tick <= self.state.doubt { 2 } else { 1 }, manual)
    }

    fn start_run(&self, tick: i64, attempt: u32, manual: bool) -> ActiveRun {
        let (token, node, started) = (self.input.token, self.input.node.to_owned(), self.input.now);
        ActiveRun { tick, token, node, started, attempt, manual }
    }

    /// Ends the runs whose holders are dead, and returns one that must run again. The holder of the
    /// lock knows that there are no other holders but those in `concurrent_tokens`.
    fn end_dead_runs(&mut self) -> Option<ActiveRun> {
        let mut again = None;
        let all = std::mem::take(&mut self.state.running);
        for run in all {
            let in_doubt = i64::try_from(run.started / 1000).is_ok_and(|started| started <= self.state.doubt);
            let may_retry = match self.input.policy.crash {
                Crash::AtMostOnce => false,
                Crash::Retry { attempts } => run.attempt < attempts && (!in_doubt || self.may_retry_uncertain()),
            };
            // One at a time, none during a pause, and none with a lower token than the dead run
            // had: a node that was granted the lock earlier may decide later. Such a run stays in
            // the record and is found again.
            let is_older = self.input.token < run.token;
            let later = may_retry && (again.is_some() || self.state.paused.is_some() || is_older);
            if later || self.input.concurrent_tokens.contains(&run.token) {
                self.state.running.push(run);
                continue;
            }
            if may_retry {
                again = Some(self.start_run(run.tick, run.attempt + 1, run.manual));
            }
            self.events.push(DecisionEvent::RunCrashed(run.clone(), may_retry));
            let (tick, at) = (run.tick, self.input.now);
            let text = if in_doubt { MAYBE_ENDED_NOTE.to_owned() } else { String::new() };
            let outcome = TickOutcome::Crashed;
            self.state.push_history(HistoryEntry { tick, outcome, count: 1, run: Some(run), at, text });
        }
        again
    }

    /// The next run: first the manual runs, then the schedule.
    fn choose_next_run(&mut self) -> Option<ActiveRun> {
        if self.state.paused.is_none() {
            self.judge_due_ticks();
        }
        if !self.state.wanted.is_empty() {
            let OperatorRequest { at, .. } = self.state.wanted.remove(0);
            return Some(self.first_attempt(at, true));
        }
        if self.state.paused.is_some() || self.state.queue.is_empty() {
            return None;
        }
        let tick = self.state.queue.remove(0);
        Some(self.first_attempt(tick, false))
    }

    /// Judges every tick that came due since the last decision: each is queued or skipped, once.
    fn judge_due_ticks(&mut self) {
        let (schedule, zone) = self.input.schedule;
        let floor = last_settled_tick(&self.state, schedule, zone, self.input.since);
        let mut due = due_ticks(self.input.ticks, floor, self.now(), MAX_TICKS);
        if (self.state.schedule.as_str(), self.state.zone.as_str()) != (schedule, zone) {
            self.events
                .push(DecisionEvent::ScheduleChanged(std::mem::replace(&mut self.state.schedule, schedule.to_owned())));
            zone.clone_into(&mut self.state.zone);
            self.state.watermark = floor;
        }
        let Some(newest) = due.ticks.last().copied() else { return };
        self.state.watermark = newest;
        if !self.may_retry_uncertain() {
            let doubt = self.state.doubt;
            let unknown: Vec<i64> = due.ticks.extract_if(.., |tick| *tick <= doubt).collect();
            if !unknown.is_empty() {
                self.skip_due(
                    TickOutcome::Unknown,
                    &DueTicks { ticks: unknown, has_more: std::mem::take(&mut due.has_more) },
                );
            }
        }
        let verdicts = classify_ticks(&due.ticks, self.input.policy, self.state.busy_until, self.now());
        if due.has_more {
            // Older ticks are not counted; they are all below this one.
            self.skip(TickOutcome::Missed, &[due.ticks.first().map_or(newest, |oldest| oldest - 1)]);
        }
        self.skip(TickOutcome::Overlapped, &verdicts.overlapped);
        self.skip(TickOutcome::Missed, &verdicts.missed);
        self.state.queue.extend(verdicts.run);
        let surplus = self.state.queue.len().saturating_sub(MAX_TICKS);
        let dropped: Vec<i64> = self.state.queue.drain(..surplus).collect();
        self.skip(TickOutcome::Overlapped, &dropped);
    }

    /// Skips the due ticks, and notes whether there are older ones.
    fn skip_due(&mut self, outcome: TickOutcome, due: &DueTicks) {
        if let Some(oldest) = due.ticks.first().filter(|_| due.has_more) {
            self.skip(outcome, &[oldest - 1]);
        }
        self.skip(outcome, &due.ticks);
    }

    fn skip(&mut self, outcome: TickOutcome, ticks: &[i64]) {
        let Some(newest) = ticks.last().copied() else { return };
        let count = u32::try_from(ticks.len()).unwrap_or(u32::MAX);
        let entry = HistoryEntry { tick: newest, outcome, count, run: None, at: self.input.now, text: String::new() };
        self.events.push(DecisionEvent::TicksSkipped(entry.clone()));
        self.state.push_history(entry);
    }
}

/// The outcome for ticks that are due.
#[derive(Debug, Default, PartialEq, Eq)]
struct JudgedTicks {
    run: Vec<i64>,
    overlapped: Vec<i64>,
    missed: Vec<i64>,
}

fn classify_ticks(ticks: &[i64], policy: &Policy, busy_until: u64, now: i64) -> JudgedTicks {
    let mut verdicts = JudgedTicks::default();
    let mut late = Vec::new();
    for &tick in ticks {
        let during = u64::try_from(tick).is_ok_and(|tick| tick.saturating_mul(1000) <= busy_until);
        match policy.overlap {
            Overlap::Skip if during => verdicts.overlapped.push(tick),
            Overlap::Queue if during => verdicts.run.push(tick),
            _ if now.saturating_sub(tick) <= policy.grace => verdicts.run.push(tick),
            _ => late.push(tick),
        }
    }
    let keep = match policy.missed {
        Missed::Skip => 0,
        Missed::Once => usize::from(verdicts.run.is_empty()),
        Missed::All { limit } => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let kept = late.split_off(late.len().saturating_sub(keep));
    verdicts.missed = late;
    verdicts.run.extend(kept);
    verdicts.run.sort_unstable();
    verdicts
}
