//! Simulates a lock that is granted in order: histories to draw.

use leasehold_verify::history::{Call, Event, FaultKind, Header, Mode, Nanos, OpId, Outcome, State, Workload};
use leasehold_verify::verdict::{
    Counts, Finding, Promise, Recovered, SecondOpinion, State as Became, Verdict, Violation,
};

pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const TTL: Nanos = 1_500 * MS;

/// The events of the simulation.
pub(crate) struct Script {
    pub(crate) grants: usize,
    /// The approximate length of a hold.
    pub(crate) hold: Nanos,
    pub(crate) lanes: u32,
    pub(crate) locks: Vec<String>,
    /// The grants whose holder is killed.
    pub(crate) kill: Vec<usize>,
    /// The grants whose holder is stopped past its TTL.
    pub(crate) stop: Vec<usize>,
    /// The grants whose holder is stopped, and whose lock is granted to the next one while it
    /// holds.
    pub(crate) wrong: Vec<usize>,
    /// The times in which the server is down.
    pub(crate) crash: Vec<(Nanos, Nanos)>,
    pub(crate) error: String,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            grants: 24,
            hold: 330 * MS,
            lanes: 5,
            locks: vec!["orders".to_owned()],
            kill: vec![4],
            stop: vec![10],
            wrong: vec![],
            crash: vec![(9_300 * MS, 10_100 * MS)],
            error: "the server is gone".to_owned(),
        }
    }
}

pub(crate) struct World {
    events: Vec<Event>,
    recovered: Vec<Recovered>,
    violations: Vec<Violation>,
    script: Script,
    random: u64,
    ops: u32,
    token: u64,
    /// The worker of each lane, and when it requests again.
    lanes: Vec<(u32, Nanos)>,
    workers: u32,
}

/// A history and its verdict.
pub(crate) fn sample(script: Script) -> (Vec<Event>, Verdict) {
    let lanes = (0..script.lanes).map(|lane| (lane + 1, Nanos::from(lane) * 3 * MS)).collect();
    let workers = script.lanes;
    // Tokens beyond the exact integers of a script.
    let token = 9_007_199_254_740_993;
    let token = if script.grants > 100 { token } else { 40 };
    let mut world = World {
        events: vec![],
        recovered: vec![],
        violations: vec![],
        script,
        random: 7,
        ops: 0,
        token,
        lanes,
        workers,
    };
    world.play();
    world.finish()
}

impl World {
    fn next(&mut self, least: Nanos, most: Nanos) -> Nanos {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + (self.random >> 33) % (most - least + 1)
    }

    fn op(&mut self, worker: u32) -> OpId {
        self.ops += 1;
        OpId::from(worker) << 32 | OpId::from(self.ops)
    }

    fn call(&mut self, worker: u32, from: Nanos, to: Option<(Nanos, Outcome)>, call: Call) -> OpId {
        let op = self.op(worker);
        self.events.push(Event::Begin { t: from, worker, op, due: Some(from + 60_000 * MS), call });
        if let Some((t, outcome)) = to {
            self.events.push(Event::End { t, op, outcome });
        }
        op
    }

    /// The time at which the server, if it is down, answers.
    fn up(&self, t: Nanos) -> Nanos {
        self.script.crash.iter().find(|(from, to)| (*from..*to).contains(&t)).map_or(t, |(_, to)| to + 40 * MS)
    }

    fn play(&mut self) {
        for (worker, from) in self.lanes.clone() {
            let state = State::Started { lane: worker - 1, pid: 4_000 + worker };
            self.events.push(Event::Worker { t: from, worker, state });
        }
        let mut free = vec![0; self.script.locks.len()];
        for grant in 0..self.script.grants {
            let at = (0..self.lanes.len()).min_by_key(|at| self.lanes[*at].1).expect("a lane");
            let (worker, asked) = self.lanes[at];
            let lock = grant % free.len();
            let asked = asked + self.next(MS / 5, MS);
            let soon = self.next(MS / 5, 2 * MS);
            let got = self.up(asked.max(free[lock]) + soon);
            self.token += 1;
            let asked = self.failed(worker, lock, asked, got);
            let call =
                Call::Lock { lock: self.script.locks[lock].clone(), mode: Mode::Exclusive, owner: None, waits: true };
            let outcome = Outcome::Granted { token: self.token, deadline: got + TTL };
            let op = self.call(worker, asked, Some((got, outcome)), call);
            self.events.push(Event::Queued { t: asked + MS / 5, op });
            self.events.push(Event::Held { t: got + MS / 10, op, deadline: got + TTL });
            let hold = self.script.hold;
            let long = self.next(hold / 2, 2 * hold);
            self.write(worker, op, self.token, got + long / 3, Outcome::Accepted);
            free[lock] = if self.script.kill.contains(&grant) {
                self.killed(at, got, got + long / 2)
            } else if self.script.stop.contains(&grant) || self.script.wrong.contains(&grant) {
                self.stopped(at, grant, op, got, got + long / 2)
            } else {
                let to = got + long;
                let gone = self.up(to + self.script.hold / 90 + MS / 5);
                self.call(worker, to, Some((gone, Outcome::Released)), Call::Release { hold: op });
                self.lanes[at].1 = gone + self.script.hold / 10;
                // Two held it until the second one released it.
                if let Some(last) = self.violations.iter_mut().rev().find(|one| one.promise == Promise::Exclusion) {
                    last.to = last.to.min(to.max(last.from));
                }
                gone
            };
        }
    }

