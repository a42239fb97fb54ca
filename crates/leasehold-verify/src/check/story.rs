//! Combines the lines of a history into calls, holds, workers and faults.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Call, Event, FaultKind, Header, Mode, Nanos, OpId, Outcome, State, Worker, Workload};

/// A call, from its beginning to its end if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Made<'a> {
    pub(crate) op: OpId,
    pub(crate) worker: Worker,
    pub(crate) begin: Nanos,
    pub(crate) due: Option<Nanos>,
    pub(crate) call: &'a Call,
    pub(crate) end: Option<(Nanos, &'a Outcome)>,
    pub(crate) queued: Option<Nanos>,
}

/// A granted lock.
#[derive(Clone, Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) op: OpId,
    pub(crate) worker: Worker,
    pub(crate) lock: &'a str,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<&'a str>,
    pub(crate) waits: bool,
    pub(crate) asked: Nanos,
    pub(crate) queued: Option<Nanos>,
    pub(crate) granted: Nanos,
    pub(crate) token: u64,
    /// The times at which it was certainly held, with the deadline at that time; sorted by time.
    pub(crate) held: Vec<(Nanos, Nanos)>,
    /// The latest known deadline: of the grant, or of a `Held` line.
    pub(crate) deadline: Nanos,
    /// When a check first showed that it is not held any more.
    pub(crate) unheld: Option<Nanos>,
    /// When the holder was notified of the loss, and the last deadline that the guard had reported.
    pub(crate) lost: Option<(Nanos, Nanos)>,
    /// When its release began, if it may have taken effect.
    pub(crate) release: Option<Nanos>,
    /// The beginning of the release which answered that the lock was held until then.
    pub(crate) released: Option<Nanos>,
    /// When it was certainly released.
    pub(crate) gone: Option<Nanos>,
    /// When an eviction of it began, if that may have taken effect.
    pub(crate) evicted: Option<Nanos>,
    /// When its holder learned of the release request.
    pub(crate) requested: Option<Nanos>,
    /// It was certainly held from its grant until then; equal to the grant if nothing confirms it.
    pub(crate) until: Nanos,
    /// Its holder could rely on it until then: the last deadline that it knew of, unless it began
    /// to release, knew of the loss, or was killed.
    pub(crate) valid: Nanos,
}

impl Hold<'_> {
    /// Whether both certainly have the same owner: two holds without an owner do not.
    pub(crate) fn same_owner(&self, other: &Self) -> bool {
        self.owner.is_some() && self.owner == other.owner
    }

    /// Whether the two must not be held at once. Permits are checked elsewhere.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let permits = |mode| matches!(mode, Mode::Permits { .. });
        let shared = self.mode == Mode::Shared && other.mode == Mode::Shared;
        !shared && !permits(self.mode) && !permits(other.mode) && !self.same_owner(other)
    }

    /// Whether it may still have been held at that time: no line shows that it was released before.
    pub(crate) fn maybe_held_at(&self, t: Nanos) -> bool {
        self.granted <= t && self.gone.is_none_or(|gone| gone >= t)
    }
}

/// A worker's lifetime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    pub(crate) lane: Option<u32>,
    pub(crate) started: Nanos,
    pub(crate) killed: Option<Nanos>,
    pub(crate) ended: Option<Nanos>,
    /// When it did not run: stopped or stalled; sorted and disjoint. `Nanos::MAX`: to the end.
    pub(crate) asleep: Vec<(Nanos, Nanos)>,
}

impl Life {
    /// How long it did not run within this span.
    pub(crate) fn slept(&self, from: Nanos, to: Nanos) -> Nanos {
        let within = |&(a, b): &(Nanos, Nanos)| b.min(to).saturating_sub(a.max(from));
        self.asleep.iter().map(within).fold(0, Nanos::saturating_add)
    }

    /// Whether it ran throughout this span, ends included.
    pub(crate) fn awake(&self, from: Nanos, to: Nanos) -> bool {
        !self.asleep.iter().any(|&(a, b)| a <= to && b >= from) && self.killed.is_none_or(|killed| killed > to)
    }
}

