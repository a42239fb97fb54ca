//! Random servers, by the hundred: each request is answered, late or never, refused, or ends the
//! connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;

use super::server::{ConnectReaction, Reaction, ScriptedServer};
use crate::Locks;
use crate::clock::Instant;
use crate::core::guard::LeaseWatcher;
use crate::virtual_time::{self, Report, Rng};

/// The shortest time for an attempt to connect, with the pause before it.
const MIN_RECONNECT_TIME: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
struct FaultPlan {
    ttl: Duration,
    clients: usize,
    rounds: u64,
    /// Per thousand.
    late_answers: u64,
    refusals: u64,
    lost_answers: u64,
    disconnects: u64,
    hangs: u64,
    unreachable: u64,
}

impl FaultPlan {
    fn random(rng: &mut Rng) -> Self {
        let mut share = |max| if rng.happens(500) { rng.between(0, max) } else { 0 };
        let (late, refused, lost, cut, hung, away) =
            (share(200), share(150), share(100), share(100), share(40), share(500));
        let ttl = Duration::from_millis(rng.choose(&[500, 2000, 30_000]));
        Self {
            ttl,
            clients: 2,
            rounds: rng.between(2, 4),
            late_answers: late,
            refusals: refused,
            lost_answers: lost,
            disconnects: cut,
            hangs: hung,
            unreachable: away,
        }
    }

    fn choose_reaction(&self, rng: &mut Rng) -> Reaction {
        let dice_for = |rng: &mut Rng, share| rng.happens(share);
        match () {
            () if dice_for(rng, self.late_answers) => Reaction::AnswerAfter(rng.duration(self.ttl)),
            () if dice_for(rng, self.refusals) => {
                Reaction::Refuse(rng.choose(&["LOADING x", "READONLY x", "ERR x", "OOM x"]))
            }
            () if dice_for(rng, self.lost_answers) => Reaction::LoseAnswer,
            () if dice_for(rng, self.disconnects) => Reaction::Disconnect,
            () if dice_for(rng, self.hangs) => Reaction::Hang,
            () => Reaction::Answer,
        }
    }
}

/// The guards that are held, and the breaches found.
#[derive(Default)]
struct InvariantChecker {
    report: Report,
    guards: Vec<(usize, LeaseWatcher)>,
}

impl InvariantChecker {
    fn check(&mut self, now: Instant) {
        let held: Vec<_> = self.guards.iter().filter(|(_, watch)| watch.is_held()).collect();
        let late: Vec<_> = held.iter().filter(|(_, watch)| now >= watch.deadline()).map(|(at, _)| *at).collect();
        let two = held.len() > 1;
        if !late.is_empty() {
            self.report.violations.push(format!("{now:?}: {late:?} report a held lock after its deadline"));
        }
        if two {
            self.report.violations.push(format!("{now:?}: two hold the lock"));
        }
    }
}

async fn run_client(
    server: Arc<ScriptedServer>,
    checker: Arc<Mutex<InvariantChecker>>,
    mut rng: Rng,
    plan: FaultPlan,
    client: usize,
    locks: Locks,
) {
    let clock = &server.clock;
    let locked_checker = || checker.lock().expect("one thread");
    let mut last = 0;
    for _ in 0..plan.rounds {
        clock.sleep(rng.duration(plan.ttl / 2)).await;
        let (start, wait) = (clock.now(), rng.duration(plan.ttl * 3 / 2));
        let got = locks.mutex("a").timeout(wait).lock().await;
        let took = clock.now().duration_since(start);
        if took > wait + Duration::from_millis(250 + 5) {
            locked_checker().report.violations.push(format!("{client} waited for {took:?} instead of {wait:?}"));
        }
        let Ok(guard) = got else {
            locked_checker().report.count("errors");
            continue;
        };
        locked_checker().report.count("grants");
        locked_checker().guards.push((client, guard.watcher()));
        locked_checker().check(clock.now());
        if guard.token().0 <= last {
            locked_checker().report.violations.push(format!("{client} was granted {:?} after {last}", guard.token()));
        }
        last = guard.token().0;
        let hold = rng.duration(plan.ttl * 2);
        tokio::select! {
            biased;
            reason = guard.lost() => {
                let late = clock.now().duration_since(guard.deadline());
                locked_checker().report.count(if reason == crate::LostReason::Expired { "expired" } else { "revoked" });
                if late > Duration::from_millis(2) {
                    locked_checker().report.violations.push(format!("{client} learned of its loss {late:?} late"));
                }
            }
            () = clock.sleep(hold) => {}
        }
        locked_checker().guards.retain(|(of, _)| *of != client);
        if rng.happens(300) {
            drop(guard);
        } else {
            let _ = guard.release().await;
        }
    }
}

