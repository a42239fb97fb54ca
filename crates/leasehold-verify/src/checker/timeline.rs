//! Combines the events of a history into calls, holds, workers and faults.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Call, Event, FaultKind, Header, Mode, OpId, Outcome, RunNanos, WorkerId, WorkerState, Workload};

/// How long after a force release its worker may still receive a grant that was made before it.
const GRANT_GRACE: RunNanos = 600_000_000;

/// A call with its beginning and, if it has one, its end.
#[derive(Clone, Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) op: OpId,
    pub(crate) worker_id: WorkerId,
    pub(crate) began_at: RunNanos,
    /// When it should end; `None`: no limit.
    pub(crate) deadline: Option<RunNanos>,
    pub(crate) call: &'a Call,
    /// When it ended, and its outcome; `None`: the history has no end of it.
    pub(crate) ended: Option<(RunNanos, &'a Outcome)>,
    /// When the engine first listed it in the lock's queue.
    pub(crate) queued_at: Option<RunNanos>,
}

/// A lock that a worker was granted, and when it could rely on it.
#[derive(Clone, Debug)]
pub(crate) struct Hold<'a> {
    /// The number of the call that acquired it.
    pub(crate) op: OpId,
    pub(crate) worker: WorkerId,
    pub(crate) lock: &'a str,
    pub(crate) mode: Mode,
    /// The re-entrant owner; `None`: an owner of its own.
    pub(crate) owner: Option<&'a str>,
    /// Whether its request was one that waits.
    pub(crate) is_waiting: bool,
    pub(crate) requested_at: RunNanos,
    pub(crate) queued_at: Option<RunNanos>,
    pub(crate) granted_at: RunNanos,
    pub(crate) token: u64,
    /// The times at which its holder found it held, each with the deadline at that time; sorted.
    pub(crate) held_checks: Vec<(RunNanos, RunNanos)>,
    /// The latest deadline that its holder knew of.
    pub(crate) deadline: RunNanos,
    /// When its holder first found it not held any more.
    pub(crate) unheld_since: Option<RunNanos>,
    /// When its holder was notified of the loss, and the last deadline that the guard had reported.
    pub(crate) lost: Option<(RunNanos, RunNanos)>,
    /// When its release began; `None`: never, or the release certainly had no effect.
    pub(crate) release_began_at: Option<RunNanos>,
    /// When the release began whose outcome was `Released`, so that it was held until then.
    pub(crate) confirmed_release_at: Option<RunNanos>,
    /// When the release with the outcome `Released` ended.
    pub(crate) released_by: Option<RunNanos>,
    /// When its force release began; `None`: never, or that certainly had no effect.
    pub(crate) force_released_at: Option<RunNanos>,
    /// When its holder was notified that it is asked to release.
    pub(crate) release_requested_at: Option<RunNanos>,
    /// The end of the time in which it was certainly held; equal to `granted_at` if nothing
    /// confirms it.
    pub(crate) certainly_held_until: RunNanos,
    /// The end of the time in which its holder could rely on it: the last deadline that it knew of,
    /// or earlier if it began to release, was notified of the loss, was killed, or force-released.
    pub(crate) relied_on_until: RunNanos,
}

impl Hold<'_> {
    /// Whether both have the same named owner; `false` if either has none.
    pub(crate) fn has_same_owner(&self, other: &Self) -> bool {
        self.owner.is_some() && self.owner == other.owner
    }

    /// Whether exclusion forbids that both are held at once; always `false` for permits, which have
    /// their own check.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let permits = |mode| matches!(mode, Mode::Permits { .. });
        let shared = self.mode == Mode::Shared && other.mode == Mode::Shared;
        !shared && !permits(self.mode) && !permits(other.mode) && !self.has_same_owner(other)
    }

    /// Whether it was granted by time `t`, and not certainly released before.
    pub(crate) fn may_be_held_at(&self, t: RunNanos) -> bool {
        self.granted_at <= t && self.released_by.is_none_or(|gone| gone >= t)
    }
}

/// When a worker process ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerLifetime {
    pub(crate) lane: Option<u32>,
    pub(crate) started_at: RunNanos,
    pub(crate) killed_at: Option<RunNanos>,
    pub(crate) ended_at: Option<RunNanos>,
    /// The spans in which it was stopped or stalled; sorted and disjoint. An end of `RunNanos::MAX`
    /// means that it never ran again.
    pub(crate) pauses: Vec<(RunNanos, RunNanos)>,
}