/// A fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) number: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: &'a str,
    pub(crate) workers: &'a [Worker],
    /// When other servers could serve in the meantime.
    pub(crate) served: Option<Nanos>,
    /// The locks on servers that it does not hit.
    pub(crate) spares: &'a [String],
    /// How many connections the servers accepted during the fault.
    pub(crate) connections: Option<u64>,
    pub(crate) from: Nanos,
    pub(crate) to: Option<Nanos>,
}

impl Fault<'_> {
    /// When the fault ended: a kill is instantaneous, any other fault without an end goes on.
    pub(crate) fn until(&self) -> Nanos {
        self.to.unwrap_or(if self.kind == FaultKind::Kill { self.from } else { Nanos::MAX })
    }
}

/// The whole history.
#[derive(Debug)]
pub(crate) struct Story<'a> {
    pub(crate) header: Header,
    pub(crate) calls: Vec<Made<'a>>,
    /// By the time of the grant.
    pub(crate) holds: Vec<Hold<'a>>,
    pub(crate) workers: BTreeMap<Worker, Life>,
    pub(crate) faults: Vec<Fault<'a>>,
    /// The time, the lock, and the leak.
    pub(crate) leftovers: Vec<(Nanos, &'a str, &'a str)>,
    pub(crate) clean: Option<u64>,
    pub(crate) complete: bool,
    /// The time of the last line.
    pub(crate) last: Nanos,
    hold_of: HashMap<OpId, usize>,
}

impl<'a> Story<'a> {
    /// Combines the lines. Inconsistent lines (an end without a beginning, a second end) are
    /// ignored.
    pub(crate) fn read(events: &'a [Event]) -> Self {
        let mut story = Self {
            header: nobody_said(),
            calls: Vec::new(),
            holds: Vec::new(),
            workers: BTreeMap::new(),
            faults: Vec::new(),
            leftovers: Vec::new(),
            clean: None,
            complete: false,
            last: events.iter().map(Event::at).max().unwrap_or(0),
            hold_of: HashMap::new(),
        };
        if let Some(header) = events.iter().find_map(|event| if let Event::Run(h) = event { Some(h) } else { None }) {
            story.header = (**header).clone();
        }
        story.read_calls(events);
        story.read_rest(events);
        story.read_workers(events);
        story.read_holds(events);
        story
    }

