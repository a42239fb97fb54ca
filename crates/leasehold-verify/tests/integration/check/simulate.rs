//! Simulates a small lock service, with readers and writers, permits, or a fenced register, and
//! workers that are killed, stopped and left without replies. It keeps all guarantees.

use std::collections::VecDeque;

use leasehold_verify::history::{Call, Event, Header, Mode, OpId, Outcome, State, Worker, Workload};

use crate::check::build::{History, MS, TTL, alone};

pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) workers: u32,
    pub(crate) calls: usize,
    pub(crate) faults: bool,
}

/// A call in transit.
struct Flight {
    op: OpId,
    call: Call,
    /// The server's answer, and for a grant the beginning of its lease.
    answer: Option<Outcome>,
}

#[derive(Clone, Copy)]
struct Held {
    op: OpId,
    token: u64,
    deadline: u64,
    lost: bool,
    read: Option<u64>,
}

/// The server's record of a hold.
#[derive(Clone, Copy)]
struct Lease {
    op: OpId,
    mode: Mode,
    until: u64,
}

struct Process {
    number: Worker,
    stopped: bool,
    call: Option<OpId>,
    held: Option<Held>,
}

struct World {
    history: History,
    dice: u64,
    now: u64,
    workload: Workload,
    /// The holders of the lock, the latest last; the next grant removes expired ones.
    leases: Vec<Lease>,
    token: u64,
    seen: Option<(u64, OpId)>,
    value: Option<u64>,
    flights: VecDeque<Flight>,
    processes: Vec<Process>,
    numbers: Worker,
    written: u64,
    calls: usize,
}

pub(crate) fn simulate(header: Header, plan: &Plan) -> History {
    let workload = header.workload;
    let mut history = History::with(header);
    let mut processes = Vec::new();
    for number in 1..=plan.workers {
        history.worker(0, number, State::Started { lane: number - 1, pid: number });
        processes.push(Process { number, stopped: false, call: None, held: None });
    }
    let mut world = World {
        history,
        dice: plan.seed,
        now: 1,
        workload,
        leases: Vec::new(),
        token: 0,
        seen: None,
        value: None,
        flights: VecDeque::new(),
        processes,
        numbers: plan.workers,
        written: 0,
        calls: 0,
    };
    while world.calls < plan.calls {
        world.step(plan.faults);
    }
    world.history
}

impl World {
    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn step(&mut self, faults: bool) {
        // Mostly a holder does something.
        let holder = self
            .leases
            .last()
            .and_then(|last| self.processes.iter().position(|one| last.op >> 32 == u64::from(one.number)));
        let any = usize::try_from(self.roll(self.processes.len() as u64)).expect("small");
        let at = holder.filter(|_| self.dice & 3 != 0).unwrap_or(any);
        match self.roll(1_000) {
            0..2 if faults => self.kill(at),
            2..8 if faults => self.stop(at),
            8..12 if faults => self.unanswered(at),
            12..20 => self.pass(self.now + 300),
            20..400 => self.serve(),
            400..700 => self.answer(at),
            700..720 => self.renew(at),
            720..760 => self.look(at),
            _ => self.call(at),
        }
        let more = self.roll(3);
        self.pass(self.now + more);
    }

    /// Advances the time; a running worker learns at its deadline that its lock is lost.
    fn pass(&mut self, to: u64) {
        self.now = to;
        for process in &mut self.processes {
            if let Some(held) =
                process.held.as_mut().filter(|held| !held.lost && !process.stopped && held.deadline <= to)
            {
                held.lost = true;
                self.history.lost(held.deadline, held.op, held.deadline);
            }
        }
    }

    /// Whether an abandoned call is executed nevertheless. Only a few of the queued ones: each
    /// costs all others a TTL.
    fn arrives(&mut self, op: Option<OpId>) -> bool {
        let lock = self.flights.iter().any(|flight| Some(flight.op) == op && matches!(flight.call, Call::Lock { .. }));
        self.roll(if lock { 16 } else { 2 }) == 0
    }

