//! The servers, the network and the judge, and the planned faults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;

use super::super::config::Config;
use super::super::engine::{NO_INBOX, RedlockEngine};
use super::super::server::Request;
use super::cell::Cell;
use super::judge::Judge;
use super::network::{Fate, Wire};
use crate::Locks;
use crate::clock::{Clock, Moment};
use crate::engine::EngineUrl;
use crate::virtual_time::Dice;

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    pub(super) ttl: Duration,
    /// The longest time of a message that is neither late nor lost.
    pub(super) pace: Duration,
    /// The longest delay of a late message.
    pub(super) latest: Duration,
    /// Per thousand messages.
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) doubled: u64,
    /// How many faults there are, of nodes or connections.
    pub(super) faults: u64,
    /// Nodes restart empty, and start a cool-down.
    pub(super) forgetful: bool,
    pub(super) rounds: u64,
}

impl Plan {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let ttl = Duration::from_millis(dice.one_of(&[500, 1000, 2000]));
        let rough = dice.happens(700);
        Self {
            nodes: dice.one_of(&[3, 3, 5]),
            clients: dice.between(2, 4) as usize,
            ttl,
            // A client waits for a node for a tenth of the TTL.
            pace: ttl / dice.one_of(&[1000, 200, 40]),
            latest: ttl * 3 / 2,
            lost: if rough { dice.between(0, 100) } else { 0 },
            late: if rough { dice.between(0, 60) } else { 0 },
            doubled: if rough { dice.between(0, 60) } else { 0 },
            faults: dice.between(0, 6),
            forgetful: dice.happens(300),
            rounds: dice.between(2, 4),
        }
    }

    /// Without random faults.
    pub(super) fn calm(ttl: Duration) -> Self {
        Self {
            nodes: 3,
            clients: 2,
            ttl,
            pace: Duration::from_millis(2),
            latest: Duration::ZERO,
            lost: 0,
            late: 0,
            doubled: 0,
            faults: 0,
            forgetful: false,
            rounds: 0,
        }
    }
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) clock: Clock,
    pub(super) start: Moment,
    cells: Vec<Mutex<Cell>>,
    /// Which clients are partitioned from all servers.
    parted: Vec<AtomicBool>,
    /// Notified to break the connection of this client to this server.
    cuts: Vec<Vec<Notify>>,
    pub(super) judge: Mutex<Judge>,
    dice: Mutex<Dice>,
    /// No message is lost, late or duplicated.
    calm: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("one thread")
}

impl World {
    pub(super) fn new(plan: Plan, mut dice: Dice, logs: bool) -> Arc<Self> {
        let clock = Clock::tokio();
        let start = clock.now();
        let mut cell = |_| {
            let (base, ppm) = (dice.between(1_700_000_000_000_000, 1_700_000_001_000_000), dice.between(0, 18_000));
            Mutex::new(Cell::new(base, ppm as i64 - 9_000, start))
        };
        let cells = (0..plan.nodes).map(&mut cell).collect();
        let notifies = |_| (0..plan.nodes).map(|_| Notify::new()).collect();
        Arc::new(Self {
            plan,
            start,
            cells,
            parted: (0..=plan.clients).map(|_| AtomicBool::new(false)).collect(),
            cuts: (0..=plan.clients).map(notifies).collect(),
            judge: Mutex::new(Judge::new(logs)),
            dice: Mutex::new(dice),
            calm: AtomicBool::new(true),
            clock,
        })
    }

    /// Opens the locks of a client.
    pub(super) async fn client(self: &Arc<Self>, client: usize) -> Locks {
        let hosts: Vec<_> = (1..=self.plan.nodes).map(|node| format!("h:{node}")).collect();
        let strict =
            if self.plan.forgetful { format!("?strict={}ms", self.plan.ttl.as_millis()) } else { String::new() };
        let url = EngineUrl::parse(&format!("redlock://{}{strict}", hosts.join(","))).expect("a URL");
        let config = Config::read(&url).expect("a configuration").on(&self.clock);
        let reach = |node: &Arc<crate::engine::redis::config::Config>, ears| {
            let cell = usize::from(super::super::server::address(node).port) - 1;
            Box::new(Wire::new(self, client, cell, ears)) as Box<_>
        };
        let engine = RedlockEngine::open_on(config, &self.clock, NO_INBOX, reach).await.expect("a majority");
        Locks::builder().clock(self.clock.clone()).ttl(self.plan.ttl).open_engine(engine)
    }

