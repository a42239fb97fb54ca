//! Simulates locks that are granted in order, for histories to draw.

use leasehold_verify::history::{Call, Event, FaultKind, Header, Mode, OpId, Outcome, RunNanos, WorkerState, Workload};
use leasehold_verify::verdict::{
    Finding, FindingStatus, Guarantee, Recovery, SecondOpinion, Totals, Verdict, Violation,
};

pub(crate) const MS: RunNanos = 1_000_000;
pub(crate) const TTL: RunNanos = 1_500 * MS;

/// What happens in a simulated history.
pub(crate) struct Scenario {
    /// How many grants there are.
    pub(crate) grants: usize,
    /// The approximate length of a hold.
    pub(crate) hold_time: RunNanos,
    pub(crate) lanes: u32,
    pub(crate) locks: Vec<String>,
    /// The indices of the grants whose holder is killed.
    pub(crate) killed_grants: Vec<usize>,
    /// The indices of the grants whose holder is stopped for longer than its TTL.
    pub(crate) stopped_grants: Vec<usize>,
    /// The indices of the grants whose holder is stopped while the lock is granted to another
    /// worker, too early.
    pub(crate) double_grants: Vec<usize>,
    /// The times in which the server is down.
    pub(crate) crashes: Vec<(RunNanos, RunNanos)>,
    /// The error message of calls that fail.
    pub(crate) error: String,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            grants: 24,
            hold_time: 330 * MS,
            lanes: 5,
            locks: vec!["orders".to_owned()],
            killed_grants: vec![4],
            stopped_grants: vec![10],
            double_grants: vec![],
            crashes: vec![(9_300 * MS, 10_100 * MS)],
            error: "the server is gone".to_owned(),
        }
    }
}

pub(crate) struct Simulation {
    events: Vec<Event>,
    recovered: Vec<Recovery>,
    violations: Vec<Violation>,
    scenario: Scenario,
    rng_state: u64,
    /// How many calls there are so far.
    op_count: u32,
    /// The token of the last grant.
    token: u64,
    /// The worker of each lane, and when it requests a lock again.
    lane_workers: Vec<(u32, RunNanos)>,
    /// How many workers have started so far.
    workers: u32,
}

/// Simulates a scenario; returns the history, and a verdict that fits it.
pub(crate) fn sample_history(scenario: Scenario) -> (Vec<Event>, Verdict) {
    let lanes = (0..scenario.lanes).map(|lane| (lane + 1, RunNanos::from(lane) * 3 * MS)).collect();
    let workers = scenario.lanes;
    // In long histories, tokens that JavaScript cannot represent exactly.
    let token = 9_007_199_254_740_993;
    let token = if scenario.grants > 100 { token } else { 40 };
    let mut simulation = Simulation {
        events: vec![],
        recovered: vec![],
        violations: vec![],
        scenario,
        rng_state: 7,
        op_count: 0,
        token,
        lane_workers: lanes,
        workers,
    };
    simulation.add_events();
    simulation.finish()
}

impl Simulation {
    /// A pseudo-random number from `min` to `max`, both included.
    fn random_between(&mut self, min: RunNanos, max: RunNanos) -> RunNanos {
        self.rng_state = self.rng_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        min + (self.rng_state >> 33) % (max - min + 1)
    }

    fn next_op_id(&mut self, worker: u32) -> OpId {
        self.op_count += 1;
        OpId::from(worker) << 32 | OpId::from(self.op_count)
    }

    /// Adds a call that begins at `from`; `end` is when it ends and its outcome, or `None`: it does
    /// not end.
    fn add_call(&mut self, worker: u32, from: RunNanos, end: Option<(RunNanos, Outcome)>, call: Call) -> OpId {
        let op = self.next_op_id(worker);
        self.events.push(Event::Begin { t: from, worker, op, due: Some(from + 60_000 * MS), call });
        if let Some((t, outcome)) = end {
            self.events.push(Event::End { t, op, outcome });
        }
        op
    }

    /// When the server answers a request of time `t`: at once, or after its restart if it is down
    /// then.
    fn server_up_at(&self, t: RunNanos) -> RunNanos {
        self.scenario.crashes.iter().find(|(from, to)| (*from..*to).contains(&t)).map_or(t, |(_, to)| to + 40 * MS)
    }

