//! Builds the timeline from a history's events.
//!
//! The events are sorted by time first, because several processes write lines. Several passes are
//! needed, because a call's end may have the same time as its beginning.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    FaultBand, Lane, Pause, ProcessEnd, ProcessLifetime, RegisterMark, Span, SpanKind, SpanOutcome, TimelineModel,
    ViolationMark, span_layout,
};
use crate::history::{Call, Event, OpId, Outcome, RunNanos, WorkerId, WorkerState};
use crate::verdict::Verdict;

/// How a call appears in the timeline.
#[derive(Clone, Copy)]
pub(super) enum CallRole {
    /// The request for a lock, or the run of a tick: the index of its span.
    Span(usize),
    /// The release of a lock: the index of the span of its hold.
    Release(usize),
    /// An access to a register: the index of its mark.
    Mark(usize),
}

/// What the events say about the end of a span; [`span_layout`] computes the end from it.
#[derive(Default)]
pub(super) struct HoldEvents {
    pub(super) release_began_at: Option<RunNanos>,
    /// The end of the request if it was not granted, or of the release.
    pub(super) ended: Option<(RunNanos, Outcome)>,
    /// When the holder last found that it held the lock; 0: never.
    pub(super) last_held_at: RunNanos,
    /// When the holder was notified of the loss, the last deadline, and the reason.
    pub(super) lost: Option<(RunNanos, RunNanos, String)>,
}

#[derive(Default)]
pub(super) struct ModelBuilder {
    pub(super) model: TimelineModel,
    pub(super) lane_by_worker: HashMap<WorkerId, usize>,
    pub(super) lifetime_by_worker: HashMap<WorkerId, usize>,
    pub(super) call_roles: HashMap<OpId, CallRole>,
    /// One for each span of the model, in the same order.
    pub(super) hold_events: Vec<HoldEvents>,
    lock_index: HashMap<String, usize>,
    stopped_since: HashMap<WorkerId, RunNanos>,
}

