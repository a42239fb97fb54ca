//! The servers, the network and the judge, and the planned faults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;

use super::super::config::Config;
use super::super::engine::RedlockEngine;
use super::super::server::Request;
use super::checker::InvariantChecker;
use super::network::{Delivery, SimulatedConnection};
use super::server::SimulatedServer;
use crate::Locks;
use crate::clock::{Clock, Instant};
use crate::engine::EngineUrl;
use crate::virtual_time::Rng;

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    pub(super) ttl: Duration,
    /// The longest time of a message that is neither late nor lost.
    pub(super) usual_delay: Duration,
    /// The longest delay of a late message.
    pub(super) late_delay: Duration,
    /// Per thousand messages.
    pub(super) lost_permille: u64,
    pub(super) late_permille: u64,
    pub(super) duplicated_permille: u64,
    /// How many faults there are, of nodes or connections.
    pub(super) faults: u64,
    /// Nodes restart empty, and start a cool-down.
    pub(super) restarts_empty: bool,
    pub(super) rounds: u64,
}

impl Plan {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let ttl = Duration::from_millis(rng.choose(&[500, 1000, 2000]));
        let rough = rng.happens(700);
        Self {
            nodes: rng.choose(&[3, 3, 5]),
            clients: rng.between(2, 4) as usize,
            ttl,
            // A client waits for a node for a tenth of the TTL.
            usual_delay: ttl / rng.choose(&[1000, 200, 40]),
            late_delay: ttl * 3 / 2,
            lost_permille: if rough { rng.between(0, 100) } else { 0 },
            late_permille: if rough { rng.between(0, 60) } else { 0 },
            duplicated_permille: if rough { rng.between(0, 60) } else { 0 },
            faults: rng.between(0, 6),
            restarts_empty: rng.happens(300),
            rounds: rng.between(2, 4),
        }
    }

    /// Without random faults.
    pub(super) fn without_faults(ttl: Duration) -> Self {
        Self {
            nodes: 3,
            clients: 2,
            ttl,
            usual_delay: Duration::from_millis(2),
            late_delay: Duration::ZERO,
            lost_permille: 0,
            late_permille: 0,
            duplicated_permille: 0,
            faults: 0,
            restarts_empty: false,
            rounds: 0,
        }
    }
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) clock: Clock,
    pub(super) start: Instant,
    servers: Vec<Mutex<SimulatedServer>>,
    /// Which clients are partitioned from all servers.
    partitioned: Vec<AtomicBool>,
    /// Notified to break the connection of this client to this server.
    disconnects: Vec<Vec<Notify>>,
    pub(super) checker: Mutex<InvariantChecker>,
    rng: Mutex<Rng>,
    /// No message is lost, late or duplicated.
    is_calm: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("one thread")
}

impl World {
    pub(super) fn new(plan: Plan, mut rng: Rng, logs: bool) -> Arc<Self> {
        let clock = Clock::tokio();
        let start = clock.now();
        let mut node = |_| {
            let (base, ppm) = (rng.between(1_700_000_000_000_000, 1_700_000_001_000_000), rng.between(0, 18_000));
            Mutex::new(SimulatedServer::new(base, ppm as i64 - 9_000, start))
        };
        let nodes = (0..plan.nodes).map(&mut node).collect();
        let notifies = |_| (0..plan.nodes).map(|_| Notify::new()).collect();
        Arc::new(Self {
            plan,
            start,
            servers: nodes,
            partitioned: (0..=plan.clients).map(|_| AtomicBool::new(false)).collect(),
            disconnects: (0..=plan.clients).map(notifies).collect(),
            checker: Mutex::new(InvariantChecker::new(logs)),
            rng: Mutex::new(rng),
            is_calm: AtomicBool::new(true),
            clock,
        })
    }

    /// Opens the locks of a client.
    pub(super) async fn client(self: &Arc<Self>, client: usize) -> Locks {
        let hosts: Vec<_> = (1..=self.plan.nodes).map(|node| format!("h:{node}")).collect();
        let strict =
            if self.plan.restarts_empty { format!("?strict={}ms", self.plan.ttl.as_millis()) } else { String::new() };
        let url = EngineUrl::parse(&format!("redlock://{}{strict}", hosts.join(","))).expect("a URL");
        let config = Config::read(&url).expect("a configuration").with_clock(&self.clock);
        let reach = |node: &Arc<crate::redis_client::Config>, listener| {
            let cell = usize::from(super::super::server::address_of(node).port) - 1;
            Box::new(SimulatedConnection::new(self, client, cell, listener)) as Box<_>
        };
        let engine = RedlockEngine::open_with(config, &self.clock, "", reach).await.expect("a majority");
        Locks::builder().clock(self.clock.clone()).ttl(self.plan.ttl).open_engine(engine)
    }