    /// Adds the events of all workers and their grants.
    fn add_events(&mut self) {
        for (worker, from) in self.lane_workers.clone() {
            let state = WorkerState::Started { lane: worker - 1, pid: 4_000 + worker };
            self.events.push(Event::Worker { t: from, worker, state });
        }
        let mut free = vec![0; self.scenario.locks.len()];
        for grant in 0..self.scenario.grants {
            let at = (0..self.lane_workers.len()).min_by_key(|at| self.lane_workers[*at].1).expect("a lane");
            let (worker, requested_at) = self.lane_workers[at];
            let lock = grant % free.len();
            let requested_at = requested_at + self.random_between(MS / 5, MS);
            let soon = self.random_between(MS / 5, 2 * MS);
            let got = self.server_up_at(requested_at.max(free[lock]) + soon);
            self.token += 1;
            let requested_at = self.fail_waiter_on_crash(worker, lock, requested_at, got);
            let call =
                Call::Lock { lock: self.scenario.locks[lock].clone(), mode: Mode::Exclusive, owner: None, waits: true };
            let outcome = Outcome::Granted { token: self.token, deadline: got + TTL };
            let op = self.add_call(worker, requested_at, Some((got, outcome)), call);
            self.events.push(Event::Queued { t: requested_at + MS / 5, op });
            self.events.push(Event::Held { t: got + MS / 10, op, deadline: got + TTL });
            let hold = self.scenario.hold_time;
            let long = self.random_between(hold / 2, 2 * hold);
            self.add_write(worker, op, self.token, got + long / 3, Outcome::Accepted);
            free[lock] = if self.scenario.killed_grants.contains(&grant) {
                self.kill_holder(at, got, got + long / 2)
            } else if self.scenario.stopped_grants.contains(&grant) || self.scenario.double_grants.contains(&grant) {
                self.stop_holder(at, grant, op, got, got + long / 2)
            } else {
                let to = got + long;
                let gone = self.server_up_at(to + self.scenario.hold_time / 90 + MS / 5);
                self.add_call(worker, to, Some((gone, Outcome::Released)), Call::Release { hold: op });
                self.lane_workers[at].1 = gone + self.scenario.hold_time / 10;
                // If the lock was granted to two workers, the violation ends when the second one
                // releases it.
                if let Some(last) = self.violations.iter_mut().rev().find(|one| one.guarantee == Guarantee::Exclusion) {
                    last.to = last.to.min(to.max(last.from));
                }
                gone
            };
        }
    }

    /// If the server goes down during a request, adds that the request fails; returns when the
    /// worker requests the lock again, or `requested_at`.
    fn fail_waiter_on_crash(
        &mut self,
        worker: u32,
        lock: usize,
        requested_at: RunNanos,
        granted_at: RunNanos,
    ) -> RunNanos {
        let crash = self.scenario.crashes.iter().find(|(from, _)| (requested_at..granted_at).contains(from)).copied();
        let Some((from, to)) = crash else { return requested_at };
        let error = self.scenario.error.clone();
        let call =
            Call::Lock { lock: self.scenario.locks[lock].clone(), mode: Mode::Exclusive, owner: None, waits: true };
        let failed_at = from + 60 * MS + 40 * MS * RunNanos::from(worker);
        self.add_call(worker, requested_at, Some((failed_at, Outcome::Failed { error })), call);
        (failed_at + 300 * MS).min(to)
    }

    /// Adds a write of the register under this hold; returns its call.
    fn add_write(&mut self, worker: u32, hold: OpId, token: u64, t: RunNanos, outcome: Outcome) -> OpId {
        let call = Call::Write { hold, register: "balance".to_owned(), token: Some(token), value: t };
        self.add_call(worker, t, Some((t + MS / 2, outcome)), call)
    }

    /// Kills the holder on this lane at `t`, and starts another worker there; returns when its lock
    /// is free.
    fn kill_holder(&mut self, lane: usize, granted_at: RunNanos, t: RunNanos) -> RunNanos {
        let (worker, _) = self.lane_workers[lane];
        let free = granted_at + TTL + 60 * MS;
        self.add_fault(FaultKind::Kill, format!("worker {worker}"), vec![worker], t, t, free);
        self.events.push(Event::Worker { t, worker, state: WorkerState::Killed });
        self.workers += 1;
        let (next, from) = (self.workers, t + 220 * MS);
        let state = WorkerState::Started { lane: lane as u32, pid: 4_000 + next };
        self.events.push(Event::Worker { t: from, worker: next, state });
        self.lane_workers[lane] = (next, from + 30 * MS);
        free
    }

