//! Builds a history for a test, event by event. All times are in milliseconds.

use std::collections::BTreeMap;

use leasehold_verify::checker::check;
use leasehold_verify::history::{
    Call, Event, FaultKind, Header, Mode, OpId, Outcome, RunNanos, WorkerId, WorkerState, Workload,
};
use leasehold_verify::verdict::{Finding, FindingStatus, Guarantee, Verdict};

/// Nanoseconds in a millisecond.
pub(crate) const NANOS_PER_MS: RunNanos = 1_000_000;

/// The TTL of all histories here, in milliseconds.
pub(crate) const TTL: u64 = 1_000;

/// Builds a history, event by event.
pub(crate) struct HistoryBuilder {
    pub(crate) events: Vec<Event>,
    /// The number of the next call, without its worker.
    next_call: OpId,
}

/// A header of an engine that guarantees everything, with four lanes.
pub(crate) fn header(workload: Workload) -> Header {
    Header {
        format: 1,
        leasehold: "leasehold 0".to_owned(),
        engine: "memory".to_owned(),
        url: "memory:".to_owned(),
        versions: Vec::new(),
        workload,
        faults: Vec::new(),
        guard: true,
        control: None,
        seed: 1,
        ttl: TTL * NANOS_PER_MS,
        lanes: 4,
        fair: true,
        fencing: true,
        exclusion: true,
        must_break: Vec::new(),
        started: String::new(),
        notes: BTreeMap::new(),
    }
}

impl HistoryBuilder {
    pub(crate) fn for_workload(workload: Workload) -> Self {
        Self::with_header(header(workload))
    }

    pub(crate) fn with_header(header: Header) -> Self {
        Self { events: vec![Event::Run(Box::new(header))], next_call: 1 }
    }

    /// Adds the beginning of a call without a deadline; returns its number.
    pub(crate) fn begin(&mut self, t: u64, worker: WorkerId, call: Call) -> OpId {
        self.begin_with_deadline(t, worker, None, call)
    }

    /// Adds the beginning of a call that should end by `due`; returns its number.
    pub(crate) fn begin_with_deadline(&mut self, t: u64, worker: WorkerId, due: Option<u64>, call: Call) -> OpId {
        let op = (u64::from(worker) << 32) | self.next_call;
        self.next_call += 1;
        self.events.push(Event::Begin {
            t: t * NANOS_PER_MS,
            worker,
            op,
            due: due.map(|due| due * NANOS_PER_MS),
            call,
        });
        op
    }

    /// Adds the end of a call.
    pub(crate) fn end(&mut self, t: u64, op: OpId, outcome: Outcome) {
        self.events.push(Event::End { t: t * NANOS_PER_MS, op, outcome });
    }

    /// Adds a request for a lock at `from` that is granted at `to` for one TTL; returns its call.
    pub(crate) fn add_grant(&mut self, (from, to): (u64, u64), worker: WorkerId, call: Call, token: u64) -> OpId {
        let op = self.begin(from, worker, call);
        self.end(to, op, Outcome::Granted { token, deadline: (to + TTL) * NANOS_PER_MS });
        op
    }

    /// Adds a request for the exclusive lock `a` that is granted at the end of `span`; returns its
    /// call.
    pub(crate) fn acquire(&mut self, span: (u64, u64), worker: WorkerId, token: u64) -> OpId {
        self.add_grant(span, worker, exclusive_request("a"), token)
    }

    /// Adds that the engine listed the waiting call in the queue.
    pub(crate) fn add_queued(&mut self, t: u64, op: OpId) {
        self.events.push(Event::Queued { t: t * NANOS_PER_MS, op });
    }

    /// Adds that the holder found its lock held, with a whole TTL left.
    pub(crate) fn add_held_check(&mut self, t: u64, op: OpId) {
        self.events.push(Event::Held { t: t * NANOS_PER_MS, op, deadline: (t + TTL) * NANOS_PER_MS });
    }

    /// Adds that the holder found its lock no longer held.
    pub(crate) fn add_unheld_check(&mut self, t: u64, op: OpId) {
        self.events.push(Event::Unheld { t: t * NANOS_PER_MS, op });
    }

    /// Adds that the holder is notified of a release request.
    pub(crate) fn add_release_request(&mut self, t: u64, op: OpId) {
        self.events.push(Event::Requested { t: t * NANOS_PER_MS, op });
    }

    /// Adds that the holder is notified at `t` of the loss of its lock, whose last deadline was
    /// `deadline`.
    pub(crate) fn add_loss(&mut self, t: u64, op: OpId, deadline: u64) {
        self.events.push(Event::Lost {
            t: t * NANOS_PER_MS,
            op,
            deadline: deadline * NANOS_PER_MS,
            reason: "expired".to_owned(),
        });
    }

    /// Adds a release of the lock that call `op` acquired, with this outcome.
    pub(crate) fn release_with(&mut self, (from, to): (u64, u64), op: OpId, outcome: Outcome) {
        let worker = u32::try_from(op >> 32).expect("a worker");
        let release = self.begin(from, worker, Call::Release { hold: op });
        self.end(to, release, outcome);
    }

    /// Adds a successful release of the lock that call `op` acquired.
    pub(crate) fn release(&mut self, span: (u64, u64), op: OpId) {
        self.release_with(span, op, Outcome::Released);
    }

