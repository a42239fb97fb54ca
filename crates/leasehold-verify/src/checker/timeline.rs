//! Combines the lines of a history into calls, holds, workers and faults.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Call, Event, FaultKind, Header, Mode, OpId, Outcome, RunNanos, WorkerId, WorkerState, Workload};

/// How long a grant from before an eviction may take to reach its worker.
const GRANT_GRACE: RunNanos = 600_000_000;

/// A call, from its beginning to its end if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) op: OpId,
    pub(crate) worker_id: WorkerId,
    pub(crate) began_at: RunNanos,
    pub(crate) deadline: Option<RunNanos>,
    pub(crate) call: &'a Call,
    pub(crate) ended: Option<(RunNanos, &'a Outcome)>,
    pub(crate) queued_at: Option<RunNanos>,
}

/// A granted lock.
#[derive(Clone, Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) op: OpId,
    pub(crate) worker: WorkerId,
    pub(crate) lock: &'a str,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<&'a str>,
    pub(crate) is_waiting: bool,
    pub(crate) requested_at: RunNanos,
    pub(crate) queued_at: Option<RunNanos>,
    pub(crate) granted_at: RunNanos,
    pub(crate) token: u64,
    /// The times at which it was certainly held, with the deadline at that time; sorted by time.
    pub(crate) held_checks: Vec<(RunNanos, RunNanos)>,
    /// The latest known deadline: of the grant, or of a `Held` line.
    pub(crate) deadline: RunNanos,
    /// When a check first showed that it is not held any more.
    pub(crate) unheld_since: Option<RunNanos>,
    /// When the holder was notified of the loss, and the last deadline that the guard had reported.
    pub(crate) lost: Option<(RunNanos, RunNanos)>,
    /// When its release began, if it may have taken effect.
    pub(crate) release_began_at: Option<RunNanos>,
    /// The beginning of the release which answered that the lock was held until then.
    pub(crate) confirmed_release_at: Option<RunNanos>,
    /// When it was certainly released.
    pub(crate) released_by: Option<RunNanos>,
    /// When an eviction of it began, if that may have taken effect.
    pub(crate) evicted_at: Option<RunNanos>,
    /// When its holder learned of the release request.
    pub(crate) release_requested_at: Option<RunNanos>,
    /// It was certainly held from its grant until then; equal to the grant if nothing confirms it.
    pub(crate) certainly_held_until: RunNanos,
    /// Its holder could rely on it until then: the last deadline that it knew of, unless it began
    /// to release, knew of the loss, or was killed.
    pub(crate) relied_on_until: RunNanos,
}

impl Hold<'_> {
    /// Whether both certainly have the same owner: two holds without an owner do not.
    pub(crate) fn has_same_owner(&self, other: &Self) -> bool {
        self.owner.is_some() && self.owner == other.owner
    }

    /// Whether the two must not be held at once. Permits are checked elsewhere.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let permits = |mode| matches!(mode, Mode::Permits { .. });
        let shared = self.mode == Mode::Shared && other.mode == Mode::Shared;
        !shared && !permits(self.mode) && !permits(other.mode) && !self.has_same_owner(other)
    }

    /// Whether it may still have been held at that time: no line shows that it was released before.
    pub(crate) fn may_be_held_at(&self, t: RunNanos) -> bool {
        self.granted_at <= t && self.released_by.is_none_or(|gone| gone >= t)
    }
}

/// A worker's lifetime.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerLifetime {
    pub(crate) lane: Option<u32>,
    pub(crate) started_at: RunNanos,
    pub(crate) killed_at: Option<RunNanos>,
    pub(crate) ended_at: Option<RunNanos>,
    /// When it did not run: stopped or stalled; sorted and disjoint. `RunNanos::MAX`: to the end.
    pub(crate) pauses: Vec<(RunNanos, RunNanos)>,
}

impl WorkerLifetime {
    /// How long it did not run within this span.
    pub(crate) fn paused_time(&self, from: RunNanos, to: RunNanos) -> RunNanos {
        let within = |&(a, b): &(RunNanos, RunNanos)| b.min(to).saturating_sub(a.max(from));
        self.pauses.iter().map(within).fold(0, RunNanos::saturating_add)
    }

    /// Whether it ran throughout this span, ends included.
    pub(crate) fn ran_throughout(&self, from: RunNanos, to: RunNanos) -> bool {
        !self.pauses.iter().any(|&(a, b)| a <= to && b >= from) && self.killed_at.is_none_or(|killed| killed > to)
    }
}

/// A fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) number: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: &'a str,
    pub(crate) workers: &'a [WorkerId],
    /// When other servers could serve in the meantime.
    pub(crate) served_elsewhere_since: Option<RunNanos>,
    /// The locks on servers that it does not hit.
    pub(crate) unaffected_locks: &'a [String],
    /// How many connections the servers accepted during the fault.
    pub(crate) connection_count: Option<u64>,
    pub(crate) from: RunNanos,
    pub(crate) to: Option<RunNanos>,
}