    /// Stops the holder on this lane at `t` for longer than its TTL; returns when its lock is
    /// granted to another worker.
    fn stop_holder(&mut self, lane: usize, grant: usize, op: OpId, granted_at: RunNanos, t: RunNanos) -> RunNanos {
        let (worker, _) = self.lane_workers[lane];
        let wrong = self.scenario.double_grants.contains(&grant);
        let resumed = granted_at + TTL + 420 * MS;
        self.events.push(Event::Worker { t, worker, state: WorkerState::Stopped });
        self.events.push(Event::Worker { t: resumed, worker, state: WorkerState::Resumed });
        let free = if wrong { t + 120 * MS } else { granted_at + TTL + 25 * MS };
        self.add_fault(FaultKind::Stop, format!("worker {worker}"), vec![worker], t, resumed, free);
        let learned = resumed + 2 * MS;
        let reason = "its deadline passed".to_owned();
        self.events.push(Event::Lost { t: learned, op, deadline: granted_at + TTL, reason: reason.clone() });
        let token = self.token;
        let outcome = if wrong { Outcome::Accepted } else { Outcome::Refused { seen: token + 1 } };
        let write = self.add_write(worker, op, token, resumed + MS / 2, outcome);
        let to = learned + 30 * MS;
        self.add_call(worker, to, Some((to + 2 * MS, Outcome::WasLost { reason })), Call::Release { hold: op });
        self.lane_workers[lane].1 = to + 50 * MS;
        if wrong {
            self.add_exclusion_violation(grant, worker, op, free, granted_at + TTL);
            let details = format!(
                "Worker {worker} continued after it was stopped and wrote with token {token}. The register had seen token {} before, and accepted it.",
                token + 1
            );
            let title = format!("a write with the old token {token} was accepted");
            let (from, to) = (resumed + MS / 2, resumed + MS);
            self.violations.push(Violation {
                guarantee: Guarantee::Fencing,
                from,
                to,
                workers: vec![worker],
                ops: vec![write],
                title,
                details,
                is_time_bound: false,
            });
        }
        free
    }

    /// Adds a violation of exclusion from `from` to `to`, between this worker and the next one.
    fn add_exclusion_violation(&mut self, grant: usize, worker: u32, op: OpId, from: RunNanos, to: RunNanos) {
        let at = (0..self.lane_workers.len()).min_by_key(|at| self.lane_workers[*at].1).expect("a lane");
        let (other, lock) = (self.lane_workers[at].0, &self.scenario.locks[grant % self.scenario.locks.len()]);
        let ms = (to - from) / MS;
        let title = format!("two held \"{lock}\" for");
        let details = format!(
            "Worker {worker} held \"{lock}\" with token {} and its deadline was {ms} ms away when worker {other} was granted it with token {}. Fault {} (stop worker {worker}) was active.",
            self.token,
            self.token + 1,
            self.recovered.len()
        );
        let workers = vec![worker, other];
        self.violations.push(Violation {
            guarantee: Guarantee::Exclusion,
            from,
            to,
            workers,
            ops: vec![op],
            title,
            details,
            is_time_bound: false,
        });
    }

    /// Adds a fault and its recovery; the lock is granted again at `granted`.
    fn add_fault(
        &mut self,
        kind: FaultKind,
        target: String,
        workers: Vec<u32>,
        from: RunNanos,
        to: RunNanos,
        granted: RunNanos,
    ) {
        let fault = self.recovered.len() as u32 + 1;
        let served = None;
        self.events.push(Event::FaultBegin {
            t: from,
            fault,
            kind,
            target: target.clone(),
            workers,
            served,
            spares: Vec::new(),
        });
        self.events.push(Event::FaultEnd { t: to, fault, note: String::new(), connections: None });
        let counted_from = if kind == FaultKind::Crash { to } else { from };
        let bound = TTL + TTL / 2;
        self.recovered.push(Recovery {
            fault,
            kind,
            target,
            from,
            to: Some(to),
            counted_from,
            granted: Some(granted),
            bound,
            was_requested: true,
            late: false,
            served: None,
            granted_during_fault: None,
            granted_to_all: None,
        });
    }