    fn kill(&mut self, at: usize) {
        let old = self.processes[at].number;
        // A call in transit may still arrive, or not.
        if !self.arrives(self.processes[at].call) {
            self.flights.retain(|flight| flight.op >> 32 != u64::from(old));
        }
        self.history.worker(self.now, old, State::Killed);
        self.numbers += 1;
        let lane = u32::try_from(at).expect("small");
        self.history.worker(self.now, self.numbers, State::Started { lane, pid: self.numbers });
        self.processes[at] = Process { number: self.numbers, stopped: false, call: None, held: None };
    }

    fn stop(&mut self, at: usize) {
        let number = self.processes[at].number;
        let state = if self.processes[at].stopped { State::Resumed } else { State::Stopped };
        self.processes[at].stopped = !self.processes[at].stopped;
        self.history.worker(self.now, number, state);
        if let Some(held) = self.processes[at].held.as_mut().filter(|held| !held.lost && held.deadline <= self.now) {
            held.lost = true;
            self.history.lost(self.now, held.op, held.deadline);
        }
    }

    /// A call whose reply does not arrive.
    fn unanswered(&mut self, at: usize) {
        if self.processes[at].stopped {
            return;
        }
        // There are many waiters: most of them keep waiting.
        if self.processes[at].held.is_none() && self.roll(8) != 0 {
            return;
        }
        let Some(op) = self.processes[at].call.take() else { return };
        self.history.end(self.now, op, crate::check::build::unknown());
        let arrives = self.arrives(Some(op));
        let flight = self.flights.iter().position(|flight| flight.op == op);
        match flight.map(|at| &self.flights[at].call) {
            Some(Call::Release { .. }) => self.processes[at].held = None,
            Some(Call::Lock { .. }) | None => {}
            _ => {
                if let Some(held) = self.processes[at].held.as_mut() {
                    held.read = None;
                }
            }
        }
        if !arrives {
            self.flights.retain(|flight| flight.op != op);
        }
    }

    /// The server executes one of the calls that have arrived.
    fn serve(&mut self) {
        let ready = |(at, flight): (usize, &Flight)| {
            let waits = matches!(flight.call, Call::Lock { mode, .. } if !self.is_free_for(mode));
            (flight.answer.is_none() && !waits).then_some(at)
        };
        let ready: Vec<usize> = self.flights.iter().enumerate().filter_map(ready).collect();
        if ready.is_empty() {
            return;
        }
        let at = ready[usize::try_from(self.roll(ready.len() as u64)).expect("small")];
        let Some(mut flight) = self.flights.remove(at) else { return };
        if flight.answer.is_none() {
            flight.answer = self.done(flight.op, &flight.call);
        }
        let wanted = self.processes.iter().any(|process| process.call == Some(flight.op));
        if wanted || flight.answer.is_none() {
            self.flights.push_back(flight);
        }
    }

    /// Whether no conflicting hold exists.
    fn is_free_for(&self, wanted: Mode) -> bool {
        let mut live = self.leases.iter().filter(|lease| lease.until > self.now).map(|lease| lease.mode);
        match wanted {
            Mode::Exclusive => live.next().is_none(),
            Mode::Shared => live.all(|mode| mode == Mode::Shared),
            Mode::Permits { n, limit } => {
                let out = |mode| if let Mode::Permits { n, .. } = mode { n } else { limit };
                live.map(out).sum::<u32>() + n <= limit
            }
        }
    }

    fn done(&mut self, op: OpId, call: &Call) -> Option<Outcome> {
        let now = self.now;
        match call {
            Call::Lock { mode, .. } if !self.is_free_for(*mode) => None,
            Call::Lock { mode, .. } => {
                self.token += 1;
                self.leases.retain(|lease| lease.until > now);
                self.leases.push(Lease { op, mode: *mode, until: now + TTL });
                Some(Outcome::Granted { token: self.token, deadline: (now + TTL) * MS })
            }
            Call::Release { hold } => match self.leases.iter().position(|one| one.op == *hold && one.until > now) {
                Some(at) => {
                    self.leases.remove(at);
                    Some(Outcome::Released)
                }
                None => Some(Outcome::WasLost { reason: "expired".to_owned() }),
            },
            Call::Write { hold, token: Some(token), .. } | Call::Read { hold, token: Some(token), .. } => {
                let mine = (*token, *hold);
                if let Some(seen) = self.seen.filter(|&seen| seen.0 > mine.0 || (seen.0 == mine.0 && seen != mine)) {
                    return Some(Outcome::Refused { seen: seen.0 });
                }
                self.seen = Some(mine);
                if let Call::Write { value, .. } = call {
                    self.value = Some(*value);
                    return Some(Outcome::Accepted);
                }
                Some(Outcome::Value { value: self.value })
            }
            _ => None,
        }
    }

