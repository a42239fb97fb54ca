//! What to do, while holding the lock.

use super::look::floor;
use super::seen::Seen;
use super::state::{Entry, Outcome, Running, State, Wanted};
use super::ticks::{Due, Ticks, due};
use super::{Crash, MOST_TICKS, Missed, Overlap, Policy};

/// The note on a run of which only the start is known.
const FORGOTTEN: &str = "or the engine has forgotten its end";

/// The input of a decision, besides the record.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The job's expression and its time zone.
    pub schedule: (&'a str, &'a str),
    /// Its ticks.
    pub timetable: &'a dyn Ticks,
    /// Its policies.
    pub policy: &'a Policy,
    /// When this node first had the schedule: if the schedule is new, earlier ticks belong to no
    /// node.
    pub since: i64,
    /// The newest state of the record that this node has seen: no decision goes below it.
    pub seen: Option<Seen>,
    /// The server run from which the record was read, and when it began, in seconds; `None`: the
    /// engine does not report it.
    pub run: Option<(&'a str, i64)>,
    /// The engine's time in milliseconds since 1970, read after the lock was granted.
    pub now: u64,
    /// The guard's token.
    pub token: u64,
    /// The name of this node.
    pub node: &'a str,
    /// The tokens of the other concurrent holders, read *after* the record; empty if there can be
    /// none.
    pub beside: &'a [u64],
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new record. It replaces the one that was read, before anything runs.
    pub state: State,
    /// What to do once it is written.
    pub action: Action,
    /// Other decisions, to be reported.
    pub notes: Vec<Note>,
}

impl Decision {
    /// Whether the record must be written before acting on the decision. A higher token alone does
    /// not justify a write. A run that begins always does, even if our run is already in the
    /// record: the write that added it was not confirmed.
    pub fn is_to_be_written_over(&self, before: Option<&State>) -> bool {
        let but_for_fence = |state: &State| State { fence: 0, ..state.clone() };
        matches!(self.action, Action::Start(_))
            || before.is_none_or(|before| but_for_fence(before) != but_for_fence(&self.state))
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to run.
    Nothing,
    /// Run this.
    Start(Running),
    /// A node with this higher token decided meanwhile: this node has lost the lock, whatever its
    /// guard reports. Write nothing.
    Stale(u64),
}

/// Other decisions, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Ticks that will not run.
    Skipped(Entry),
    /// A run whose holder died, and whether it is run again.
    Crashed(Running, bool),
    /// The schedule differs from the one of the node that decided last.
    Rescheduled(String),
}

/// Decides. `None`: the job is new or, if this node saw it before, its record is lost.
pub fn decide(state: Option<&State>, scene: &Scene<'_>) -> Decision {
    let is_lost = state.is_none() && scene.seen.is_some();
    let state = state.cloned().unwrap_or_else(|| anew(scene));
    let may_be_beside = matches!(scene.policy.overlap, Overlap::Allow { .. });
    if scene.token < state.fence && !may_be_beside {
        let fence = state.fence;
        return Decision { state, action: Action::Stale(fence), notes: Vec::new() };
    }
    // Our own run: its entry was written, but the reply was lost or not all replicas confirmed it.
    // Write it once more.
    if let Some(ours) = state.run_of(scene.token).cloned() {
        return Decision { state, action: Action::Start(ours), notes: Vec::new() };
    }
    let mut desk = Desk { state, scene, notes: Vec::new() };
    if is_lost {
        desk.give_up();
    }
    let unknown = scene.seen.map_or_else(Vec::new, |seen| seen.restore(&mut desk.state));
    desk.skip(Outcome::Unknown, &unknown);
    desk.doubt();
    desk.state.fence = desk.state.fence.max(scene.token);
    let retried = desk.bury();
    let next = retried.or_else(|| desk.choose());
    if let Some(run) = &next {
        desk.state.running.push(run.clone());
    }
    let action = next.map_or(Action::Nothing, Action::Start);
    Decision { state: desk.state, action, notes: desk.notes }
}