    /// The hold that this call acquired.
    pub(crate) fn hold(&self, op: OpId) -> Option<&Hold<'a>> {
        self.hold_of.get(&op).and_then(|&at| self.holds.get(at))
    }

    /// A worker's lifetime; an empty one if no line names it.
    pub(crate) fn life(&self, worker: Worker) -> &Life {
        static UNKNOWN: Life = Life { lane: None, started: 0, killed: None, ended: None, asleep: Vec::new() };
        self.workers.get(&worker).unwrap_or(&UNKNOWN)
    }

    /// Whether the servers or the connections to them were disturbed in this time, or so shortly
    /// before that it may still have an effect.
    pub(crate) fn disturbed(&self, from: Nanos, to: Nanos) -> bool {
        let mut theirs = self.faults.iter().filter(|fault| !fault.kind.hits_workers());
        theirs.any(|fault| fault.from <= to && fault.until().saturating_add(self.header.ttl) >= from)
    }

    /// The holds of each lock, by the time of the grant.
    pub(crate) fn by_lock(&self) -> BTreeMap<&'a str, Vec<&Hold<'a>>> {
        let mut locks: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
        for hold in &self.holds {
            locks.entry(hold.lock).or_default().push(hold);
        }
        locks
    }

    fn read_calls(&mut self, events: &'a [Event]) {
        let mut index: HashMap<OpId, usize> = HashMap::new();
        // The lines of several writers may be in another order than their times.
        for event in events {
            if let Event::Begin { t, worker, op, due, call } = event {
                index.entry(*op).or_insert_with(|| {
                    let made = Made { op: *op, worker: *worker, begin: *t, due: *due, call, end: None, queued: None };
                    self.calls.push(made);
                    self.calls.len() - 1
                });
            }
        }
        for event in events {
            let (Event::End { op, .. } | Event::Queued { op, .. }) = event else { continue };
            let Some(made) = index.get(op).and_then(|&at| self.calls.get_mut(at)) else { continue };
            match event {
                Event::End { t, outcome, .. } if made.end.is_none() => made.end = Some(((*t).max(made.begin), outcome)),
                Event::Queued { t, .. } if made.queued.is_none() => made.queued = Some(*t),
                _ => {}
            }
        }
        self.calls.sort_by_key(|made| (made.begin, made.op));
    }

    fn read_rest(&mut self, events: &'a [Event]) {
        for event in events {
            match event {
                Event::FaultBegin { t, fault, kind, target, workers, served, spares } => {
                    // The second line of a fault, with its target.
                    if let Some(told) = self.faults.iter_mut().find(|one| one.number == *fault && one.kind == *kind) {
                        (told.target, told.workers, told.served) = (target, workers, *served);
                        told.spares = spares;
                        continue;
                    }
                    let (number, kind, served) = (*fault, *kind, *served);
                    let (from, to, connections) = (*t, None, None);
                    let fault = Fault { number, kind, target, workers, served, spares, connections, from, to };
                    self.faults.push(fault);
                }
                Event::Leftover { t, lock, what } => self.leftovers.push((*t, lock, what)),
                Event::Clean { locks, .. } => self.clean = Some(self.clean.unwrap_or(0).saturating_add(*locks)),
                Event::Done { .. } => self.complete = true,
                _ => {}
            }
        }
        for event in events {
            let Event::FaultEnd { t, fault, connections, .. } = event else { continue };
            let open = |one: &&mut Fault<'_>| one.number == *fault && one.to.is_none();
            if let Some(one) = self.faults.iter_mut().find(open) {
                one.to = Some((*t).max(one.from));
                one.connections = *connections;
            }
        }
        self.faults.sort_by_key(|fault| (fault.from, fault.number));
    }

    fn read_workers(&mut self, events: &'a [Event]) {
        let mut lines: Vec<(Nanos, Worker, &State)> = Vec::new();
        for event in events {
            if let Event::Worker { t, worker, state } = event {
                lines.push((*t, *worker, state));
            }
        }
        lines.sort_by_key(|(t, ..)| *t);
        for made in &self.calls {
            self.workers.entry(made.worker).or_default();
        }
        for (t, worker, state) in lines {
            let life = self.workers.entry(worker).or_default();
            match state {
                State::Started { lane, .. } => (life.lane, life.started) = (Some(*lane), t),
                State::Stopped => life.asleep.push((t, Nanos::MAX)),
                State::Resumed => {
                    if let Some(open) = life.asleep.iter_mut().find(|stretch| stretch.1 == Nanos::MAX) {
                        open.1 = t;
                    }
                }
                State::Killed => life.killed = Some(life.killed.unwrap_or(t)),
                State::Stalled { from } => life.asleep.push(((*from).min(t), t)),
                State::Ended => life.ended = Some(life.ended.unwrap_or(t)),
            }
        }
        // A history that was cut short may lack the `Killed` line: the fault stopped the workers
        // before it killed them.
        if !self.complete {
            for fault in self.faults.iter().filter(|fault| fault.kind == FaultKind::Kill) {
                for worker in fault.workers {
                    self.workers.entry(*worker).or_default().killed.get_or_insert(fault.from);
                }
            }
        }
        for life in self.workers.values_mut() {
            life.asleep = apart(std::mem::take(&mut life.asleep));
        }
    }

    fn read_holds(&mut self, events: &'a [Event]) {
        for made in &self.calls {
            let Call::Lock { lock, mode, owner, waits } = made.call else { continue };
            let Some((granted, Outcome::Granted { token, deadline })) = made.end else { continue };
            self.holds.push(Hold {
                op: made.op,
                worker: made.worker,
                lock,
                mode: *mode,
                owner: owner.as_deref(),
                waits: *waits,
                asked: made.begin,
                queued: made.queued,
                granted,
                token: *token,
                held: Vec::new(),
                deadline: *deadline,
                unheld: None,
                lost: None,
                release: None,
                released: None,
                gone: None,
                evicted: None,
                requested: None,
                until: granted,
                valid: granted,
            });
        }
        self.holds.sort_by_key(|hold| (hold.granted, hold.op));
        self.hold_of = self.holds.iter().enumerate().map(|(at, hold)| (hold.op, at)).collect();
        self.read_looks(events);
        let mut left: HashMap<OpId, Nanos> = HashMap::new();
        for made in &self.calls {
            let Call::Release { hold } = made.call else { continue };
            let Some(hold) = self.hold_of.get(hold).and_then(|&at| self.holds.get_mut(at)) else { continue };
            left.entry(hold.op).or_insert(made.begin);
            match made.end {
                // The release had no effect: the lock is held as before.
                Some((_, Outcome::Failed { .. })) => continue,
                Some((end, Outcome::Released)) if hold.released.is_none() => {
                    hold.released = Some(made.begin);
                    hold.gone = Some(end);
                }
                _ => {}
            }
            hold.release = Some(hold.release.unwrap_or(made.begin));
        }
        self.read_evictions();
        for hold in &mut self.holds {
            hold.held.sort_unstable();
            hold.deadline = hold.held.iter().map(|&(_, deadline)| deadline).fold(hold.deadline, Nanos::max);
            let seen = hold.held.last().map_or(hold.granted, |&(t, _)| t);
            let seen = hold.released.map_or(seen, |released| seen.max(released));
            hold.until = seen.min(hold.release.unwrap_or(Nanos::MAX)).max(hold.granted);
            let killed = self.workers.get(&hold.worker).and_then(|life| life.killed);
            // Includes a failed release: it goes on in the background.
            let ends = [left.get(&hold.op).copied(), hold.unheld, hold.lost.map(|(lost, _)| lost), killed];
            hold.valid = ends.into_iter().flatten().fold(hold.deadline, Nanos::min).max(hold.until);
            // The stated exception: others may acquire the lock from then on, and the fence token
            // keeps the evicted holder out.
            if let Some(evicted) = hold.evicted {
                hold.until = hold.until.min(evicted).max(hold.granted);
                hold.valid = hold.valid.min(evicted).max(hold.granted);
            }
        }
    }

    /// Reads the holders' checks and notifications.
    fn read_looks(&mut self, events: &[Event]) {
        let first = |known: Option<Nanos>, t: Nanos| Some(known.unwrap_or(t).min(t));
        for event in events {
            let (Event::Held { op, .. }
            | Event::Unheld { op, .. }
            | Event::Requested { op, .. }
            | Event::Lost { op, .. }) = event
            else {
                continue;
            };
            let Some(hold) = self.hold_of.get(op).and_then(|&at| self.holds.get_mut(at)) else { continue };
            match event {
                Event::Held { t, deadline, .. } => hold.held.push((*t, *deadline)),
                Event::Unheld { t, .. } => hold.unheld = first(hold.unheld, *t),
                Event::Requested { t, .. } => hold.requested = first(hold.requested, *t),
                Event::Lost { t, deadline, .. } if hold.lost.is_none() => hold.lost = Some((*t, *deadline)),
                _ => {}
            }
        }
    }

    /// The holds that an eviction ended, or may have.
    fn read_evictions(&mut self) {
        for made in &self.calls {
            let Call::Evict { hold: Some(hold), token, graceful: false, .. } = made.call else { continue };
            if let Some((_, Outcome::Evicted { gone: true, .. } | Outcome::Failed { .. })) = made.end {
                continue;
            }
            let hold = self.hold_of.get(hold).and_then(|&at| self.holds.get_mut(at));
            if let Some(hold) = hold.filter(|hold| hold.token == *token) {
                hold.evicted = Some(hold.evicted.unwrap_or(made.begin).min(made.begin));
            }
        }
    }
}

/// Sorts the spans and merges those that overlap or touch.
fn apart(mut stretches: Vec<(Nanos, Nanos)>) -> Vec<(Nanos, Nanos)> {
    stretches.sort_unstable();
    let mut apart: Vec<(Nanos, Nanos)> = Vec::new();
    for (from, to) in stretches {
        match apart.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    apart
}

/// The header of a history that has none.
fn nobody_said() -> Header {
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
