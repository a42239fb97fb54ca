//! What the record of a job says.

use serde::{Deserialize, Serialize};

/// The layout that this code reads and writes.
pub const VERSION: u32 = 1;

/// How many entries the history keeps. A record has at most 64 KiB, of which the ticks that wait may take 12.
pub const HISTORY: usize = 20;

/// How many requests to run at once may wait.
pub const MOST_WANTED: usize = 20;

/// Everything that a fleet knows about a job. Times are the engine's; ticks in seconds, moments in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    /// The layout.
    pub v: u32,
    /// The expression of whoever decided last.
    pub schedule: String,
    /// Its zone.
    pub zone: String,
    /// From when on the job is known: older ticks are not its own.
    pub since: i64,
    /// The newest tick that was judged.
    pub watermark: i64,
    /// How often the watermark was set anew by hand: it falls for no other reason.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u32,
    /// The run of the engine's servers in which it was last decided, where the engine tells; empty: not known. A record that is read in another run may lack what was
    /// written last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// When that run began: ticks up to this may have begun before, and have been forgotten.
    #[serde(default, skip_serializing_if = "is_nought")]
    pub doubt: i64,
    /// The highest token that decided.
    pub fence: u64,
    /// When the last run ended: a tick not after it came due while it went on.
    #[serde(default)]
    pub busy_until: u64,
    /// Since when, and by whom, nothing is begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Wanted>,
    /// Ticks that were chosen to run and have not begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<i64>,
    /// Runs that somebody asked for by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<Wanted>,
    /// Runs that have begun and not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<Running>,
    /// What has become of ticks, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Entry>,
}

/// Something that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wanted {
    /// When, in seconds.
    pub at: i64,
    /// Who.
    pub by: String,
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Running {
    /// What it is for.
    pub tick: i64,
    /// Under which token.
    pub token: u64,
    /// Where.
    pub node: String,
    /// Since when.
    pub started: u64,
    /// The how manyth begin of this tick, from 1.
    pub attempt: u32,
    /// Whether somebody asked for it by hand; it has nothing to do with the timetable then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
}

/// What has become of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was run, and went well.
    Done,
    /// It was run, and said that it failed.
    Failed,
    /// Its holder died in mid-run.
    Crashed,
    /// Its holder lost the lock in mid-run, or was told to stop, and stopped it.
    Lost,
    /// It ran longer than it may, and was stopped.
    TimedOut,
    /// A run was going on.
    Overlapped,
    /// Nobody ran it in time.
    Missed,
    /// The engine may have forgotten what became of it: it may have been run or not, and is not run (again).
    Unknown,
}

impl Outcome {
    /// A short stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
            Self::Lost => "lost",
            Self::TimedOut => "timed-out",
            Self::Overlapped => "overlapped",
            Self::Missed => "missed",
            Self::Unknown => "unknown",
        }
    }

    /// Whether there was a run for sure.
    pub fn has_run(self) -> bool {
        !matches!(self, Self::Overlapped | Self::Missed | Self::Unknown)
    }
}

/// A line of the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Which tick; the newest of those that were not run.
    pub tick: i64,
    /// What has become of it.
    pub outcome: Outcome,
    /// How many ticks this is about; more than one only of those that were not run.
    pub count: u32,
    /// The run, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Running>,
    /// When this was entered.
    pub at: u64,
    /// What the run said of its failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
fn is_nought(number: &i64) -> bool {
    *number == 0
}

impl State {
    /// A job that is new at `since`: it has no ticks before.
    pub fn new(schedule: &str, zone: &str, since: i64) -> Self {
        Self {
            v: VERSION,
            schedule: schedule.to_owned(),
            zone: zone.to_owned(),
            since,
            watermark: since,
            resets: 0,
            run: String::new(),
            doubt: 0,
            fence: 0,
            busy_until: 0,
            paused: None,
            queue: Vec::new(),
            wanted: Vec::new(),
            running: Vec::new(),
            history: Vec::new(),
        }
    }

    /// The run with this token.
    pub fn run_of(&self, token: u64) -> Option<&Running> {
        self.running.iter().find(|run| run.token == token)
    }

    /// Enters a line into the history, and forgets the oldest.
    pub(super) fn enter(&mut self, entry: Entry) {
        self.history.push(entry);
        let surplus = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..surplus);
    }

    /// A run has ended. `None` if it is not there any more: somebody took it for dead, and what it says comes too late.
    #[must_use]
    pub fn finished(&self, token: u64, outcome: Outcome, text: &str, now: u64) -> Option<Self> {
        let at = self.running.iter().position(|run| run.token == token)?;
        let mut state = self.clone();
        let run = state.running.remove(at);
        state.busy_until = state.busy_until.max(now);
        state.enter(Entry { tick: run.tick, outcome, count: 1, run: Some(run), at: now, text: text.to_owned() });
        Some(state)
    }

    /// Nothing is begun from now on. `None` if that is so already.
    #[must_use]
    pub fn pause(&self, by: &str, now: i64) -> Option<Self> {
        if self.paused.is_some() {
            return None;
        }
        Some(Self { paused: Some(Wanted { at: now, by: by.to_owned() }), ..self.clone() })
    }

    /// Goes on with the next tick: those of the pause are not made up for. `None` if there was no pause.
    #[must_use]
    pub fn resume(&self, now: i64) -> Option<Self> {
        self.paused.as_ref()?;
        Some(Self { paused: None, watermark: self.watermark.max(now), ..self.clone() })
    }

    /// One more run, as soon as may be. `None` if too many wait already.
    #[must_use]
    pub fn run_now(&self, by: &str, now: i64) -> Option<Self> {
        if self.wanted.len() >= MOST_WANTED {
            return None;
        }
        let mut state = self.clone();
        state.wanted.push(Wanted { at: now, by: by.to_owned() });
        Some(state)
    }

    /// Begins anew at `now`: for a watermark that a wrong clock left in the future. What waited is forgotten, and so is a run that ended
    /// in the future: every tick until then would count as overlapped. So is a doubt about the future.
    #[must_use]
    pub fn reset(&self, now: i64) -> Self {
        let resets = self.resets.saturating_add(1);
        let busy_until = self.busy_until.min(u64::try_from(now).unwrap_or(0).saturating_mul(1000));
        let (doubt, queue, wanted) = (self.doubt.min(now), Vec::new(), Vec::new());
        Self { watermark: now, resets, since: now, doubt, busy_until, queue, wanted, ..self.clone() }
    }

    /// How many seconds the watermark is ahead of the engine's clock, if that is more than two clocks may differ.
    pub fn ahead(&self, now: i64) -> Option<i64> {
        Some(self.watermark.saturating_sub(now)).filter(|by| *by > super::AHEAD)
    }
}
