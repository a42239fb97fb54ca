//! Simulates a correct lock service (readers and writers, permits, or a fenced register) whose
//! workers are killed, stopped and left without replies, and writes its history.

use std::collections::VecDeque;

use leasehold_verify::history::{Call, Event, Header, Mode, OpId, Outcome, WorkerId, WorkerState, Workload};

use crate::checker::history_builder::{HistoryBuilder, NANOS_PER_MS, TTL, exclusive_request};

pub(crate) struct SimulationPlan {
    pub(crate) seed: u64,
    pub(crate) workers: u32,
    /// How many calls the history has at least.
    pub(crate) calls: usize,
    /// Whether workers are killed, stopped and left without replies.
    pub(crate) has_faults: bool,
}

/// A call that has begun, and whose reply has not arrived.
struct InFlightCall {
    op: OpId,
    call: Call,
    /// The server's reply; `None`: the server has not executed the call yet.
    answer: Option<Outcome>,
}

#[derive(Clone, Copy)]
struct HeldLock {
    op: OpId,
    token: u64,
    deadline: u64,
    /// Whether the worker was notified of the loss.
    is_lost: bool,
    /// The value that the worker read and has not overwritten yet.
    read_value: Option<u64>,
}

/// The server's record of a hold.
#[derive(Clone, Copy)]
struct ServerLease {
    op: OpId,
    mode: Mode,
    expires_at: u64,
}

struct SimulatedWorker {
    number: WorkerId,
    is_stopped: bool,
    /// The call whose reply it waits for.
    open_call: Option<OpId>,
    held: Option<HeldLock>,
}

struct Simulation {
    history: HistoryBuilder,
    rng: u64,
    now: u64,
    workload: Workload,
    /// The holders of the lock, the latest last. Expired ones stay until the next grant.
    leases: Vec<ServerLease>,
    /// The token of the last grant.
    token: u64,
    /// The highest token that the register has seen, and its hold.
    highest_token: Option<(u64, OpId)>,
    value: Option<u64>,
    in_flight: VecDeque<InFlightCall>,
    workers: Vec<SimulatedWorker>,
    last_worker_id: WorkerId,
    write_count: u64,
    calls: usize,
}

/// Runs the simulation; returns its history.
pub(crate) fn simulate(header: Header, plan: &SimulationPlan) -> HistoryBuilder {
    let workload = header.workload;
    let mut history = HistoryBuilder::with_header(header);
    let mut processes = Vec::new();
    for number in 1..=plan.workers {
        history.add_worker_state(0, number, WorkerState::Started { lane: number - 1, pid: number });
        processes.push(SimulatedWorker { number, is_stopped: false, open_call: None, held: None });
    }
    let mut simulation = Simulation {
        history,
        rng: plan.seed,
        now: 1,
        workload,
        leases: Vec::new(),
        token: 0,
        highest_token: None,
        value: None,
        in_flight: VecDeque::new(),
        workers: processes,
        last_worker_id: plan.workers,
        write_count: 0,
        calls: 0,
    };
    while simulation.calls < plan.calls {
        simulation.step(plan.has_faults);
    }
    simulation.history
}