    /// The reply of its call arrives.
    fn answer(&mut self, at: usize) {
        let Some(op) = self.processes[at].call.filter(|_| !self.processes[at].stopped) else { return };
        let answered = |flight: &Flight| flight.op == op && flight.answer.is_some();
        let Some(flight) = self.flights.iter().position(answered).and_then(|at| self.flights.remove(at)) else {
            return;
        };
        let Some(mut outcome) = flight.answer else { return };
        let process = &mut self.processes[at];
        process.call = None;
        match (&flight.call, &outcome) {
            (Call::Lock { .. }, Outcome::Granted { token, deadline }) => {
                let deadline = deadline / MS;
                if deadline > self.now {
                    process.held = Some(Held { op, token: *token, deadline, lost: false, read: None });
                } else {
                    outcome = crate::check::build::unknown();
                }
            }
            (Call::Release { .. }, _) => process.held = None,
            (Call::Read { .. }, Outcome::Value { value }) => {
                if let Some(held) = process.held.as_mut() {
                    held.read = Some(value.unwrap_or(0));
                }
            }
            _ => {
                if let Some(held) = process.held.as_mut() {
                    held.read = None;
                }
            }
        }
        self.history.end(self.now, op, outcome);
    }

    fn renew(&mut self, at: usize) {
        let now = self.now;
        let process = &mut self.processes[at];
        let Some(held) = process.held.as_mut().filter(|held| !process.stopped && !held.lost) else { return };
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.op == held.op && lease.until > now) {
            lease.until = now + TTL;
            held.deadline = now + TTL;
        }
    }

    fn look(&mut self, at: usize) {
        let process = &self.processes[at];
        let idle = !process.stopped && process.call.is_none();
        if let Some(held) = process.held.filter(|held| idle && !held.lost && held.deadline > self.now) {
            self.history.events.push(Event::Held { t: self.now * MS, op: held.op, deadline: held.deadline * MS });
        }
    }

    /// The next request for the lock.
    fn ask(&mut self) -> Call {
        let mut call = alone("a");
        let wanted = match self.workload {
            Workload::Rwlock => {
                [Mode::Shared, Mode::Shared, Mode::Exclusive][usize::try_from(self.roll(3)).expect("small")]
            }
            Workload::Semaphore => {
                let n = u32::try_from(self.roll(3)).expect("small") + 1;
                Mode::Permits { n, limit: 4 }
            }
            _ => Mode::Exclusive,
        };
        if let Call::Lock { mode, .. } = &mut call {
            *mode = wanted;
        }
        call
    }

    /// The next call of a worker that has none open. It does not check its guard before it writes:
    /// the fence covers that.
    fn call(&mut self, at: usize) {
        let (number, busy) =
            (self.processes[at].number, self.processes[at].call.is_some() || self.processes[at].stopped);
        if busy {
            return;
        }
        let (register, counter) = ("r".to_owned(), self.workload == Workload::Counter);
        let has_register = counter || self.workload == Workload::Fenced;
        let call = match self.processes[at].held {
            None => self.ask(),
            Some(Held { op: hold, token, read, lost, .. }) => match (self.roll(4), read) {
                (0, _) => Call::Release { hold },
                _ if !has_register => return self.look(at),
                (_, None) if lost && !counter => {
                    self.written += 1;
                    Call::Write { hold, register, token: Some(token), value: self.written }
                }
                (_, None) => Call::Read { hold, register, token: Some(token) },
                (_, Some(read)) => {
                    self.written += 1;
                    let value = if counter { read + 1 } else { self.written };
                    Call::Write { hold, register, token: Some(token), value }
                }
            },
        };
        self.calls += 1;
        let op = self.history.begin(self.now, number, call.clone());
        self.processes[at].call = Some(op);
        self.flights.push_back(Flight { op, call, answer: None });
    }
}