    /// Draws from the random numbers of the run.
    pub(super) fn draw<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut lock(&self.dice))
    }

    pub(super) fn cell(&self, cell: usize) -> MutexGuard<'_, Cell> {
        lock(&self.cells[cell])
    }

    pub(super) fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// Records an event, and checks the holders.
    pub(super) fn event(&self, what: impl FnOnce() -> String) {
        self.judge().event(self.clock.now().since(self.start), what);
    }

    pub(super) fn be_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::SeqCst);
    }

    pub(super) fn fate(&self) -> Fate {
        let (calm, plan) = (self.calm.load(Ordering::SeqCst), self.plan);
        let way = |dice: &mut Dice| {
            let usual = dice.time(plan.pace) + Duration::from_micros(50);
            let late = !calm && dice.happens(plan.late);
            let late = if late { dice.time(plan.latest) } else { Duration::ZERO };
            (calm || !dice.happens(plan.lost)).then_some(usual + late)
        };
        self.draw(|dice| {
            let (there, back) = (way(dice), way(dice));
            let doubled = (!calm && dice.happens(plan.doubled)).then(|| dice.time(plan.latest));
            Fate { there, back, doubled }
        })
    }

    /// Whether the client can connect to the server.
    pub(super) fn is_open(&self, client: usize, cell: usize) -> bool {
        self.cell(cell).up && !self.parted[client].load(Ordering::SeqCst)
    }

    /// Partitions the client from all servers, or ends that.
    pub(super) fn part(&self, client: usize, parted: bool) {
        self.event(|| format!("{client} is {}", if parted { "cut off" } else { "back" }));
        self.parted[client].store(parted, Ordering::SeqCst);
        if parted {
            for cell in 0..self.plan.nodes {
                self.cut(client, cell);
            }
        }
    }

    /// A request arrives. `None`: the server is down.
    pub(super) async fn serve(&self, client: usize, cell: usize, request: &Request) -> Option<Value> {
        loop {
            let awake = self.cell(cell).hangs_until;
            if self.clock.now() >= awake {
                break;
            }
            self.clock.sleep_until(awake).await;
        }
        if !self.is_open(client, cell) {
            return None;
        }
        let answer = self.cell(cell).serve(self.clock.now(), request);
        self.event(|| format!("{client} asks node {cell} to {:?}: {answer:?}", request.what));
        Some(answer)
    }

    pub(super) fn introduce(&self, cell: usize) -> Vec<Value> {
        self.cell(cell).introduce(self.clock.now(), &format!("run-{cell}"))
    }

    /// Returns when the connection breaks.
    pub(super) async fn until_cut(&self, client: usize, cell: usize) {
        self.cuts[client][cell].notified().await;
    }

    pub(super) fn cut(&self, client: usize, cell: usize) {
        self.event(|| format!("the connection of {client} to node {cell} breaks"));
        self.cuts[client][cell].notify_waiters();
    }

    /// The server hangs for this long, and then goes on.
    pub(super) fn hang(&self, cell: usize, lasts: Duration) {
        self.event(|| format!("node {cell} hangs for {lasts:?}"));
        self.cell(cell).hangs_until = self.clock.now().after(lasts);
    }

    /// The server stops, and all its connections end.
    pub(super) fn stop(&self, cell: usize) {
        self.cell(cell).up = false;
        for client in 0..self.cuts.len() {
            self.cut(client, cell);
        }
    }

    pub(super) fn restart(&self, cell: usize) {
        let mut there = self.cell(cell);
        if self.plan.forgetful {
            there.forget(self.clock.now(), self.plan.ttl);
        }
        there.up = true;
        drop(there);
        self.event(|| format!("node {cell} is there again"));
    }

    /// Runs the planned faults, for this long.
    pub(super) async fn faults(self: Arc<Self>, lasts: Duration) {
        for _ in 0..self.plan.faults {
            let (pause, cell, what, time) = self.draw(|dice| {
                let (pause, cell) =
                    (dice.time(lasts / self.plan.faults as u32), dice.between(0, self.plan.nodes as u64));
                (pause, cell as usize, dice.between(0, 7), dice.time(self.plan.ttl))
            });
            self.clock.sleep(pause).await;
            self.judge().count("faults");
            match what {
                0 => self.hang(cell, time),
                1 | 2 => {
                    let majority = self.plan.nodes / 2 + 1;
                    (0..majority).for_each(|other| self.hang((cell + other) % self.plan.nodes, time * 2));
                }
                3..=5 => {
                    let client = self.draw(|dice| dice.between(0, self.plan.clients as u64)) as usize;
                    if what == 3 {
                        self.cut(client, cell);
                        continue;
                    }
                    self.part(client, true);
                    self.clock.sleep(time * 2).await;
                    self.part(client, false);
                }
                _ => {
                    self.stop(cell);
                    self.clock.sleep(time / 2).await;
                    self.restart(cell);
                }
            }
        }
    }
}