impl Simulation {
    /// A pseudo-random number below `n`.
    fn random_below(&mut self, n: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// Lets one random thing happen: a fault, a step of the server, or an action of a worker.
    fn step(&mut self, has_faults: bool) {
        // Three times of four, the last holder acts.
        let holder = self
            .leases
            .last()
            .and_then(|last| self.workers.iter().position(|one| last.op >> 32 == u64::from(one.number)));
        let any = usize::try_from(self.random_below(self.workers.len() as u64)).expect("small");
        let at = holder.filter(|_| self.rng & 3 != 0).unwrap_or(any);
        match self.random_below(1_000) {
            0..2 if has_faults => self.kill(at),
            2..8 if has_faults => self.stop(at),
            8..12 if has_faults => self.lose_reply(at),
            12..20 => self.advance_to(self.now + 300),
            20..400 => self.execute_one(),
            400..700 => self.deliver_reply(at),
            700..720 => self.renew(at),
            720..760 => self.check_held(at),
            _ => self.start_call(at),
        }
        let more = self.random_below(3);
        self.advance_to(self.now + more);
    }

    /// Advances the time. A running worker is notified at its deadline that its lock is lost.
    fn advance_to(&mut self, to: u64) {
        self.now = to;
        for process in &mut self.workers {
            if let Some(held) =
                process.held.as_mut().filter(|held| !held.is_lost && !process.is_stopped && held.deadline <= to)
            {
                held.is_lost = true;
                self.history.add_loss(held.deadline, held.op, held.deadline);
            }
        }
    }

    /// Whether the server executes a call that its worker has abandoned: rarely for a lock, because
    /// each such grant blocks the lock for a TTL.
    fn is_executed_anyway(&mut self, op: Option<OpId>) -> bool {
        let lock =
            self.in_flight.iter().any(|flight| Some(flight.op) == op && matches!(flight.call, Call::Lock { .. }));
        self.random_below(if lock { 16 } else { 2 }) == 0
    }

    /// Kills the worker at this index, and starts another one on its lane.
    fn kill(&mut self, at: usize) {
        let old = self.workers[at].number;
        // The server may or may not execute a call that the killed worker had sent.
        if !self.is_executed_anyway(self.workers[at].open_call) {
            self.in_flight.retain(|flight| flight.op >> 32 != u64::from(old));
        }
        self.history.add_worker_state(self.now, old, WorkerState::Killed);
        self.last_worker_id += 1;
        let lane = u32::try_from(at).expect("small");
        self.history.add_worker_state(
            self.now,
            self.last_worker_id,
            WorkerState::Started { lane, pid: self.last_worker_id },
        );
        self.workers[at] =
            SimulatedWorker { number: self.last_worker_id, is_stopped: false, open_call: None, held: None };
    }

    /// Stops a worker, or resumes it if it is stopped.
    fn stop(&mut self, at: usize) {
        let number = self.workers[at].number;
        let state = if self.workers[at].is_stopped { WorkerState::Resumed } else { WorkerState::Stopped };
        self.workers[at].is_stopped = !self.workers[at].is_stopped;
        self.history.add_worker_state(self.now, number, state);
        if let Some(held) = self.workers[at].held.as_mut().filter(|held| !held.is_lost && held.deadline <= self.now) {
            held.is_lost = true;
            self.history.add_loss(self.now, held.op, held.deadline);
        }
    }

    /// Lets a worker's call end with an unknown outcome, whether or not the server executes it.
    fn lose_reply(&mut self, at: usize) {
        if self.workers[at].is_stopped {
            return;
        }
        // Most waiters keep waiting.
        if self.workers[at].held.is_none() && self.random_below(8) != 0 {
            return;
        }
        let Some(op) = self.workers[at].open_call.take() else { return };
        self.history.end(self.now, op, crate::checker::history_builder::unknown_outcome());
        let arrives = self.is_executed_anyway(Some(op));
        let flight = self.in_flight.iter().position(|flight| flight.op == op);
        match flight.map(|at| &self.in_flight[at].call) {
            Some(Call::Release { .. }) => self.workers[at].held = None,
            Some(Call::Lock { .. }) | None => {}
            _ => {
                if let Some(held) = self.workers[at].held.as_mut() {
                    held.read_value = None;
                }
            }
        }
        if !arrives {
            self.in_flight.retain(|flight| flight.op != op);
        }
    }

    /// Lets the server execute a random one of the calls that it can execute now.
    fn execute_one(&mut self) {
        let ready = |(at, flight): (usize, &InFlightCall)| {
            let waits = matches!(flight.call, Call::Lock { mode, .. } if !self.is_free_for(mode));
            (flight.answer.is_none() && !waits).then_some(at)
        };
        let ready: Vec<usize> = self.in_flight.iter().enumerate().filter_map(ready).collect();
        if ready.is_empty() {
            return;
        }
        let at = ready[usize::try_from(self.random_below(ready.len() as u64)).expect("small")];
        let Some(mut flight) = self.in_flight.remove(at) else { return };
        if flight.answer.is_none() {
            flight.answer = self.execute(flight.op, &flight.call);
        }
        let wanted = self.workers.iter().any(|process| process.open_call == Some(flight.op));
        if wanted || flight.answer.is_none() {
            self.in_flight.push_back(flight);
        }
    }

    /// Whether no unexpired lease conflicts with this mode.
    fn is_free_for(&self, wanted: Mode) -> bool {
        let mut live = self.leases.iter().filter(|lease| lease.expires_at > self.now).map(|lease| lease.mode);
        match wanted {
            Mode::Exclusive => live.next().is_none(),
            Mode::Shared => live.all(|mode| mode == Mode::Shared),
            Mode::Permits { n, limit } => {
                let out = |mode| if let Mode::Permits { n, .. } = mode { n } else { limit };
                live.map(out).sum::<u32>() + n <= limit
            }
        }
    }

    /// Executes a call on the server; returns its reply. `None`: the lock is not free.
    fn execute(&mut self, op: OpId, call: &Call) -> Option<Outcome> {
        let now = self.now;
        match call {
            Call::Lock { mode, .. } if !self.is_free_for(*mode) => None,
            Call::Lock { mode, .. } => {
                self.token += 1;
                self.leases.retain(|lease| lease.expires_at > now);
                self.leases.push(ServerLease { op, mode: *mode, expires_at: now + TTL });
                Some(Outcome::Granted { token: self.token, deadline: (now + TTL) * NANOS_PER_MS })
            }
            Call::Release { hold } => {
                match self.leases.iter().position(|one| one.op == *hold && one.expires_at > now) {
                    Some(at) => {
                        self.leases.remove(at);
                        Some(Outcome::Released)
                    }
                    None => Some(Outcome::WasLost { reason: "expired".to_owned() }),
                }
            }
            Call::Write { hold, token: Some(token), .. } | Call::Read { hold, token: Some(token), .. } => {
                let mine = (*token, *hold);
                if let Some(seen) =
                    self.highest_token.filter(|&seen| seen.0 > mine.0 || (seen.0 == mine.0 && seen != mine))
                {
                    return Some(Outcome::Refused { seen: seen.0 });
                }
                self.highest_token = Some(mine);
                if let Call::Write { value, .. } = call {
                    self.value = Some(*value);
                    return Some(Outcome::Accepted);
                }
                Some(Outcome::Value { value: self.value })
            }
            _ => None,
        }
    }

    /// Delivers the reply to a worker's call, if the server has executed it.
    fn deliver_reply(&mut self, at: usize) {
        let Some(op) = self.workers[at].open_call.filter(|_| !self.workers[at].is_stopped) else { return };
        let answered = |flight: &InFlightCall| flight.op == op && flight.answer.is_some();
        let Some(flight) = self.in_flight.iter().position(answered).and_then(|at| self.in_flight.remove(at)) else {
            return;
        };
        let Some(mut outcome) = flight.answer else { return };
        let process = &mut self.workers[at];
        process.open_call = None;
        match (&flight.call, &outcome) {
            (Call::Lock { .. }, Outcome::Granted { token, deadline }) => {
                let deadline = deadline / NANOS_PER_MS;
                if deadline > self.now {
                    process.held = Some(HeldLock { op, token: *token, deadline, is_lost: false, read_value: None });
                } else {
                    outcome = crate::checker::history_builder::unknown_outcome();
                }
            }
            (Call::Release { .. }, _) => process.held = None,
            (Call::Read { .. }, Outcome::Value { value }) => {
                if let Some(held) = process.held.as_mut() {
                    held.read_value = Some(value.unwrap_or(0));
                }
            }
            _ => {
                if let Some(held) = process.held.as_mut() {
                    held.read_value = None;
                }
            }
        }
        self.history.end(self.now, op, outcome);
    }

    /// Renews the lease of the worker at this index, on the server and for the worker at once.
    fn renew(&mut self, at: usize) {
        let now = self.now;
        let process = &mut self.workers[at];
        let Some(held) = process.held.as_mut().filter(|held| !process.is_stopped && !held.is_lost) else { return };
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.op == held.op && lease.expires_at > now) {
            lease.expires_at = now + TTL;
            held.deadline = now + TTL;
        }
    }

