//! Decides under the lock which run to start.

use super::job_record::{ActiveRun, HistoryEntry, JobRecord, OperatorRequest, TickOutcome};
use super::pending_work::last_settled_tick;
use super::seen_state::SeenState;
use super::ticks::{DueTicks, Ticks, due_ticks};
use super::{Crash, MAX_TICKS, Missed, Overlap, Policy};

/// The text in the history of a crashed run whose outcome may have been lost with the engine's
/// data.
const MAYBE_ENDED_NOTE: &str = "or the engine has lost its outcome";

/// The input of a decision, besides the record.
#[derive(Clone, Copy)]
pub struct DecisionInput<'a> {
    /// The job's cron expression and its time zone.
    pub schedule: (&'a str, &'a str),
    /// The ticks of that schedule.
    pub ticks: &'a dyn Ticks,
    /// What the job does about crashed, missed and overlapping runs.
    pub policy: &'a Policy,
    /// When this node first had the schedule, in seconds since 1970: if the schedule is new,
    /// earlier ticks do not count.
    pub since: i64,
    /// The newest state of the record that this node has seen; `None` if it has seen none. No
    /// decision goes below it.
    pub seen: Option<SeenState>,
    /// The server run in which the record was read, and when it began, in seconds since 1970;
    /// `None` if the engine does not report it.
    pub server_run: Option<(&'a str, i64)>,
    /// The engine's time in milliseconds since 1970, read after the lock was granted.
    pub now: u64,
    /// The token with which this node holds the job's lock.
    pub token: u64,
    /// The name of this node, `host:pid`.
    pub node: &'a str,
    /// The tokens of the other concurrent holders, read *after* the record; empty if there can be
    /// none.
    pub concurrent_tokens: &'a [u64],
}

/// What a node does about a job, as decided under the job's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new record. It replaces the one that was read, before anything runs.
    pub state: JobRecord,
    /// What the node does once the new record is written.
    pub action: Action,
    /// What else was decided, to be reported to operators.
    pub events: Vec<DecisionEvent>,
}

impl Decision {
    /// Whether the record must be written before acting on the decision; `before` is the record as
    /// read. A higher token alone does not justify a write. A run that begins always does, even if
    /// it is already in the record: the write that added it was not confirmed.
    pub fn must_be_written(&self, before: Option<&JobRecord>) -> bool {
        let without_fence = |state: &JobRecord| JobRecord { fence: 0, ..state.clone() };
        matches!(self.action, Action::Start(_))
            || before.is_none_or(|before| without_fence(before) != without_fence(&self.state))
    }
}

/// What a node does after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start no run.
    None,
    /// Start this run, which the new record lists.
    Start(ActiveRun),
    /// A node with this higher token decided meanwhile: this node has lost the lock, even if its
    /// guard reports otherwise. Write nothing.
    Superseded(u64),
}

/// What a decision found or decided besides its action; reported to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionEvent {
    /// Ticks do not run; the entry shows the newest of them, their number and the reason.
    TicksSkipped(HistoryEntry),
    /// The holder of this run died; `true` if this node runs it again.
    RunCrashed(ActiveRun, bool),
    /// The schedule differs from this one, of the node that decided last.
    ScheduleChanged(String),
}

/// Decides which run this node starts, and what the record becomes. `state` is the record as read
/// under the lock. `None`: the job is new or, if this node saw it before, its record is lost.
pub fn decide(state: Option<&JobRecord>, input: &DecisionInput<'_>) -> Decision {
    let is_lost = state.is_none() && input.seen.is_some();
    let state = state.cloned().unwrap_or_else(|| new_record(input));
    let allows_concurrent_runs = matches!(input.policy.overlap, Overlap::Allow { .. });
    if input.token < state.fence && !allows_concurrent_runs {
        let fence = state.fence;
        return Decision { state, action: Action::Superseded(fence), events: Vec::new() };
    }
    // This node's own run: its entry was written, but the reply was lost or not all replicas
    // confirmed it. Write it again.
    if let Some(own) = state.run_of(input.token).cloned() {
        return Decision { state, action: Action::Start(own), events: Vec::new() };
    }
    let mut decider = Decider { state, input, events: Vec::new() };
    if is_lost {
        decider.restart_from_now();
    }
    let unknown = input.seen.map_or_else(Vec::new, |seen| seen.restore(&mut decider.state));
    decider.skip(TickOutcome::Unknown, &unknown);
    decider.check_server_run();
    decider.state.fence = decider.state.fence.max(input.token);
    let retried = decider.end_dead_runs();
    let next = retried.or_else(|| decider.choose_next_run());
    if let Some(run) = &next {
        decider.state.running.push(run.clone());
    }
    let action = next.map_or(Action::None, Action::Start);
    Decision { state: decider.state, action, events: decider.events }
}

/// The record of a job that has none. If this node saw a record before, the job continues from the
/// state that it saw; otherwise its ticks begin at `since`.
fn new_record(input: &DecisionInput<'_>) -> JobRecord {
    let (schedule, zone) = input.schedule;
    match input.seen {
        None => JobRecord::new(schedule, zone, input.since),
        Some(seen) => JobRecord { resets: seen.resets, ..JobRecord::new(schedule, zone, seen.watermark) },
    }
}

fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1000).unwrap_or(i64::MAX)
}

/// A decision in progress: `state` is the record as changed so far.
struct Decider<'a> {
    state: JobRecord,
    input: &'a DecisionInput<'a>,
    events: Vec<DecisionEvent>,
}