/// A job without a record. If this node saw a record before, the job continues from there.
fn anew(scene: &Scene<'_>) -> State {
    let (schedule, zone) = scene.schedule;
    match scene.seen {
        None => State::new(schedule, zone, scene.since),
        Some(seen) => State { resets: seen.resets, ..State::new(schedule, zone, seen.watermark) },
    }
}

fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1000).unwrap_or(i64::MAX)
}

struct Desk<'a> {
    state: State,
    scene: &'a Scene<'a>,
    notes: Vec<Note>,
}

impl Desk<'_> {
    fn now(&self) -> i64 {
        seconds(self.scene.now)
    }

    /// The record that we saw is gone. It is unknown how often ticks since then have begun, so the
    /// job continues from now.
    fn give_up(&mut self) {
        let from = self.state.watermark;
        let due = due(self.scene.timetable, from, self.now(), MOST_TICKS);
        self.state.watermark = self.now().max(from);
        self.state.since = self.state.watermark;
        self.skip_all(Outcome::Unknown, &due);
    }

    /// In a server run that is new to the record, entries may have been lost. Ticks and manual runs
    /// up to the beginning of the server run may have begun.
    fn doubt(&mut self) {
        let Some((run, began)) = self.scene.run else { return };
        if self.state.run == run {
            return;
        }
        run.clone_into(&mut self.state.run);
        self.state.doubt = self.state.doubt.max(began);
        if self.begins_again() {
            return;
        }
        let doubt = self.state.doubt;
        let wanted = self.state.wanted.extract_if(.., |wanted| wanted.at <= doubt).map(|wanted| wanted.at);
        let mut unknown: Vec<i64> = wanted.collect();
        unknown.extend(self.state.queue.extract_if(.., |tick| *tick <= doubt));
        unknown.sort_unstable();
        self.skip(Outcome::Unknown, &unknown);
    }

    /// Whether a tick that may have begun is begun again. Not with concurrent runs: the deciding
    /// node may have acquired the lock before the run that was lost, so its token would be lower.
    fn begins_again(&self) -> bool {
        let beside = matches!(self.scene.policy.overlap, Overlap::Allow { .. });
        !beside && matches!(self.scene.policy.crash, Crash::Retry { attempts } if attempts > 1)
    }

    /// The first attempt that we know of; if the tick may have begun before, this counts as the
    /// second.
    fn first(&self, tick: i64, manual: bool) -> Running {
        self.begin(tick, if tick <= self.state.doubt { 2 } else { 1 }, manual)
    }

    fn begin(&self, tick: i64, attempt: u32, manual: bool) -> Running {
        let (token, node, started) = (self.scene.token, self.scene.node.to_owned(), self.scene.now);
        Running { tick, token, node, started, attempt, manual }
    }

    /// Ends the runs whose holders are dead, and returns one that must run again. The holder of the
    /// lock knows that there are no other holders but those in `beside`.
    fn bury(&mut self) -> Option<Running> {
        let mut again = None;
        let all = std::mem::take(&mut self.state.running);
        for run in all {
            let in_doubt = i64::try_from(run.started / 1000).is_ok_and(|started| started <= self.state.doubt);
            let may_retry = match self.scene.policy.crash {
                Crash::AtMostOnce => false,
                Crash::Retry { attempts } => run.attempt < attempts && (!in_doubt || self.begins_again()),
            };
            // One at a time, none during a pause, and none with a lower token than the dead run
            // had: a node that was granted the lock earlier may decide later. Such a run stays in
            // the record and is found again.
            let is_older = self.scene.token < run.token;
            let later = may_retry && (again.is_some() || self.state.paused.is_some() || is_older);
            if later || self.scene.beside.contains(&run.token) {
                self.state.running.push(run);
                continue;
            }
            if may_retry {
                again = Some(self.begin(run.tick, run.attempt + 1, run.manual));
            }
            self.notes.push(Note::Crashed(run.clone(), may_retry));
            let (tick, at) = (run.tick, self.scene.now);
            let text = if in_doubt { FORGOTTEN.to_owned() } else { String::new() };
            let outcome = Outcome::Crashed;
            self.state.enter(Entry { tick, outcome, count: 1, run: Some(run), at, text });
        }
        again
    }

    /// The next run: first the manual runs, then the schedule.
    fn choose(&mut self) -> Option<Running> {
        if self.state.paused.is_none() {
            self.judge();
        }
        if !self.state.wanted.is_empty() {
            let Wanted { at, .. } = self.state.wanted.remove(0);
            return Some(self.first(at, true));
        }
        if self.state.paused.is_some() || self.state.queue.is_empty() {
            return None;
        }
        let tick = self.state.queue.remove(0);
        Some(self.first(tick, false))
    }

    /// Judges every tick that came due since the last time: each is queued or skipped, and none is
    /// considered again.
    fn judge(&mut self) {
        let (schedule, zone) = self.scene.schedule;
        let floor = floor(&self.state, schedule, zone, self.scene.since);
        let mut due = due(self.scene.timetable, floor, self.now(), MOST_TICKS);
        if (self.state.schedule.as_str(), self.state.zone.as_str()) != (schedule, zone) {
            self.notes.push(Note::Rescheduled(std::mem::replace(&mut self.state.schedule, schedule.to_owned())));
            zone.clone_into(&mut self.state.zone);
            self.state.watermark = floor;
        }
        let Some(newest) = due.ticks.last().copied() else { return };
        self.state.watermark = newest;
        if !self.begins_again() {
            let doubt = self.state.doubt;
            let unknown: Vec<i64> = due.ticks.extract_if(.., |tick| *tick <= doubt).collect();
            if !unknown.is_empty() {
                self.skip_all(Outcome::Unknown, &Due { ticks: unknown, more: std::mem::take(&mut due.more) });
            }
        }
        let verdicts = judge(&due.ticks, self.scene.policy, self.state.busy_until, self.now());
        if due.more {
            // They are not counted; it is only known that they are older than this.
            self.skip(Outcome::Missed, &[due.ticks.first().map_or(newest, |oldest| oldest - 1)]);
        }
        self.skip(Outcome::Overlapped, &verdicts.overlapped);
        self.skip(Outcome::Missed, &verdicts.missed);
        self.state.queue.extend(verdicts.run);
        let surplus = self.state.queue.len().saturating_sub(MOST_TICKS);
        let dropped: Vec<i64> = self.state.queue.drain(..surplus).collect();
        self.skip(Outcome::Overlapped, &dropped);
    }

    /// Skips the due ticks, and notes whether there are older ones.
    fn skip_all(&mut self, outcome: Outcome, due: &Due) {
        if let Some(oldest) = due.ticks.first().filter(|_| due.more) {
            self.skip(outcome, &[oldest - 1]);
        }
        self.skip(outcome, &due.ticks);
    }

    fn skip(&mut self, outcome: Outcome, ticks: &[i64]) {
        let Some(newest) = ticks.last().copied() else { return };
        let count = u32::try_from(ticks.len()).unwrap_or(u32::MAX);
        let entry = Entry { tick: newest, outcome, count, run: None, at: self.scene.now, text: String::new() };
        self.notes.push(Note::Skipped(entry.clone()));
        self.state.enter(entry);
    }
}

/// The outcome for ticks that are due.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdicts {
    run: Vec<i64>,
    overlapped: Vec<i64>,
    missed: Vec<i64>,
}

fn judge(ticks: &[i64], policy: &Policy, busy_until: u64, now: i64) -> Verdicts {
    let mut verdicts = Verdicts::default();
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