    /// Lets the worker at this index record that it holds its lock.
    fn check_held(&mut self, at: usize) {
        let process = &self.workers[at];
        let idle = !process.is_stopped && process.open_call.is_none();
        if let Some(held) = process.held.filter(|held| idle && !held.is_lost && held.deadline > self.now) {
            self.history.events.push(Event::Held {
                t: self.now * NANOS_PER_MS,
                op: held.op,
                deadline: held.deadline * NANOS_PER_MS,
            });
        }
    }

    /// A request for the lock in a random mode of the workload.
    fn next_lock_request(&mut self) -> Call {
        let mut call = exclusive_request("a");
        let wanted = match self.workload {
            Workload::Rwlock => {
                [Mode::Shared, Mode::Shared, Mode::Exclusive][usize::try_from(self.random_below(3)).expect("small")]
            }
            Workload::Semaphore => {
                let n = u32::try_from(self.random_below(3)).expect("small") + 1;
                Mode::Permits { n, limit: 4 }
            }
            _ => Mode::Exclusive,
        };
        if let Call::Lock { mode, .. } = &mut call {
            *mode = wanted;
        }
        call
    }

    /// Begins a call of a worker that has none open. The worker does not check its lock before it
    /// writes, because the register refuses stale tokens.
    fn start_call(&mut self, at: usize) {
        let (number, busy) =
            (self.workers[at].number, self.workers[at].open_call.is_some() || self.workers[at].is_stopped);
        if busy {
            return;
        }
        let (register, counter) = ("r".to_owned(), self.workload == Workload::Counter);
        let has_register = counter || self.workload == Workload::Fenced;
        let call = match self.workers[at].held {
            None => self.next_lock_request(),
            Some(HeldLock { op: hold, token, read_value: read, is_lost: lost, .. }) => {
                match (self.random_below(4), read) {
                    (0, _) => Call::Release { hold },
                    _ if !has_register => return self.check_held(at),
                    (_, None) if lost && !counter => {
                        self.write_count += 1;
                        Call::Write { hold, register, token: Some(token), value: self.write_count }
                    }
                    (_, None) => Call::Read { hold, register, token: Some(token) },
                    (_, Some(read)) => {
                        self.write_count += 1;
                        let value = if counter { read + 1 } else { self.write_count };
                        Call::Write { hold, register, token: Some(token), value }
                    }
                }
            }
        };
        self.calls += 1;
        let op = self.history.begin(self.now, number, call.clone());
        self.workers[at].open_call = Some(op);
        self.in_flight.push_back(InFlightCall { op, call, answer: None });
    }
}
