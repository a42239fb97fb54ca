//! Random servers, by the hundred: each request is answered, late or never, refused, or ends the
//! connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;

use super::server::{Deed, Scripted, Welcome};
use crate::Locks;
use crate::clock::Moment;
use crate::guard::Watch;
use crate::virtual_time::{self, Dice, Report};

/// The shortest time for an attempt to connect, with the pause before it.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
struct Plan {
    ttl: Duration,
    clients: usize,
    rounds: u64,
    /// Per thousand.
    late: u64,
    refused: u64,
    lost: u64,
    cut: u64,
    hung: u64,
    away: u64,
}

impl Plan {
    fn draw(dice: &mut Dice) -> Self {
        let mut share = |most| if dice.happens(500) { dice.between(0, most) } else { 0 };
        let (late, refused, lost, cut, hung, away) =
            (share(200), share(150), share(100), share(100), share(40), share(500));
        let ttl = Duration::from_millis(dice.one_of(&[500, 2000, 30_000]));
        Self { ttl, clients: 2, rounds: dice.between(2, 4), late, refused, lost, cut, hung, away }
    }

    fn deed(&self, dice: &mut Dice) -> Deed {
        let dice_for = |dice: &mut Dice, share| dice.happens(share);
        match () {
            () if dice_for(dice, self.late) => Deed::After(dice.time(self.ttl)),
            () if dice_for(dice, self.refused) => {
                Deed::Refuse(dice.one_of(&["LOADING x", "READONLY x", "ERR x", "OOM x"]))
            }
            () if dice_for(dice, self.lost) => Deed::Lose,
            () if dice_for(dice, self.cut) => Deed::Cut,
            () if dice_for(dice, self.hung) => Deed::Hang,
            () => Deed::Answer,
        }
    }
}

/// The guards that are held, and the breaches found.
#[derive(Default)]
struct Judge {
    report: Report,
    guards: Vec<(usize, Watch)>,
}

impl Judge {
    fn look(&mut self, now: Moment) {
        let held: Vec<_> = self.guards.iter().filter(|(_, watch)| watch.is_held()).collect();
        let late: Vec<_> = held.iter().filter(|(_, watch)| now >= watch.deadline()).map(|(at, _)| *at).collect();
        let two = held.len() > 1;
        if !late.is_empty() {
            self.report.breaches.push(format!("{now:?}: {late:?} say held after their deadline"));
        }
        if two {
            self.report.breaches.push(format!("{now:?}: two hold the lock"));
        }
    }
}

async fn live(
    server: Arc<Scripted>,
    judge: Arc<Mutex<Judge>>,
    mut dice: Dice,
    plan: Plan,
    client: usize,
    locks: Locks,
) {
    let clock = &server.clock;
    let judge = || judge.lock().expect("one thread");
    let mut last = 0;
    for _ in 0..plan.rounds {
        clock.sleep(dice.time(plan.ttl / 2)).await;
        let (start, wait) = (clock.now(), dice.time(plan.ttl * 3 / 2));
        let got = locks.mutex("a").wait(wait).lock().await;
        let took = clock.now().since(start);
        if took > wait + Duration::from_millis(250 + 5) {
            judge().report.breaches.push(format!("{client} waited for {took:?} instead of {wait:?}"));
        }
        let Ok(guard) = got else {
            judge().report.count("errors");
            continue;
        };
        judge().report.count("grants");
        judge().guards.push((client, guard.watch()));
        judge().look(clock.now());
        if guard.token().0 <= last {
            judge().report.breaches.push(format!("{client} was granted {:?} after {last}", guard.token()));
        }
        last = guard.token().0;
        let hold = dice.time(plan.ttl * 2);
        tokio::select! {
            biased;
            reason = guard.lost() => {
                let late = clock.now().since(guard.deadline());
                judge().report.count(if reason == crate::LostReason::Expired { "expired" } else { "taken" });
                if late > Duration::from_millis(2) {
                    judge().report.breaches.push(format!("{client} was told of its loss {late:?} late"));
                }
            }
            () = clock.sleep(hold) => {}
        }
        judge().guards.retain(|(of, _)| *of != client);
        if dice.happens(300) {
            drop(guard);
        } else {
            let _ = guard.release().await;
        }
    }
}

fn run(seed: u64, logs: bool) -> Report {
    let mut dice = Dice::new(seed);
    let plan = Plan::draw(&mut dice);
    virtual_time::run(seed, async {
        let (server, judge) = (Scripted::new(1), Arc::new(Mutex::new(Judge::default())));
        let start = server.clock.now();
        let mut clients = Vec::new();
        for _ in 0..plan.clients {
            clients.push(server.open(plan.ttl).await.expect("it answers"));
        }
        let (mut deeds, mut doors) = (Dice::new(seed ^ 1), Dice::new(seed ^ 2));
        let looks = Arc::clone(&judge);
        server.script(move |seen| {
            let mut judge = looks.lock().expect("one thread");
            judge.look(seen.at);
            judge.report.count("requests");
            let deed = plan.deed(&mut deeds);
            if logs {
                judge.report.log.push(format!("{:?} {} {:?}: {deed:?}", seen.at, seen.what, seen.claims));
            }
            deed
        });
        server.welcome(move |_| match doors.happens(plan.away) {
            true if doors.happens(200) => Welcome::Mute,
            true => Welcome::Refused,
            false => Welcome::Open,
        });
        let lives = clients.iter().enumerate().map(|(client, locks)| {
            let dice = Dice::new(seed.wrapping_mul(31) + 7 + client as u64);
            tokio::spawn(live(Arc::clone(&server), Arc::clone(&judge), dice, plan, client, locks.clone()))
        });
        join_all(lives).await.into_iter().for_each(|life| life.expect("no panic"));
        let (passed, dials) = (server.clock.now().since(start), server.dials().len());
        server.script(|_| Deed::Answer);
        server.welcome(|_| Welcome::Open);
        server.clock.sleep(plan.ttl * 2 + Duration::from_secs(10)).await;
        let fresh = clients[0].mutex("a").wait(plan.ttl * 2).lock().await;
        let mut judge = judge.lock().expect("one thread");
        let mut report = std::mem::take(&mut judge.report);
        if let Err(error) = fresh {
            report.breaches.push(format!("the server answers, and the lock cannot be had: {error}"));
        }
        let most = plan.clients * (2 + (passed.as_nanos() / PAUSE.as_nanos()) as usize);
        if dials > most {
            report.breaches.push(format!("{dials} connections in {passed:?}"));
        }
        *report.counts.entry("connections").or_default() += dials as u64;
        report
    })
}

#[test]
fn whatever_a_server_does_no_guard_is_held_too_long() {
    let enough = [("grants", 250), ("expired", 10), ("errors", 150), ("connections", 1_000)];
    virtual_time::many("whatever_a_server_does_no_guard_is_held_too_long", 150, run, &enough);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..5 {
        let (one, again) = (run(seed, true), run(seed, true));
        assert_eq!((one.log, one.counts), (again.log, again.counts), "seed {seed}");
    }
}