    /// A waiter gets an error when the server goes down, and retries; returns when.
    fn failed(&mut self, worker: u32, lock: usize, asked: Nanos, got: Nanos) -> Nanos {
        let crash = self.script.crash.iter().find(|(from, _)| (asked..got).contains(from)).copied();
        let Some((from, to)) = crash else { return asked };
        let error = self.script.error.clone();
        let call =
            Call::Lock { lock: self.script.locks[lock].clone(), mode: Mode::Exclusive, owner: None, waits: true };
        let told = from + 60 * MS + 40 * MS * Nanos::from(worker);
        self.call(worker, asked, Some((told, Outcome::Failed { error })), call);
        (told + 300 * MS).min(to)
    }

    fn write(&mut self, worker: u32, hold: OpId, token: u64, t: Nanos, outcome: Outcome) -> OpId {
        let call = Call::Write { hold, register: "balance".to_owned(), token: Some(token), value: t };
        self.call(worker, t, Some((t + MS / 2, outcome)), call)
    }

    fn killed(&mut self, lane: usize, got: Nanos, t: Nanos) -> Nanos {
        let (worker, _) = self.lanes[lane];
        let free = got + TTL + 60 * MS;
        self.fault(FaultKind::Kill, format!("worker {worker}"), vec![worker], t, t, free);
        self.events.push(Event::Worker { t, worker, state: State::Killed });
        self.workers += 1;
        let (next, from) = (self.workers, t + 220 * MS);
        let state = State::Started { lane: lane as u32, pid: 4_000 + next };
        self.events.push(Event::Worker { t: from, worker: next, state });
        self.lanes[lane] = (next, from + 30 * MS);
        free
    }

    fn stopped(&mut self, lane: usize, grant: usize, op: OpId, got: Nanos, t: Nanos) -> Nanos {
        let (worker, _) = self.lanes[lane];
        let wrong = self.script.wrong.contains(&grant);
        let resumed = got + TTL + 420 * MS;
        self.events.push(Event::Worker { t, worker, state: State::Stopped });
        self.events.push(Event::Worker { t: resumed, worker, state: State::Resumed });
        let free = if wrong { t + 120 * MS } else { got + TTL + 25 * MS };
        self.fault(FaultKind::Stop, format!("worker {worker}"), vec![worker], t, resumed, free);
        let learned = resumed + 2 * MS;
        let reason = "its deadline passed".to_owned();
        self.events.push(Event::Lost { t: learned, op, deadline: got + TTL, reason: reason.clone() });
        let token = self.token;
        let outcome = if wrong { Outcome::Accepted } else { Outcome::Refused { seen: token + 1 } };
        let write = self.write(worker, op, token, resumed + MS / 2, outcome);
        let to = learned + 30 * MS;
        self.call(worker, to, Some((to + 2 * MS, Outcome::WasLost { reason })), Call::Release { hold: op });
        self.lanes[lane].1 = to + 50 * MS;
        if wrong {
            self.found(grant, worker, op, free, got + TTL);
            let words = format!(
                "Worker {worker} went on after it was stopped and wrote with token {token}. The register had seen token {} before, and took it all the same.",
                token + 1
            );
            let title = format!("a write with the old token {token} was accepted");
            let (from, to) = (resumed + MS / 2, resumed + MS);
            self.violations.push(Violation {
                promise: Promise::Fencing,
                from,
                to,
                workers: vec![worker],
                ops: vec![write],
                title,
                words,
                about_time: false,
            });
        }
        free
    }

