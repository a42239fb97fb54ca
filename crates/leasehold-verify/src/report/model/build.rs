//! Reads the lines in the order of their times: with many processes, a line may precede one that
//! happened earlier. Several passes, because an end may have the same time as its beginning.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Band, Death, Fate, Flag, Kind, Lane, Life, Mark, Pause, Run, Span, finish};
use crate::history::{Call, Event, Nanos, OpId, Outcome, State, Worker};
use crate::verdict::Verdict;

/// The call's role in the picture.
#[derive(Clone, Copy)]
pub(super) enum Is {
    Span(usize),
    Release(usize),
    Mark(usize),
}

/// A hold's state before all lines are read.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) release: Option<Nanos>,
    pub(super) ended: Option<(Nanos, Outcome)>,
    pub(super) held: Nanos,
    pub(super) lost: Option<(Nanos, Nanos, String)>,
}

#[derive(Default)]
pub(super) struct Reader {
    pub(super) run: Run,
    pub(super) lane_of: HashMap<Worker, usize>,
    pub(super) life_of: HashMap<Worker, usize>,
    pub(super) calls: HashMap<OpId, Is>,
    /// One per span.
    pub(super) seen: Vec<Seen>,
    locks: HashMap<String, usize>,
    stopped: HashMap<Worker, Nanos>,
}

/// Builds the drawing of a history and its verdict.
pub(crate) fn read(events: &[Event], verdict: &Verdict) -> Run {
    let mut reader = Reader::default();
    reader.run.end = events.iter().map(Event::at).max().unwrap_or(0).max(1);
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.at());
    reader.lanes(&events);
    for event in &events {
        if let Event::Begin { t, worker, op, call, .. } = event
            && !matches!(call, Call::Release { .. } | Call::Write { .. } | Call::Read { .. })
        {
            reader.takes(*t, *worker, *op, call);
        }
    }
    for event in &events {
        match event {
            Event::Begin { t, worker, op, call, .. } => reader.uses(*t, *worker, *op, call),
            Event::Worker { t, worker, state } => reader.worker(*t, *worker, state),
            Event::FaultBegin { t, fault, kind, target, workers, .. } => {
                let lanes = reader.lanes_of(workers);
                let (from, to, target) = (*t, reader.run.end, target.clone());
                let told = |band: &&mut Band| band.fault == *fault && band.kind == *kind;
                if let Some(band) = reader.run.bands.iter_mut().find(told) {
                    (band.target, band.lanes) = (target, lanes);
                    continue;
                }
                reader.run.bands.push(Band {
                    fault: *fault,
                    kind: *kind,
                    target,
                    from,
                    to,
                    note: String::new(),
                    lanes,
                });
            }
            _ => {}
        }
    }
    for event in events {
        reader.learns(event);
    }
    for violation in &verdict.violations {
        let lanes = reader.lanes_of(&violation.workers);
        reader.run.flags.push(Flag { from: violation.from, to: violation.to.max(violation.from), lanes });
    }
    finish::run(reader)
}

impl Reader {
    /// A lane for each one that a worker started on, and one for each worker without a start event.
    fn lanes(&mut self, events: &[&Event]) {
        let mut started: BTreeMap<Worker, u32> = BTreeMap::new();
        let mut seen: BTreeSet<Worker> = BTreeSet::new();
        for event in events {
            match event {
                Event::Worker { worker, state: State::Started { lane, .. }, .. } => {
                    started.insert(*worker, *lane);
                }
                Event::Begin { worker, .. } | Event::Worker { worker, .. } => {
                    seen.insert(*worker);
                }
                _ => {}
            }
        }
        let numbers: BTreeSet<u32> = started.values().copied().collect();
        let places: BTreeMap<u32, usize> = numbers.iter().enumerate().map(|(at, number)| (*number, at)).collect();
        self.run.lanes = numbers.iter().map(|number| Lane { name: format!("lane {number}"), rows: 1 }).collect();
        for (worker, lane) in &started {
            if let Some(at) = places.get(lane) {
                self.lane_of.insert(*worker, *at);
            }
        }
        for worker in seen.into_iter().filter(|worker| !started.contains_key(worker)) {
            self.lane_of.insert(worker, self.run.lanes.len());
            self.run.lanes.push(Lane { name: "no lane".to_owned(), rows: 1 });
            self.begins(0, worker, None);
        }
    }

    fn lane(&self, worker: Worker) -> usize {
        self.lane_of.get(&worker).copied().unwrap_or(0)
    }

    fn lanes_of(&self, workers: &[Worker]) -> Vec<usize> {
        let lanes: BTreeSet<usize> = workers.iter().filter_map(|worker| self.lane_of.get(worker)).copied().collect();
        lanes.into_iter().collect()
    }

    fn begins(&mut self, from: Nanos, worker: Worker, pid: Option<u32>) {
        let (lane, to) = (self.lane(worker), self.run.end);
        self.life_of.insert(worker, self.run.lives.len());
        self.run.lives.push(Life { worker, lane, pid, from, to, death: Death::Ended });
    }

    fn ends(&mut self, t: Nanos, worker: Worker, death: Death) {
        if let Some(life) = self.life_of.get(&worker).and_then(|at| self.run.lives.get_mut(*at)) {
            life.to = t;
            life.death = death;
        }
        if let Some(from) = self.stopped.remove(&worker) {
            self.pause(worker, from, t, false);
        }
    }

    fn pause(&mut self, worker: Worker, from: Nanos, to: Nanos, stalled: bool) {
        let lane = self.lane(worker);
        self.run.pauses.push(Pause { worker, lane, from, to: to.max(from), stalled });
    }