impl Fault<'_> {
    /// When the fault ended: a kill is instantaneous, any other fault without an end lasts to the
    /// end of the history.
    pub(crate) fn effective_end(&self) -> RunNanos {
        self.to.unwrap_or(if self.kind == FaultKind::Kill { self.from } else { RunNanos::MAX })
    }
}

/// The whole history.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    pub(crate) header: Header,
    pub(crate) calls: Vec<Invocation<'a>>,
    /// By the time of the grant.
    pub(crate) holds: Vec<Hold<'a>>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerLifetime>,
    pub(crate) faults: Vec<Fault<'a>>,
    /// The time, the lock, and the leak.
    pub(crate) leftovers: Vec<(RunNanos, &'a str, &'a str)>,
    pub(crate) clean_lock_count: Option<u64>,
    pub(crate) is_complete: bool,
    /// The time of the last line.
    pub(crate) last_event_at: RunNanos,
    hold_index: HashMap<OpId, usize>,
}

impl<'a> Timeline<'a> {
    /// Combines the lines. Inconsistent lines (an end without a beginning, a second end) are
    /// ignored.
    pub(crate) fn from_events(events: &'a [Event]) -> Self {
        let mut timeline = Self {
            header: missing_header(),
            calls: Vec::new(),
            holds: Vec::new(),
            workers: BTreeMap::new(),
            faults: Vec::new(),
            leftovers: Vec::new(),
            clean_lock_count: None,
            is_complete: false,
            last_event_at: events.iter().map(Event::time).max().unwrap_or(0),
            hold_index: HashMap::new(),
        };
        if let Some(header) = events.iter().find_map(|event| if let Event::Run(h) = event { Some(h) } else { None }) {
            timeline.header = (**header).clone();
        }
        timeline.read_calls(events);
        timeline.read_faults_and_leftovers(events);
        timeline.read_workers(events);
        timeline.read_holds(events);
        timeline
    }