    fn found(&mut self, grant: usize, worker: u32, op: OpId, from: Nanos, to: Nanos) {
        let at = (0..self.lanes.len()).min_by_key(|at| self.lanes[*at].1).expect("a lane");
        let (other, lock) = (self.lanes[at].0, &self.script.locks[grant % self.script.locks.len()]);
        let ms = (to - from) / MS;
        let title = format!("two held \"{lock}\" for");
        let words = format!(
            "Worker {worker} held \"{lock}\" with token {} and its deadline was {ms} ms away when worker {other} was granted it with token {}. Fault {} (stop worker {worker}) was going on.",
            self.token,
            self.token + 1,
            self.recovered.len()
        );
        let workers = vec![worker, other];
        self.violations.push(Violation {
            promise: Promise::Exclusion,
            from,
            to,
            workers,
            ops: vec![op],
            title,
            words,
            about_time: false,
        });
    }

    fn fault(&mut self, kind: FaultKind, target: String, workers: Vec<u32>, from: Nanos, to: Nanos, granted: Nanos) {
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
        self.recovered.push(Recovered {
            fault,
            kind,
            target,
            from,
            to: Some(to),
            counted_from,
            granted: Some(granted),
            bound,
            asked: true,
            late: false,
            served: None,
            meanwhile: None,
            everybody: None,
        });
    }

    fn finish(mut self) -> (Vec<Event>, Verdict) {
        for (from, to) in self.script.crash.clone() {
            self.fault(FaultKind::Crash, "the server".to_owned(), vec![], from, to, to + 42 * MS);
        }
        self.events.sort_by_key(Event::at);
        let end = self.events.iter().map(Event::at).max().unwrap_or(0) + 100 * MS;
        for (worker, _) in self.lanes.clone() {
            self.events.push(Event::Worker { t: end - 50 * MS, worker, state: State::Ended });
        }
        self.events.push(Event::Clean { t: end, locks: self.script.locks.len() as u64 });
        self.events.push(Event::Done { t: end });
        let header = header(&self.script, self.recovered.iter().map(|one| one.kind).collect());
        self.events.insert(0, Event::Run(Box::new(header.clone())));
        self.violations.sort_by_key(|one| one.from);
        for one in self.violations.iter_mut().filter(|one| one.promise == Promise::Exclusion) {
            one.title = format!("{} {} ms", one.title, (one.to - one.from) / MS);
        }
        let counts = counts(&self.events, self.recovered.len() as u64, u64::from(self.workers), end);
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

fn header(script: &Script, mut faults: Vec<FaultKind>) -> Header {
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
        lanes: script.lanes,
        fair: true,
        fencing: true,
        exclusion: true,
        must_break: Vec::new(),
        started: "2026-08-02 09:14:05 UTC".to_owned(),
        notes: [("machine".to_owned(), "2 cores".to_owned())].into(),
    }
}

fn counts(events: &[Event], faults: u64, workers: u64, lasted: Nanos) -> Counts {
    let mut counts = Counts { faults, workers, lasted, ..Counts::default() };
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

fn findings(violations: &[Violation], counts: &Counts) -> Vec<Finding> {
    let all = [
        (Promise::Exclusion, counts.grants - 1, "at least 0.4 ms between two holds"),
        (Promise::Tokens, counts.grants, "each higher than the one before"),
        (Promise::Fencing, counts.grants + 1, "every write with an old token was refused"),
        (Promise::Order, counts.grants - 1, "nobody was overtaken"),
        (Promise::Reentry, 0, ""),
        (Promise::Loss, counts.losses, "told 445 ms before the next grant at the latest"),
        (Promise::Recovery, counts.faults, "at most 1.04 TTL after a kill"),
        (Promise::Leaks, 1, "nothing was left"),
        (Promise::Deadlines, counts.calls, "none ended after its deadline"),
    ];
    let of = |promise: Promise| violations.iter().filter(|one| one.promise == promise).count() as u64;
    let state = |checked, broken| match (checked, broken) {
        (0, _) => Became::Untested,
        (_, 0) => Became::Kept,
        _ => Became::Broken,
    };
    let finding = |(promise, checked, figure): (Promise, u64, &str)| {
        let broken = of(promise);
        let figure = if broken > 0 { format!("{broken} of {checked}") } else { figure.to_owned() };
        Finding { promise, state: state(checked, broken), checked, broken, figure }
    };
    all.map(finding).into()
}