    /// Draws from the random numbers of the run.
    pub(super) fn with_rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut lock(&self.rng))
    }

    pub(super) fn server(&self, index: usize) -> MutexGuard<'_, SimulatedServer> {
        lock(&self.servers[index])
    }

    pub(super) fn checker(&self) -> MutexGuard<'_, InvariantChecker> {
        lock(&self.checker)
    }

    /// Records an event, and checks the holders.
    pub(super) fn record_event(&self, description: impl FnOnce() -> String) {
        self.checker().record_event(self.clock.now().duration_since(self.start), description);
    }

    pub(super) fn set_calm(&self, calm: bool) {
        self.is_calm.store(calm, Ordering::SeqCst);
    }

    pub(super) fn choose_delivery(&self) -> Delivery {
        let (calm, plan) = (self.is_calm.load(Ordering::SeqCst), self.plan);
        let delivery = |rng: &mut Rng| {
            let usual = rng.duration(plan.usual_delay) + Duration::from_micros(50);
            let late = !calm && rng.happens(plan.late_permille);
            let late = if late { rng.duration(plan.late_delay) } else { Duration::ZERO };
            (calm || !rng.happens(plan.lost_permille)).then_some(usual + late)
        };
        self.with_rng(|rng| {
            let (request_delay, reply_delay) = (delivery(rng), delivery(rng));
            let doubled = (!calm && rng.happens(plan.duplicated_permille)).then(|| rng.duration(plan.late_delay));
            Delivery { request_delay, reply_delay, duplicate_after: doubled }
        })
    }

    /// Whether the client can connect to the server.
    pub(super) fn can_connect(&self, client: usize, node: usize) -> bool {
        self.server(node).is_up && !self.partitioned[client].load(Ordering::SeqCst)
    }

    /// Partitions the client from all servers, or ends that.
    pub(super) fn set_partitioned(&self, client: usize, partitioned: bool) {
        self.record_event(|| format!("{client} is {}", if partitioned { "cut off" } else { "back" }));
        self.partitioned[client].store(partitioned, Ordering::SeqCst);
        if partitioned {
            for node in 0..self.plan.nodes {
                self.disconnect(client, node);
            }
        }
    }

    /// A request arrives. `None`: the server is down.
    pub(super) async fn serve(&self, client: usize, node: usize, request: &Request) -> Option<Value> {
        loop {
            let awake = self.server(node).hangs_until;
            if self.clock.now() >= awake {
                break;
            }
            self.clock.sleep_until(awake).await;
        }
        if !self.can_connect(client, node) {
            return None;
        }
        let answer = self.server(node).serve(self.clock.now(), request);
        self.record_event(|| format!("{client} sends node {node} {:?}: {answer:?}", request.kind));
        Some(answer)
    }

    pub(super) fn identify(&self, node: usize) -> Vec<Value> {
        self.server(node).identify(self.clock.now(), &format!("run-{node}"))
    }

    /// Returns when the connection breaks.
    pub(super) async fn wait_disconnected(&self, client: usize, node: usize) {
        self.disconnects[client][node].notified().await;
    }

    pub(super) fn disconnect(&self, client: usize, node: usize) {
        self.record_event(|| format!("the connection of {client} to node {node} breaks"));
        self.disconnects[client][node].notify_waiters();
    }

    /// The server hangs for this long, and then continues.
    pub(super) fn hang(&self, node: usize, duration: Duration) {
        self.record_event(|| format!("node {node} hangs for {duration:?}"));
        self.server(node).hangs_until = self.clock.now().saturating_add(duration);
    }

    /// The server stops, and all its connections end.
    pub(super) fn stop(&self, node: usize) {
        self.server(node).is_up = false;
        for client in 0..self.disconnects.len() {
            self.disconnect(client, node);
        }
    }

    pub(super) fn restart(&self, node: usize) {
        let mut server = self.server(node);
        if self.plan.restarts_empty {
            server.restart_empty(self.clock.now(), self.plan.ttl);
        }
        server.is_up = true;
        drop(server);
        self.record_event(|| format!("node {node} is there again"));
    }

    /// Runs the planned faults, for this long.
    pub(super) async fn inject_faults(self: Arc<Self>, duration: Duration) {
        for _ in 0..self.plan.faults {
            let (pause, node, action, time) = self.with_rng(|rng| {
                let (pause, node) =
                    (rng.duration(duration / self.plan.faults as u32), rng.between(0, self.plan.nodes as u64));
                (pause, node as usize, rng.between(0, 7), rng.duration(self.plan.ttl))
            });
            self.clock.sleep(pause).await;
            self.checker().count("faults");
            match action {
                0 => self.hang(node, time),
                1 | 2 => {
                    let majority = self.plan.nodes / 2 + 1;
                    (0..majority).for_each(|other| self.hang((node + other) % self.plan.nodes, time * 2));
                }
                3..=5 => {
                    let client = self.with_rng(|rng| rng.between(0, self.plan.clients as u64)) as usize;
                    if action == 3 {
                        self.disconnect(client, node);
                        continue;
                    }
                    self.set_partitioned(client, true);
                    self.clock.sleep(time * 2).await;
                    self.set_partitioned(client, false);
                }
                _ => {
                    self.stop(node);
                    self.clock.sleep(time / 2).await;
                    self.restart(node);
                }
            }
        }
    }
}