    pub(crate) fn add_worker_state(&mut self, t: u64, worker: WorkerId, state: WorkerState) {
        self.events.push(Event::Worker { t: t * NANOS_PER_MS, worker, state });
    }

    /// Adds a fault that hits these workers, or the server if there are none.
    pub(crate) fn add_fault(&mut self, (from, to): (u64, u64), fault: u32, kind: FaultKind, workers: &[WorkerId]) {
        let target = workers.first().map_or_else(|| "the server".to_owned(), |worker| format!("worker {worker}"));
        let (workers, served) = (workers.to_vec(), None);
        self.events.push(Event::FaultBegin {
            t: from * NANOS_PER_MS,
            fault,
            kind,
            target,
            workers,
            served,
            spares: Vec::new(),
        });
        self.events.push(Event::FaultEnd { t: to * NANOS_PER_MS, fault, note: String::new(), connections: None });
    }

    /// Adds a write to the register `r` over this span, under this hold; returns its number.
    pub(crate) fn write(
        &mut self,
        span: (u64, u64),
        hold: OpId,
        token: Option<u64>,
        value: u64,
        outcome: Outcome,
    ) -> OpId {
        let worker = u32::try_from(hold >> 32).expect("a worker");
        let op = self.begin(span.0, worker, Call::Write { hold, register: "r".to_owned(), token, value });
        self.end(span.1, op, outcome);
        op
    }

    /// Adds a read of the register `r` over this span, under this hold; returns its number.
    pub(crate) fn read(&mut self, span: (u64, u64), hold: OpId, token: Option<u64>, outcome: Outcome) -> OpId {
        let worker = u32::try_from(hold >> 32).expect("a worker");
        let op = self.begin(span.0, worker, Call::Read { hold, register: "r".to_owned(), token });
        self.end(span.1, op, outcome);
        op
    }

    /// Adds the last line of a run that completed.
    pub(crate) fn add_last_line(&mut self, t: u64) {
        self.events.push(Event::Done { t: t * NANOS_PER_MS });
    }

    pub(crate) fn check(&self) -> Verdict {
        check(&self.events)
    }

    /// Checks the history: the guarantee must be kept, and no other one broken.
    pub(crate) fn assert_kept(&self, guarantee: Guarantee) -> Finding {
        let verdict = self.check();
        assert_eq!(verdict.violations, Vec::new());
        let finding = finding(&verdict, guarantee);
        assert_eq!(finding.state, FindingStatus::Kept, "{finding:?}");
        finding
    }

    /// Checks the history: the guarantee must have this many violations.
    pub(crate) fn assert_broken(&self, guarantee: Guarantee, times: u64) -> Verdict {
        let verdict = self.check();
        let finding = finding(&verdict, guarantee);
        assert_eq!((finding.state, finding.broken), (FindingStatus::Broken, times), "{:#?}", verdict.violations);
        let one = verdict.violations.iter().find(|one| one.guarantee == guarantee).expect("a described violation");
        assert!(one.details.ends_with('.') && one.details.contains(" s") && !one.title.is_empty(), "{one:?}");
        assert!(!verdict.has_no_violations());
        verdict
    }

    /// Checks the history: violations of the guarantee must be only counted, and no other one
    /// broken.
    pub(crate) fn assert_not_guaranteed(&self, guarantee: Guarantee) -> Finding {
        let verdict = self.check();
        let finding = finding(&verdict, guarantee);
        assert_eq!(finding.state, FindingStatus::NotGuaranteed, "{finding:?}");
        assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
        finding
    }

    /// Checks the history: it must not test the guarantee.
    pub(crate) fn assert_untested(&self, guarantee: Guarantee) -> Finding {
        let finding = finding(&self.check(), guarantee);
        assert_eq!(finding.state, FindingStatus::Untested, "{finding:?}");
        finding
    }
}

/// The verdict's finding about this guarantee.
pub(crate) fn finding(verdict: &Verdict, guarantee: Guarantee) -> Finding {
    verdict.findings.iter().find(|one| one.guarantee == guarantee).cloned().expect("each guarantee has a finding")
}

/// A waiting request for this lock in exclusive mode.
pub(crate) fn exclusive_request(lock: &str) -> Call {
    Call::Lock { lock: lock.to_owned(), mode: Mode::Exclusive, owner: None, waits: true }
}

/// A waiting request for this lock in shared mode.
pub(crate) fn shared_request(lock: &str) -> Call {
    Call::Lock { lock: lock.to_owned(), mode: Mode::Shared, owner: None, waits: true }
}

/// A waiting request of a named owner for this lock in exclusive mode.
pub(crate) fn exclusive_request_of(lock: &str, owner: &str) -> Call {
    Call::Lock { lock: lock.to_owned(), mode: Mode::Exclusive, owner: Some(owner.to_owned()), waits: true }
}

/// A waiting request for `n` of `limit` permits of the semaphore `a`.
pub(crate) fn permit_request(n: u32, limit: u32) -> Call {
    Call::Lock { lock: "a".to_owned(), mode: Mode::Permits { n, limit }, owner: None, waits: true }
}

pub(crate) fn unknown_outcome() -> Outcome {
    Outcome::Unknown { error: "no reply".to_owned() }
}

pub(crate) fn failed_outcome() -> Outcome {
    Outcome::Failed { error: "refused".to_owned() }
}

pub(crate) fn value_outcome(value: u64) -> Outcome {
    Outcome::Value { value: Some(value) }
}