    fn worker(&mut self, t: Nanos, worker: Worker, state: &State) {
        match state {
            State::Started { pid, .. } => self.begins(t, worker, Some(*pid)),
            State::Stopped => {
                self.stopped.insert(worker, t);
            }
            State::Resumed => {
                if let Some(from) = self.stopped.remove(&worker) {
                    self.pause(worker, from, t, false);
                }
            }
            State::Stalled { from } => self.pause(worker, *from, t, true),
            State::Killed => self.ends(t, worker, Death::Killed),
            State::Ended => self.ends(t, worker, Death::Ended),
        }
    }

    /// A call that creates a span.
    fn takes(&mut self, t: Nanos, worker: Worker, op: OpId, call: &Call) {
        let (name, kind, owner, token) = match call {
            Call::Lock { lock, mode, owner, .. } => (lock, Kind::Lock(*mode), owner.clone(), None),
            Call::Tick { job, tick, attempt, token, .. } => (job, Kind::Tick(*tick, *attempt), None, Some(*token)),
            _ => return,
        };
        let lock = *self.locks.entry(name.clone()).or_insert_with(|| {
            self.run.locks.push(name.clone());
            self.run.locks.len() - 1
        });
        self.calls.insert(op, Is::Span(self.run.spans.len()));
        self.seen.push(Seen::default());
        self.run.spans.push(Span {
            op,
            worker,
            lane: self.lane(worker),
            row: 0,
            lock,
            kind,
            owner,
            begin: t,
            queued: None,
            granted: token.map(|_| t),
            token,
            sure: t,
            to: t,
            end: t,
            deadline: 0,
            fate: Fate::Open,
        });
    }

    /// A call that belongs to a span.
    fn uses(&mut self, t: Nanos, worker: Worker, op: OpId, call: &Call) {
        let (register, token, wrote) = match call {
            Call::Write { register, token, value, .. } => (register, token, Some(*value)),
            Call::Read { register, token, .. } => (register, token, None),
            Call::Release { hold } => {
                if let Some(Is::Span(at)) = self.calls.get(hold).copied()
                    && let Some(seen) = self.seen.get_mut(at)
                {
                    seen.release = Some(t);
                    self.calls.insert(op, Is::Release(at));
                }
                return;
            }
            Call::Lock { .. } | Call::Tick { .. } | Call::Evict { .. } => return,
        };
        self.calls.insert(op, Is::Mark(self.run.marks.len()));
        let (lane, register, token) = (self.lane(worker), register.clone(), *token);
        // Its row is its hold's, which is not known yet: until then it stores the hold's index.
        let (Call::Write { hold, .. } | Call::Read { hold, .. }) = call else { return };
        let row = match self.calls.get(hold) {
            Some(Is::Span(at)) => *at,
            _ => usize::MAX,
        };
        self.run.marks.push(Mark { worker, lane, row, from: t, t, register, token, wrote, outcome: None });
    }

    /// Applies an event's outcome.
    fn learns(&mut self, event: &Event) {
        match event {
            Event::End { t, op, outcome } => self.ended(*t, *op, outcome),
            Event::Queued { t, op } => {
                if let Some(Is::Span(at)) = self.calls.get(op)
                    && let Some(span) = self.run.spans.get_mut(*at)
                {
                    span.queued = Some(*t);
                }
            }
            Event::Held { t, op, deadline } => self.seen_at(*op, |span, seen| {
                span.deadline = span.deadline.max(*deadline);
                seen.held = seen.held.max(*t);
            }),
            Event::Lost { t, op, deadline, reason } => self.seen_at(*op, |_, seen| {
                seen.lost = Some((*t, *deadline, reason.clone()));
            }),
            Event::FaultEnd { t, fault, note, .. } => {
                if let Some(band) = self.run.bands.iter_mut().find(|band| band.fault == *fault) {
                    band.to = (*t).max(band.from);
                    band.note = note.clone();
                }
            }
            _ => {}
        }
    }

    fn seen_at(&mut self, op: OpId, does: impl FnOnce(&mut Span, &mut Seen)) {
        if let Some(Is::Span(at)) = self.calls.get(&op)
            && let (Some(span), Some(seen)) = (self.run.spans.get_mut(*at), self.seen.get_mut(*at))
        {
            does(span, seen);
        }
    }

    fn ended(&mut self, t: Nanos, op: OpId, outcome: &Outcome) {
        match self.calls.get(&op).copied() {
            Some(Is::Span(at)) => {
                let Some(span) = self.run.spans.get_mut(at) else { return };
                if let Outcome::Granted { token, deadline } = outcome {
                    span.granted = Some(t);
                    span.token = Some(*token);
                    span.deadline = span.deadline.max(*deadline);
                } else if let Some(seen) = self.seen.get_mut(at) {
                    seen.ended = Some((t, outcome.clone()));
                }
            }
            Some(Is::Release(at)) => {
                if let Some(seen) = self.seen.get_mut(at) {
                    seen.ended = Some((t, outcome.clone()));
                }
            }
            Some(Is::Mark(at)) => {
                if let Some(mark) = self.run.marks.get_mut(at) {
                    mark.t = t.max(mark.from);
                    mark.outcome = Some(outcome.clone());
                }
            }
            None => {}
        }
    }

    /// When a process stopped doing anything, and whether it was killed.
    pub(super) fn death(&self, worker: Worker) -> (Nanos, bool) {
        let life = self.life_of.get(&worker).and_then(|at| self.run.lives.get(*at));
        life.map_or((self.run.end, false), |life| (life.to, life.death == Death::Killed))
    }

    /// Closes the pauses of workers that stay stopped to the end.
    pub(super) fn close(&mut self) {
        let still: Vec<(Worker, Nanos)> = self.stopped.drain().collect();
        for (worker, from) in still {
            let to = self.run.end;
            self.pause(worker, from, to, false);
        }
    }
}