fn run(seed: u64, logs: bool) -> Report {
    let mut rng = Rng::new(seed);
    let plan = FaultPlan::random(&mut rng);
    virtual_time::run_seed(seed, async {
        let (server, checker) = (ScriptedServer::new(1), Arc::new(Mutex::new(InvariantChecker::default())));
        let start = server.clock.now();
        let mut clients = Vec::new();
        for _ in 0..plan.clients {
            clients.push(server.open(plan.ttl).await.expect("it answers"));
        }
        let (mut reaction_rng, mut connection_rng) = (Rng::new(seed ^ 1), Rng::new(seed ^ 2));
        let request_checker = Arc::clone(&checker);
        server.on_request(move |request| {
            let mut checker = request_checker.lock().expect("one thread");
            checker.check(request.at);
            checker.report.count("requests");
            let reaction = plan.choose_reaction(&mut reaction_rng);
            if logs {
                checker
                    .report
                    .log
                    .push(format!("{:?} {} {:?}: {reaction:?}", request.at, request.kind, request.claims));
            }
            reaction
        });
        server.on_connect(move |_| match connection_rng.happens(plan.unreachable) {
            true if connection_rng.happens(200) => ConnectReaction::NeverAnswer,
            true => ConnectReaction::Refuse,
            false => ConnectReaction::Accept,
        });
        let lives = clients.iter().enumerate().map(|(client, locks)| {
            let rng = Rng::new(seed.wrapping_mul(31) + 7 + client as u64);
            tokio::spawn(run_client(Arc::clone(&server), Arc::clone(&checker), rng, plan, client, locks.clone()))
        });
        join_all(lives).await.into_iter().for_each(|life| life.expect("no panic"));
        let (passed, connects) = (server.clock.now().duration_since(start), server.connect_times().len());
        server.on_request(|_| Reaction::Answer);
        server.on_connect(|_| ConnectReaction::Accept);
        server.clock.sleep(plan.ttl * 2 + Duration::from_secs(10)).await;
        let fresh = clients[0].mutex("a").timeout(plan.ttl * 2).lock().await;
        let mut checker = checker.lock().expect("one thread");
        let mut report = std::mem::take(&mut checker.report);
        if let Err(error) = fresh {
            report.violations.push(format!("the server answers, and the lock cannot be had: {error}"));
        }
        let max = plan.clients * (2 + (passed.as_nanos() / MIN_RECONNECT_TIME.as_nanos()) as usize);
        if connects > max {
            report.violations.push(format!("{connects} connections in {passed:?}"));
        }
        *report.counts.entry("connections").or_default() += connects as u64;
        report
    })
}

#[test]
fn no_guard_is_held_too_long_under_random_faults() {
    let enough = [("grants", 250), ("expired", 10), ("errors", 150), ("connections", 1_000)];
    virtual_time::run_many_seeds("no_guard_is_held_too_long_under_random_faults", 150, run, &enough);
}

#[test]
fn one_seed_determines_one_run() {
    for seed in 0..5 {
        let (one, again) = (run(seed, true), run(seed, true));
        assert_eq!((one.log, one.counts), (again.log, again.counts), "seed {seed}");
    }
}