impl WorkerLifetime {
    /// How long it was stopped or stalled between `from` and `to`.
    pub(crate) fn paused_time(&self, from: RunNanos, to: RunNanos) -> RunNanos {
        let within = |&(a, b): &(RunNanos, RunNanos)| b.min(to).saturating_sub(a.max(from));
        self.pauses.iter().map(within).fold(0, RunNanos::saturating_add)
    }

    /// Whether it ran all the time between `from` and `to`, both included.
    pub(crate) fn ran_throughout(&self, from: RunNanos, to: RunNanos) -> bool {
        !self.pauses.iter().any(|&(a, b)| a <= to && b >= from) && self.killed_at.is_none_or(|killed| killed > to)
    }
}

/// An injected fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) number: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: &'a str,
    pub(crate) workers: &'a [WorkerId],
    /// When servers that it does not hit could serve again during the fault; `None`: they could
    /// not, or it is not known.
    pub(crate) served_elsewhere_since: Option<RunNanos>,
    /// The locks on servers that it does not hit, which it must not lose.
    pub(crate) unaffected_locks: &'a [String],
    /// How many connections the servers accepted during the fault; `None`: not counted.
    pub(crate) connection_count: Option<u64>,
    pub(crate) from: RunNanos,
    /// `None`: the history has no end of it.
    pub(crate) to: Option<RunNanos>,
}

impl Fault<'_> {
    /// When the fault ended. Without a recorded end, a kill ends when it begins, and any other
    /// fault never ends (`RunNanos::MAX`).
    pub(crate) fn effective_end(&self) -> RunNanos {
        self.to.unwrap_or(if self.kind == FaultKind::Kill { self.from } else { RunNanos::MAX })
    }
}

/// A history, combined from its events.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    pub(crate) header: Header,
    /// Ordered by their beginning.
    pub(crate) calls: Vec<Invocation<'a>>,
    /// Ordered by the time of the grant.
    pub(crate) holds: Vec<Hold<'a>>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerLifetime>,
    /// Ordered by their beginning.
    pub(crate) faults: Vec<Fault<'a>>,
    /// The leaks: when each was found, on which lock, and a description.
    pub(crate) leftovers: Vec<(RunNanos, &'a str, &'a str)>,
    /// How many locks were inspected and had no leak; `None`: none was inspected, or all leaked.
    pub(crate) clean_lock_count: Option<u64>,
    /// Whether the history has its last line, so that the run completed.
    pub(crate) is_complete: bool,
    /// The latest time of any event.
    pub(crate) last_event_at: RunNanos,
    /// The index in `holds` of the hold that each call acquired.
    hold_index: HashMap<OpId, usize>,
}

impl<'a> Timeline<'a> {
    /// Combines the events. Inconsistent ones (an end without a beginning, a second end) are
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