    /// The hold that this call acquired.
    pub(crate) fn hold(&self, op: OpId) -> Option<&Hold<'a>> {
        self.hold_index.get(&op).and_then(|&at| self.holds.get(at))
    }

    /// A worker's lifetime; an empty one if no line names it.
    pub(crate) fn lifetime(&self, worker: WorkerId) -> &WorkerLifetime {
        static UNKNOWN: WorkerLifetime =
            WorkerLifetime { lane: None, started_at: 0, killed_at: None, ended_at: None, pauses: Vec::new() };
        self.workers.get(&worker).unwrap_or(&UNKNOWN)
    }

    /// Whether the servers or the connections to them were disturbed in this time, or so shortly
    /// before that it may still have an effect.
    pub(crate) fn is_engine_disturbed(&self, from: RunNanos, to: RunNanos) -> bool {
        let mut theirs = self.faults.iter().filter(|fault| !fault.kind.targets_workers());
        theirs.any(|fault| fault.from <= to && fault.effective_end().saturating_add(self.header.ttl) >= from)
    }

    /// The holds of each lock, by the time of the grant.
    pub(crate) fn holds_by_lock(&self) -> BTreeMap<&'a str, Vec<&Hold<'a>>> {
        let mut locks: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
        for hold in &self.holds {
            locks.entry(hold.lock).or_default().push(hold);
        }
        locks
    }

    fn read_calls(&mut self, events: &'a [Event]) {
        let mut index: HashMap<OpId, usize> = HashMap::new();
        // Several writers append lines, so their order may differ from the order of their times.
        for event in events {
            if let Event::Begin { t, worker, op, due, call } = event {
                index.entry(*op).or_insert_with(|| {
                    let invocation = Invocation {
                        op: *op,
                        worker_id: *worker,
                        began_at: *t,
                        deadline: *due,
                        call,
                        ended: None,
                        queued_at: None,
                    };
                    self.calls.push(invocation);
                    self.calls.len() - 1
                });
            }
        }
        for event in events {
            let (Event::End { op, .. } | Event::Queued { op, .. }) = event else { continue };
            let Some(invocation) = index.get(op).and_then(|&at| self.calls.get_mut(at)) else { continue };
            match event {
                Event::End { t, outcome, .. } if invocation.ended.is_none() => {
                    invocation.ended = Some(((*t).max(invocation.began_at), outcome))
                }
                Event::Queued { t, .. } if invocation.queued_at.is_none() => invocation.queued_at = Some(*t),
                _ => {}
            }
        }
        self.calls.sort_by_key(|invocation| (invocation.began_at, invocation.op));
    }

    fn read_faults_and_leftovers(&mut self, events: &'a [Event]) {
        for event in events {
            match event {
                Event::FaultBegin { t, fault, kind, target, workers, served, spares } => {
                    // The second line of a fault, with its target.
                    if let Some(known) = self.faults.iter_mut().find(|one| one.number == *fault && one.kind == *kind) {
                        (known.target, known.workers, known.served_elsewhere_since) = (target, workers, *served);
                        known.unaffected_locks = spares;
                        continue;
                    }
                    let (number, kind, served) = (*fault, *kind, *served);
                    let (from, to, connections) = (*t, None, None);
                    let fault = Fault {
                        number,
                        kind,
                        target,
                        workers,
                        served_elsewhere_since: served,
                        unaffected_locks: spares,
                        connection_count: connections,
                        from,
                        to,
                    };
                    self.faults.push(fault);
                }
                Event::Leftover { t, lock, what } => self.leftovers.push((*t, lock, what)),
                Event::Clean { locks, .. } => {
                    self.clean_lock_count = Some(self.clean_lock_count.unwrap_or(0).saturating_add(*locks))
                }
                Event::Done { .. } => self.is_complete = true,
                _ => {}
            }
        }
        for event in events {
            let Event::FaultEnd { t, fault, connections, .. } = event else { continue };
            let open = |one: &&mut Fault<'_>| one.number == *fault && one.to.is_none();
            if let Some(one) = self.faults.iter_mut().find(open) {
                one.to = Some((*t).max(one.from));
                one.connection_count = *connections;
            }
        }
        self.faults.sort_by_key(|fault| (fault.from, fault.number));
    }

    fn read_workers(&mut self, events: &'a [Event]) {
        let mut lines: Vec<(RunNanos, WorkerId, &WorkerState)> = Vec::new();
        for event in events {
            if let Event::Worker { t, worker, state } = event {
                lines.push((*t, *worker, state));
            }
        }
        lines.sort_by_key(|(t, ..)| *t);
        for invocation in &self.calls {
            self.workers.entry(invocation.worker_id).or_default();
        }
        for (t, worker, state) in lines {
            let life = self.workers.entry(worker).or_default();
            match state {
                WorkerState::Started { lane, .. } => (life.lane, life.started_at) = (Some(*lane), t),
                WorkerState::Stopped => life.pauses.push((t, RunNanos::MAX)),
                WorkerState::Resumed => {
                    if let Some(open) = life.pauses.iter_mut().find(|stretch| stretch.1 == RunNanos::MAX) {
                        open.1 = t;
                    }
                }
                WorkerState::Killed => life.killed_at = Some(life.killed_at.unwrap_or(t)),
                WorkerState::Stalled { from } => life.pauses.push(((*from).min(t), t)),
                WorkerState::Ended => life.ended_at = Some(life.ended_at.unwrap_or(t)),
            }
        }
        // A history that was cut short may lack the `Killed` line: the fault stopped the workers
        // before it killed them.
        if !self.is_complete {
            for fault in self.faults.iter().filter(|fault| fault.kind == FaultKind::Kill) {
                for worker in fault.workers {
                    self.workers.entry(*worker).or_default().killed_at.get_or_insert(fault.from);
                }
            }
        }
        for life in self.workers.values_mut() {
            life.pauses = merge_spans(std::mem::take(&mut life.pauses));
        }
    }

    fn read_holds(&mut self, events: &'a [Event]) {
        for invocation in &self.calls {
            let Call::Lock { lock, mode, owner, waits } = invocation.call else { continue };
            let Some((granted, Outcome::Granted { token, deadline })) = invocation.ended else { continue };
            self.holds.push(Hold {
                op: invocation.op,
                worker: invocation.worker_id,
                lock,
                mode: *mode,
                owner: owner.as_deref(),
                is_waiting: *waits,
                requested_at: invocation.began_at,
                queued_at: invocation.queued_at,
                granted_at: granted,
                token: *token,
                held_checks: Vec::new(),
                deadline: *deadline,
                unheld_since: None,
                lost: None,
                release_began_at: None,
                confirmed_release_at: None,
                released_by: None,
                evicted_at: None,
                release_requested_at: None,
                certainly_held_until: granted,
                relied_on_until: granted,
            });
        }
        self.holds.sort_by_key(|hold| (hold.granted_at, hold.op));
        self.hold_index = self.holds.iter().enumerate().map(|(at, hold)| (hold.op, at)).collect();
        self.read_hold_events(events);
        let mut left: HashMap<OpId, RunNanos> = HashMap::new();
        for invocation in &self.calls {
            let Call::Release { hold } = invocation.call else { continue };
            let Some(hold) = self.hold_index.get(hold).and_then(|&at| self.holds.get_mut(at)) else { continue };
            left.entry(hold.op).or_insert(invocation.began_at);
            match invocation.ended {
                // The release had no effect: the lock is held as before.
                Some((_, Outcome::Failed { .. })) => continue,
                Some((end, Outcome::Released)) if hold.confirmed_release_at.is_none() => {
                    hold.confirmed_release_at = Some(invocation.began_at);
                    hold.released_by = Some(end);
                }
                _ => {}
            }
            hold.release_began_at = Some(hold.release_began_at.unwrap_or(invocation.began_at));
        }
        self.read_evictions();
        for hold in &mut self.holds {
            hold.held_checks.sort_unstable();
            hold.deadline = hold.held_checks.iter().map(|&(_, deadline)| deadline).fold(hold.deadline, RunNanos::max);
            let seen = hold.held_checks.last().map_or(hold.granted_at, |&(t, _)| t);
            let seen = hold.confirmed_release_at.map_or(seen, |released| seen.max(released));
            hold.certainly_held_until = seen.min(hold.release_began_at.unwrap_or(RunNanos::MAX)).max(hold.granted_at);
            let killed = self.workers.get(&hold.worker).and_then(|life| life.killed_at);
            // Includes a failed release: it continues in the background.
            let ends = [left.get(&hold.op).copied(), hold.unheld_since, hold.lost.map(|(lost, _)| lost), killed];
            hold.relied_on_until =
                ends.into_iter().flatten().fold(hold.deadline, RunNanos::min).max(hold.certainly_held_until);
            // The stated exception: others may acquire the lock from then on, and the fence token
            // keeps the evicted holder out.
            if let Some(evicted) = hold.evicted_at {
                hold.certainly_held_until = hold.certainly_held_until.min(evicted).max(hold.granted_at);
                hold.relied_on_until = hold.relied_on_until.min(evicted).max(hold.granted_at);
            }
        }
    }

    /// Reads the holders' checks and notifications.
    fn read_hold_events(&mut self, events: &[Event]) {
        let first = |known: Option<RunNanos>, t: RunNanos| Some(known.unwrap_or(t).min(t));
        for event in events {
            let (Event::Held { op, .. }
            | Event::Unheld { op, .. }
            | Event::Requested { op, .. }
            | Event::Lost { op, .. }) = event
            else {
                continue;
            };
            let Some(hold) = self.hold_index.get(op).and_then(|&at| self.holds.get_mut(at)) else { continue };
            match event {
                Event::Held { t, deadline, .. } => hold.held_checks.push((*t, *deadline)),
                Event::Unheld { t, .. } => hold.unheld_since = first(hold.unheld_since, *t),
                Event::Requested { t, .. } => hold.release_requested_at = first(hold.release_requested_at, *t),
                Event::Lost { t, deadline, .. } if hold.lost.is_none() => hold.lost = Some((*t, *deadline)),
                _ => {}
            }
        }
    }

    /// The holds that an eviction ended, or may have.
    fn read_evictions(&mut self) {
        for invocation in &self.calls {
            let Call::Evict { hold: Some(hold), token, graceful: false, .. } = invocation.call else { continue };
            if let Some((_, Outcome::Evicted { gone: true, .. } | Outcome::Failed { .. })) = invocation.ended {
                continue;
            }
            let hold = self.hold_index.get(hold).and_then(|&at| self.holds.get_mut(at));
            // A waiter may have been granted the lock meanwhile; a later grant is not affected.
            let waited = |hold: &Hold<'_>| {
                *token == 0
                    && invocation.ended.is_none_or(|(end, _)| hold.granted_at <= end.saturating_add(GRANT_GRACE))
            };
            if let Some(hold) = hold.filter(|hold| hold.token == *token || waited(hold)) {
                hold.evicted_at = Some(hold.evicted_at.unwrap_or(invocation.began_at).min(invocation.began_at));
            }
        }
    }
}

/// Sorts the spans and merges those that overlap or touch.
fn merge_spans(mut spans: Vec<(RunNanos, RunNanos)>) -> Vec<(RunNanos, RunNanos)> {
    spans.sort_unstable();
    let mut apart: Vec<(RunNanos, RunNanos)> = Vec::new();
    for (from, to) in spans {
        match apart.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    apart
}

/// The header of a history that has none.
fn missing_header() -> Header {
    Header {
        format: 1,
        leasehold: String::new(),
        engine: "unknown".to_owned(),
        url: String::new(),
        versions: Vec::new(),
        workload: Workload::Mutex,
        faults: Vec::new(),
        guard: true,
        control: None,
        seed: 0,
        ttl: 0,
        lanes: 0,
        fair: false,
        fencing: false,
        exclusion: true,
        must_break: Vec::new(),
        started: String::new(),
        notes: BTreeMap::new(),
    }
}