    /// Adds the last events, and builds the verdict.
    fn finish(mut self) -> (Vec<Event>, Verdict) {
        for (from, to) in self.scenario.crashes.clone() {
            self.add_fault(FaultKind::Crash, "the server".to_owned(), vec![], from, to, to + 42 * MS);
        }
        self.events.sort_by_key(Event::time);
        let end = self.events.iter().map(Event::time).max().unwrap_or(0) + 100 * MS;
        for (worker, _) in self.lane_workers.clone() {
            self.events.push(Event::Worker { t: end - 50 * MS, worker, state: WorkerState::Ended });
        }
        self.events.push(Event::Clean { t: end, locks: self.scenario.locks.len() as u64 });
        self.events.push(Event::Done { t: end });
        let header = header(&self.scenario, self.recovered.iter().map(|one| one.kind).collect());
        self.events.insert(0, Event::Run(Box::new(header.clone())));
        self.violations.sort_by_key(|one| one.from);
        for one in self.violations.iter_mut().filter(|one| one.guarantee == Guarantee::Exclusion) {
            one.title = format!("{} {} ms", one.title, (one.to - one.from) / MS);
        }
        let counts = totals(&self.events, self.recovered.len() as u64, u64::from(self.workers), end);
        let verdict = Verdict {
            header,
            complete: true,
            findings: findings(&self.violations, &counts),
            violations_in_all: self.violations.len() as u64,
            violations: self.violations,
            late: Vec::new(),
            recovered: self.recovered,
            counts,
            second_opinion: SecondOpinion::Agrees,
        };
        (self.events, verdict)
    }
}

fn header(scenario: &Scenario, mut faults: Vec<FaultKind>) -> Header {
    faults.sort();
    faults.dedup();
    Header {
        format: 1,
        leasehold: "leasehold 0.1.0".to_owned(),
        engine: "redis".to_owned(),
        url: "redis://127.0.0.1:6379".to_owned(),
        versions: vec!["Redis 7.0.15".to_owned()],
        workload: Workload::Fenced,
        faults,
        guard: true,
        control: None,
        seed: 7,
        ttl: TTL,
        lanes: scenario.lanes,
        fair: true,
        fencing: true,
        exclusion: true,
        must_break: Vec::new(),
        started: "2026-08-02 09:14:05 UTC".to_owned(),
        notes: [("machine".to_owned(), "2 cores".to_owned())].into(),
    }
}

fn totals(events: &[Event], faults: u64, workers: u64, lasted: RunNanos) -> Totals {
    let mut counts = Totals { faults, workers, lasted, ..Totals::default() };
    for event in events {
        match event {
            Event::Begin { .. } => counts.calls += 1,
            Event::End { outcome, .. } => match outcome {
                Outcome::Granted { .. } => (counts.grants, counts.ok) = (counts.grants + 1, counts.ok + 1),
                Outcome::Refused { .. } => (counts.refused, counts.ok) = (counts.refused + 1, counts.ok + 1),
                Outcome::Failed { .. } => counts.failed += 1,
                _ => counts.ok += 1,
            },
            Event::Lost { .. } => counts.losses += 1,
            _ => {}
        }
    }
    counts
}

/// One finding for each of some guarantees.
fn findings(violations: &[Violation], counts: &Totals) -> Vec<Finding> {
    let all = [
        (Guarantee::Exclusion, counts.grants - 1, "at least 0.4 ms between two holds"),
        (Guarantee::Tokens, counts.grants, "each higher than the one before"),
        (Guarantee::Fencing, counts.grants + 1, "every write with an old token was refused"),
        (Guarantee::Order, counts.grants - 1, "0 overtaken"),
        (Guarantee::Reentry, 0, ""),
        (Guarantee::Loss, counts.losses, "notified 445 ms before the next grant at the latest"),
        (Guarantee::Recovery, counts.faults, "at most 1.04 TTL after a kill"),
        (Guarantee::Leaks, 1, "0 left"),
        (Guarantee::Deadlines, counts.calls, "none ended after its deadline"),
    ];
    let of = |guarantee: Guarantee| violations.iter().filter(|one| one.guarantee == guarantee).count() as u64;
    let state = |checked, broken| match (checked, broken) {
        (0, _) => FindingStatus::Untested,
        (_, 0) => FindingStatus::Kept,
        _ => FindingStatus::Broken,
    };
    let finding = |(guarantee, checked, figure): (Guarantee, u64, &str)| {
        let broken = of(guarantee);
        let figure = if broken > 0 { format!("{broken} of {checked}") } else { figure.to_owned() };
        Finding { guarantee, state: state(checked, broken), checked, broken, figure }
    };
    all.map(finding).into()
}