/// Builds the timeline of a history and its verdict.
pub(crate) fn build(events: &[Event], verdict: &Verdict) -> TimelineModel {
    let mut reader = ModelBuilder::default();
    reader.model.end = events.iter().map(Event::time).max().unwrap_or(0).max(1);
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.time());
    reader.assign_lanes(&events);
    for event in &events {
        if let Event::Begin { t, worker, op, call, .. } = event
            && !matches!(call, Call::Release { .. } | Call::Write { .. } | Call::Read { .. })
        {
            reader.add_span(*t, *worker, *op, call);
        }
    }
    for event in &events {
        match event {
            Event::Begin { t, worker, op, call, .. } => reader.add_hold_call(*t, *worker, *op, call),
            Event::Worker { t, worker, state } => reader.apply_worker_state(*t, *worker, state),
            Event::FaultBegin { t, fault, kind, target, workers, .. } => {
                let lanes = reader.lanes_of(workers);
                let (from, to, target) = (*t, reader.model.end, target.clone());
                let is_same = |band: &&mut FaultBand| band.fault == *fault && band.kind == *kind;
                if let Some(band) = reader.model.bands.iter_mut().find(is_same) {
                    (band.target, band.lanes) = (target, lanes);
                    continue;
                }
                reader.model.bands.push(FaultBand {
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
        reader.apply_outcome(event);
    }
    for violation in &verdict.violations {
        let lanes = reader.lanes_of(&violation.workers);
        reader.model.flags.push(ViolationMark { from: violation.from, to: violation.to.max(violation.from), lanes });
    }
    span_layout::finish(reader)
}

impl ModelBuilder {
    /// A lane for each one that a worker started on, and one for each worker without a start event.
    fn assign_lanes(&mut self, events: &[&Event]) {
        let mut started: BTreeMap<WorkerId, u32> = BTreeMap::new();
        let mut seen: BTreeSet<WorkerId> = BTreeSet::new();
        for event in events {
            match event {
                Event::Worker { worker, state: WorkerState::Started { lane, .. }, .. } => {
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
        self.model.lanes = numbers.iter().map(|number| Lane { name: format!("lane {number}"), rows: 1 }).collect();
        for (worker, lane) in &started {
            if let Some(at) = places.get(lane) {
                self.lane_by_worker.insert(*worker, *at);
            }
        }
        for worker in seen.into_iter().filter(|worker| !started.contains_key(worker)) {
            self.lane_by_worker.insert(worker, self.model.lanes.len());
            self.model.lanes.push(Lane { name: "no lane".to_owned(), rows: 1 });
            self.begin_lifetime(0, worker, None);
        }
    }

    /// The index of the worker's lane; 0 if it is unknown.
    fn lane_of(&self, worker: WorkerId) -> usize {
        self.lane_by_worker.get(&worker).copied().unwrap_or(0)
    }

    /// The indices of these workers' lanes, sorted, each once.
    fn lanes_of(&self, workers: &[WorkerId]) -> Vec<usize> {
        let lanes: BTreeSet<usize> =
            workers.iter().filter_map(|worker| self.lane_by_worker.get(worker)).copied().collect();
        lanes.into_iter().collect()
    }

    fn begin_lifetime(&mut self, from: RunNanos, worker: WorkerId, pid: Option<u32>) {
        let (lane, to) = (self.lane_of(worker), self.model.end);
        self.lifetime_by_worker.insert(worker, self.model.lifetimes.len());
        self.model.lifetimes.push(ProcessLifetime { worker, lane, pid, from, to, end: ProcessEnd::Exited });
    }

    fn end_lifetime(&mut self, t: RunNanos, worker: WorkerId, end: ProcessEnd) {
        if let Some(life) = self.lifetime_by_worker.get(&worker).and_then(|at| self.model.lifetimes.get_mut(*at)) {
            life.to = t;
            life.end = end;
        }
        if let Some(from) = self.stopped_since.remove(&worker) {
            self.add_pause(worker, from, t, false);
        }
    }

    fn add_pause(&mut self, worker: WorkerId, from: RunNanos, to: RunNanos, is_stall: bool) {
        let lane = self.lane_of(worker);
        self.model.pauses.push(Pause { worker, lane, from, to: to.max(from), is_stall });
    }

    fn apply_worker_state(&mut self, t: RunNanos, worker: WorkerId, state: &WorkerState) {
        match state {
            WorkerState::Started { pid, .. } => self.begin_lifetime(t, worker, Some(*pid)),
            WorkerState::Stopped => {
                self.stopped_since.insert(worker, t);
            }
            WorkerState::Resumed => {
                if let Some(from) = self.stopped_since.remove(&worker) {
                    self.add_pause(worker, from, t, false);
                }
            }
            WorkerState::Stalled { from } => self.add_pause(worker, *from, t, true),
            WorkerState::Killed => self.end_lifetime(t, worker, ProcessEnd::Killed),
            WorkerState::Ended => self.end_lifetime(t, worker, ProcessEnd::Exited),
        }
    }

    /// Adds the span of a request for a lock or a tick's run; ignores other calls.
    fn add_span(&mut self, t: RunNanos, worker: WorkerId, op: OpId, call: &Call) {
        let (name, kind, owner, token) = match call {
            Call::Lock { lock, mode, owner, .. } => (lock, SpanKind::Lock(*mode), owner.clone(), None),
            Call::Tick { job, tick, attempt, token, .. } => (job, SpanKind::Tick(*tick, *attempt), None, Some(*token)),
            _ => return,
        };
        let lock = *self.lock_index.entry(name.clone()).or_insert_with(|| {
            self.model.locks.push(name.clone());
            self.model.locks.len() - 1
        });
        self.call_roles.insert(op, CallRole::Span(self.model.spans.len()));
        self.hold_events.push(HoldEvents::default());
        self.model.spans.push(Span {
            op,
            worker,
            lane: self.lane_of(worker),
            row: 0,
            lock,
            kind,
            owner,
            requested_at: t,
            queued_at: None,
            granted_at: token.map(|_| t),
            token,
            relied_on_until: t,
            held_until: t,
            done_at: t,
            deadline: 0,
            outcome: SpanOutcome::Open,
        });
    }

    /// Adds a release or an access to a register to the span of its hold; ignores other calls.
    fn add_hold_call(&mut self, t: RunNanos, worker: WorkerId, op: OpId, call: &Call) {
        let (register, token, wrote) = match call {
            Call::Write { register, token, value, .. } => (register, token, Some(*value)),
            Call::Read { register, token, .. } => (register, token, None),
            Call::Release { hold } => {
                if let Some(CallRole::Span(at)) = self.call_roles.get(hold).copied()
                    && let Some(seen) = self.hold_events.get_mut(at)
                {
                    seen.release_began_at = Some(t);
                    self.call_roles.insert(op, CallRole::Release(at));
                }
                return;
            }
            Call::Lock { .. } | Call::Tick { .. } | Call::Evict { .. } => return,
        };
        self.call_roles.insert(op, CallRole::Mark(self.model.marks.len()));
        let (lane, register, token) = (self.lane_of(worker), register.clone(), *token);
        // Its row is its hold's, which is not known yet: until then it stores the hold's index.
        let (Call::Write { hold, .. } | Call::Read { hold, .. }) = call else { return };
        let row = match self.call_roles.get(hold) {
            Some(CallRole::Span(at)) => *at,
            _ => usize::MAX,
        };
        self.model.marks.push(RegisterMark {
            worker,
            lane,
            row,
            from: t,
            to: t,
            register,
            token,
            written: wrote,
            outcome: None,
        });
    }

    /// Applies an event that ends or updates a call, a hold or a fault.
    fn apply_outcome(&mut self, event: &Event) {
        match event {
            Event::End { t, op, outcome } => self.apply_end(*t, *op, outcome),
            Event::Queued { t, op } => {
                if let Some(CallRole::Span(at)) = self.call_roles.get(op)
                    && let Some(span) = self.model.spans.get_mut(*at)
                {
                    span.queued_at = Some(*t);
                }
            }
            Event::Held { t, op, deadline } => self.update_hold(*op, |span, seen| {
                span.deadline = span.deadline.max(*deadline);
                seen.last_held_at = seen.last_held_at.max(*t);
            }),
            Event::Lost { t, op, deadline, reason } => self.update_hold(*op, |_, seen| {
                seen.lost = Some((*t, *deadline, reason.clone()));
            }),
            Event::FaultEnd { t, fault, note, .. } => {
                if let Some(band) = self.model.bands.iter_mut().find(|band| band.fault == *fault) {
                    band.to = (*t).max(band.from);
                    band.note = note.clone();
                }
            }
            _ => {}
        }
    }

    /// Updates the span of this call and what is known about its end.
    fn update_hold(&mut self, op: OpId, update: impl FnOnce(&mut Span, &mut HoldEvents)) {
        if let Some(CallRole::Span(at)) = self.call_roles.get(&op)
            && let (Some(span), Some(seen)) = (self.model.spans.get_mut(*at), self.hold_events.get_mut(*at))
        {
            update(span, seen);
        }
    }

    /// Applies the end of a call to its span or mark.
    fn apply_end(&mut self, t: RunNanos, op: OpId, outcome: &Outcome) {
        match self.call_roles.get(&op).copied() {
            Some(CallRole::Span(at)) => {
                let Some(span) = self.model.spans.get_mut(at) else { return };
                if let Outcome::Granted { token, deadline } = outcome {
                    span.granted_at = Some(t);
                    span.token = Some(*token);
                    span.deadline = span.deadline.max(*deadline);
                } else if let Some(seen) = self.hold_events.get_mut(at) {
                    seen.ended = Some((t, outcome.clone()));
                }
            }
            Some(CallRole::Release(at)) => {
                if let Some(seen) = self.hold_events.get_mut(at) {
                    seen.ended = Some((t, outcome.clone()));
                }
            }
            Some(CallRole::Mark(at)) => {
                if let Some(mark) = self.model.marks.get_mut(at) {
                    mark.to = t.max(mark.from);
                    mark.outcome = Some(outcome.clone());
                }
            }
            None => {}
        }
    }

    /// When the worker's process ended, or the history did; and whether it was killed.
    pub(super) fn process_end(&self, worker: WorkerId) -> (RunNanos, bool) {
        let life = self.lifetime_by_worker.get(&worker).and_then(|at| self.model.lifetimes.get(*at));
        life.map_or((self.model.end, false), |life| (life.to, life.end == ProcessEnd::Killed))
    }

    /// Ends the pauses of workers that stay stopped, at the end of the history.
    pub(super) fn close_pauses(&mut self) {
        let still: Vec<(WorkerId, RunNanos)> = self.stopped_since.drain().collect();
        for (worker, from) in still {
            let to = self.model.end;
            self.add_pause(worker, from, to, false);
        }
    }
}