impl Decider<'_> {
    /// The engine's time, in seconds since 1970.
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
        self.state.uncertain_until = self.state.uncertain_until.max(began);
        if self.may_retry_uncertain() {
            return;
        }
        let uncertain_until = self.state.uncertain_until;
        let wanted = self.state.wanted.extract_if(.., |wanted| wanted.at <= uncertain_until).map(|wanted| wanted.at);
        let mut unknown: Vec<i64> = wanted.collect();
        unknown.extend(self.state.queue.extract_if(.., |tick| *tick <= uncertain_until));
        unknown.sort_unstable();
        self.skip(TickOutcome::Unknown, &unknown);
    }

    /// Whether a tick that may have begun is begun again. Not with concurrent runs: the deciding
    /// node may have acquired the lock before the run that was lost, so its token would be lower.
    fn may_retry_uncertain(&self) -> bool {
        let allows_concurrent_runs = matches!(self.input.policy.overlap, Overlap::Allow { .. });
        !allows_concurrent_runs && matches!(self.input.policy.crash, Crash::Retry { attempts } if attempts > 1)
    }

    /// A run of a tick that the record does not list as begun. Its attempt number is 1; or 2 if the
    /// tick may have begun before and the engine lost the entry.
    fn first_attempt(&self, tick: i64, manual: bool) -> ActiveRun {
        self.start_run(tick, if tick <= self.state.uncertain_until { 2 } else { 1 }, manual)
    }

    /// The record's entry of a run that begins now on this node.
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
            let is_uncertain =
                i64::try_from(run.started / 1000).is_ok_and(|started| started <= self.state.uncertain_until);
            let may_retry = match self.input.policy.crash {
                Crash::AtMostOnce => false,
                Crash::Retry { attempts } => run.attempt < attempts && (!is_uncertain || self.may_retry_uncertain()),
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
            let text = if is_uncertain { MAYBE_ENDED_NOTE.to_owned() } else { String::new() };
            let outcome = TickOutcome::Crashed;
            self.state.push_history(HistoryEntry { tick, outcome, count: 1, run: Some(run), at, text });
        }
        again
    }

    /// Takes the next run from the record: first manual runs, then queued ticks. `None` if there is
    /// none.
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
            let uncertain_until = self.state.uncertain_until;
            let unknown: Vec<i64> = due.ticks.extract_if(.., |tick| *tick <= uncertain_until).collect();
            if !unknown.is_empty() {
                self.skip_due(
                    TickOutcome::Unknown,
                    &DueTicks { ticks: unknown, has_more: std::mem::take(&mut due.has_more) },
                );
            }
        }
        let judged = classify_ticks(&due.ticks, self.input.policy, self.state.busy_until, self.now());
        if due.has_more {
            // Older ticks are not counted; they are all below this one.
            self.skip(TickOutcome::Missed, &[due.ticks.first().map_or(newest, |oldest| oldest - 1)]);
        }
        self.skip(TickOutcome::Overlapped, &judged.overlapped);
        self.skip(TickOutcome::Missed, &judged.missed);
        self.state.queue.extend(judged.run);
        let surplus = self.state.queue.len().saturating_sub(MAX_TICKS);
        let dropped: Vec<i64> = self.state.queue.drain(..surplus).collect();
        self.skip(TickOutcome::Overlapped, &dropped);
    }

    /// Records the due ticks as not run, with this outcome, and one more entry if there are older
    /// ones.
    fn skip_due(&mut self, outcome: TickOutcome, due: &DueTicks) {
        if let Some(oldest) = due.ticks.first().filter(|_| due.has_more) {
            self.skip(outcome, &[oldest - 1]);
        }
        self.skip(outcome, &due.ticks);
    }

    /// Records these ticks as not run, in one history entry with this outcome; none if `ticks` is
    /// empty.
    fn skip(&mut self, outcome: TickOutcome, ticks: &[i64]) {
        let Some(newest) = ticks.last().copied() else { return };
        let count = u32::try_from(ticks.len()).unwrap_or(u32::MAX);
        let entry = HistoryEntry { tick: newest, outcome, count, run: None, at: self.input.now, text: String::new() };
        self.events.push(DecisionEvent::TicksSkipped(entry.clone()));
        self.state.push_history(entry);
    }
}

/// Due ticks, grouped by what happens to them; each group in ascending order.
#[derive(Debug, Default, PartialEq, Eq)]
struct JudgedTicks {
    /// Ticks that run.
    run: Vec<i64>,
    /// Ticks that do not run, because they came due during another run.
    overlapped: Vec<i64>,
    /// Ticks that do not run, because it is too late for them.
    missed: Vec<i64>,
}

/// Judges ticks by the policy. `busy_until`: when the job's last run ended, in milliseconds; `now`
/// is in seconds.
fn classify_ticks(ticks: &[i64], policy: &Policy, busy_until: u64, now: i64) -> JudgedTicks {
    let mut judged = JudgedTicks::default();
    let mut late = Vec::new();
    for &tick in ticks {
        let during = u64::try_from(tick).is_ok_and(|tick| tick.saturating_mul(1000) <= busy_until);
        match policy.overlap {
            Overlap::Skip if during => judged.overlapped.push(tick),
            Overlap::Queue if during => judged.run.push(tick),
            _ if now.saturating_sub(tick) <= policy.grace => judged.run.push(tick),
            _ => late.push(tick),
        }
    }
    let keep = match policy.missed {
        Missed::Skip => 0,
        Missed::Once => usize::from(judged.run.is_empty()),
        Missed::All { limit } => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let kept = late.split_off(late.len().saturating_sub(keep));
    judged.missed = late;
    judged.run.extend(kept);
    judged.run.sort_unstable();
    judged
}