    /// The hold that this call acquired; `None`: it acquired none.
    pub(crate) fn hold(&self, op: OpId) -> Option<&Hold<'a>> {
        self.hold_index.get(&op).and_then(|&at| self.holds.get(at))
    }

    /// A worker's lifetime; an empty one if no event names the worker.
    pub(crate) fn lifetime(&self, worker: WorkerId) -> &WorkerLifetime {
        static UNKNOWN: WorkerLifetime =
            WorkerLifetime { lane: None, started_at: 0, killed_at: None, ended_at: None, pauses: Vec::new() };
        self.workers.get(&worker).unwrap_or(&UNKNOWN)
    }

    /// Whether a fault of the servers or of the connections was active between `from` and `to`, or
    /// ended less than a TTL before.
    pub(crate) fn is_engine_disturbed(&self, from: RunNanos, to: RunNanos) -> bool {
        let mut engine_faults = self.faults.iter().filter(|fault| !fault.kind.targets_workers());
        engine_faults.any(|fault| fault.from <= to && fault.effective_end().saturating_add(self.header.ttl) >= from)
    }

    /// The holds of each lock, ordered by the time of the grant.
    pub(crate) fn holds_by_lock(&self) -> BTreeMap<&'a str, Vec<&Hold<'a>>> {
        let mut locks: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
        for hold in &self.holds {
            locks.entry(hold.lock).or_default().push(hold);
        }
        locks
    }

    /// Builds the calls from their beginnings and ends.
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

    /// Builds the faults, the leaks, and whether the run completed.
    fn read_faults_and_leftovers(&mut self, events: &'a [Event]) {
        for event in events {
            match event {
                Event::FaultBegin { t, fault, kind, target, workers, served, spares } => {
                    // A fault has a second event, once its target is known.
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

    /// Builds the lifetimes of the workers.
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

    /// Builds the holds from granted requests, and computes until when each could be relied on.
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
                force_released_at: None,
                release_requested_at: None,
                certainly_held_until: granted,
                relied_on_until: granted,
            });
        }
        self.holds.sort_by_key(|hold| (hold.granted_at, hold.op));
        self.hold_index = self.holds.iter().enumerate().map(|(at, hold)| (hold.op, at)).collect();
        self.read_hold_events(events);
        let mut first_release_at: HashMap<OpId, RunNanos> = HashMap::new();
        for invocation in &self.calls {
            let Call::Release { hold } = invocation.call else { continue };
            let Some(hold) = self.hold_index.get(hold).and_then(|&at| self.holds.get_mut(at)) else { continue };
            first_release_at.entry(hold.op).or_insert(invocation.began_at);
            match invocation.ended {
                // A failed release had no effect: the lock is held as before.
                Some((_, Outcome::Failed { .. })) => continue,
                Some((end, Outcome::Released)) if hold.confirmed_release_at.is_none() => {
                    hold.confirmed_release_at = Some(invocation.began_at);
                    hold.released_by = Some(end);
                }
                _ => {}
            }
            hold.release_began_at = Some(hold.release_began_at.unwrap_or(invocation.began_at));
        }
        self.read_force_releases();
        for hold in &mut self.holds {
            hold.held_checks.sort_unstable();
            hold.deadline = hold.held_checks.iter().map(|&(_, deadline)| deadline).fold(hold.deadline, RunNanos::max);
            let seen = hold.held_checks.last().map_or(hold.granted_at, |&(t, _)| t);
            let seen = hold.confirmed_release_at.map_or(seen, |released| seen.max(released));
            hold.certainly_held_until = seen.min(hold.release_began_at.unwrap_or(RunNanos::MAX)).max(hold.granted_at);
            let killed = self.workers.get(&hold.worker).and_then(|life| life.killed_at);
            // Includes a failed release, which the client retries in the background.
            let ends =
                [first_release_at.get(&hold.op).copied(), hold.unheld_since, hold.lost.map(|(lost, _)| lost), killed];
            hold.relied_on_until =
                ends.into_iter().flatten().fold(hold.deadline, RunNanos::min).max(hold.certainly_held_until);
            // A force release is the documented exception from exclusion: others may acquire the
            // lock once it begins, and the fence token makes the resource refuse this holder.
            if let Some(began_at) = hold.force_released_at {
                hold.certainly_held_until = hold.certainly_held_until.min(began_at).max(hold.granted_at);
                hold.relied_on_until = hold.relied_on_until.min(began_at).max(hold.granted_at);
            }
        }
    }

    /// Records in each hold when its holder checked it or was notified.
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

    /// Records in each hold when a force release of it began, if that may have taken effect.
    fn read_force_releases(&mut self) {
        for invocation in &self.calls {
            let Call::Evict { hold: Some(hold), token, graceful: false, .. } = invocation.call else { continue };
            if let Some((_, Outcome::Evicted { gone: true, .. } | Outcome::Failed { .. })) = invocation.ended {
                continue;
            }
            let hold = self.hold_index.get(hold).and_then(|&at| self.holds.get_mut(at));
            // A force-released waiter may have been granted the lock just before.
            let waited = |hold: &Hold<'_>| {
                *token == 0
                    && invocation.ended.is_none_or(|(end, _)| hold.granted_at <= end.saturating_add(GRANT_GRACE))
            };
            if let Some(hold) = hold.filter(|hold| hold.token == *token || waited(hold)) {
                hold.force_released_at =
                    Some(hold.force_released_at.unwrap_or(invocation.began_at).min(invocation.began_at));
            }
        }
    }
}

/// Sorts the spans, and merges those that overlap or touch.
fn merge_spans(mut spans: Vec<(RunNanos, RunNanos)>) -> Vec<(RunNanos, RunNanos)> {
    spans.sort_unstable();
    let mut merged: Vec<(RunNanos, RunNanos)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// A placeholder for the header of a history that has none.
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
