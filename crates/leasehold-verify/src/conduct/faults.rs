//! Causes the faults of a run, one after the other.

use std::fmt::Write as _;
use std::time::Duration;

use super::crew::Crew;
use super::live::Live;
use super::schedule::{Planned, schedule};
use super::{Control, Length, Progress, Run, Stage, Trouble, one_of};
use crate::dice::Dice;
use crate::history::{Event, FaultKind, Nanos, Worker, Workload};
use crate::worker::Assignment;

const LOOK: Duration = Duration::from_millis(10);
/// How far the workers' clocks jump, in seconds.
const HOUR: i64 = 3600;
/// Ends the wait for Sentinels that do not replace a master.
const REPLACEMENT: Duration = leasehold_testbed::BOUND;
/// In a run with a duration, a fault begins about this often.
const EVERY: Duration = Duration::from_secs(4);
/// A run of a number of calls ends after this time, too, or after [`SLOWEST`] per call if that is
/// longer.
const LONGEST: Duration = Duration::from_secs(120);
const SLOWEST: Duration = Duration::from_millis(600);
/// The latest part of its duration at which a run's last fault may begin.
const LAST: f64 = 0.9;
/// Calls after the last fault, in a run with a duration.
const AFTERWARDS: u64 = 20;
const TICKS_AFTERWARDS: u64 = 3;

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Stage {
    /// Lets the workers work, and causes each fault at its time.
    pub(super) async fn drive(
        &mut self,
        run: &Run,
        live: &Live,
        crew: &mut Crew,
        assignment: &Assignment,
        progress: &mut impl FnMut(&Progress),
    ) -> Result<(), Trouble> {
        let count = run.times.unwrap_or(match run.length {
            Length::Calls(_) => run.faults.len(),
            Length::Time(time) => run.faults.len().max((time.as_secs_f64() / EVERY.as_secs_f64()) as usize),
        });
        let dice = Dice::new(run.seed).fork("faults");
        let plan = schedule(&run.faults, count, run.seed);
        let total = plan.len();
        // Strict servers grant nothing until the longest lease that they may have lost is over:
        // before that, no lock is at risk.
        let patience = nanos(self.ttl * 4 + Duration::from_secs(5));
        live.say("waiting for the first grant");
        wait(live, progress, |state| state.grants > 0 || state.ticks > 0 || state.elapsed >= patience).await;
        let first = live.now();
        let far = |state: &Progress| far(run.length, first, state);
        let mut number = 0;
        for planned in plan {
            // How many random numbers a fault uses depends on timing: the next fault must not
            // depend on that.
            let mut dice = dice.fork(&format!("fault {}", number + 1));
            live.say(&format!("fault {} of {total} comes: {}", number + 1, planned.kind));
            wait(live, progress, |state| far(state) >= planned.after).await;
            // Faults run one after the other, and take time: the report lists those that did not
            // fit.
            if matches!(run.length, Length::Time(_)) && far(&live.progress()) > LAST {
                break;
            }
            if self.scene.control.is_some_and(Control::strikes_at_a_grant) {
                let (before, give_up) = (live.progress().grants, live.now() + nanos(self.ttl * 2));
                wait(live, progress, |state| state.grants > before || state.elapsed >= give_up).await;
            } else if assignment.steady {
                // When all holds are equally long, calls come in bunches: a fault should begin
                // between them.
                tokio::time::sleep(dice.time(self.ttl / 10, self.ttl * 4 / 10)).await;
            }
            number += 1;
            live.say(&format!("fault {number} of {total}: {}", planned.kind));
            progress(&live.progress());
            self.strike(number, planned, live, crew, assignment, &mut dice).await?;
            live.fault_over();
        }
        live.say("no more faults");
        // Some work after the last fault shows that the engine has recovered.
        let (after, since) = (live.progress().calls, live.now());
        let more = match run.length {
            Length::Calls(calls) if total > 0 => after + calls / 5,
            Length::Time(_) if total > 0 && run.workload == Workload::Ticks => after + TICKS_AFTERWARDS,
            Length::Time(_) if total > 0 => after + AFTERWARDS,
            _ => after,
        };
        let patience = match run.length {
            Length::Calls(_) => patience,
            Length::Time(_) => nanos(self.ttl * 2 + Duration::from_secs(3)),
        };
        wait(live, progress, |state| {
            far(state) >= 1.0 && (state.calls >= more || state.elapsed.saturating_sub(since) >= patience)
        })
        .await;
        Ok(())
    }

    async fn strike(
        &mut self,
        number: u32,
        planned: Planned,
        live: &Live,
        crew: &mut Crew,
        assignment: &Assignment,
        dice: &mut Dice,
    ) -> Result<(), Trouble> {
        match planned.kind {
            FaultKind::Kill | FaultKind::Stop => {
                self.hit_holder(number, planned.kind, live, crew, assignment, dice).await
            }
            kind if self.scene.control.is_some_and(|control| control.takes(kind)) => {
                self.move_workers_clock(number, live).await
            }
            kind => {
                let stopped = match self.scene.control {
                    Some(control) if control.stops_holders() => self.stop_holders(live, crew).await,
                    // The same as with the guard off.
                    None if kind == FaultKind::Wipe && dice.fork("wide").one_in(2) && self.deployment.widen(kind) => {
                        vec![self.catch(live, crew, dice).await?.0]
                    }
                    // Other workers acquire the lock while it believes that it still holds it.
                    _ if kind == FaultKind::Ahead && dice.between(0, 1) == 0 => {
                        vec![self.catch(live, crew, dice).await?.0]
                    }
                    _ => Vec::new(),
                };
                self.hit_servers(number, kind, &stopped, live, dice).await?;
                for worker in stopped {
                    crew.resume(worker).await;
                }
                Ok(())
            }
        }
    }

    /// Causes a fault of the servers while these workers are stopped.
    async fn hit_servers(
        &mut self,
        number: u32,
        kind: FaultKind,
        stopped: &[Worker],
        live: &Live,
        dice: &mut Dice,
    ) -> Result<(), Trouble> {
        let t = live.now();
        let begins = |target, served, spares| {
            let workers = Vec::new();
            Event::FaultBegin { t, fault: number, kind, target, workers, served, spares }
        };
        live.put(begins(String::new(), None, Vec::new()));
        let before = self.deployment.connections();
        let mut strike = self.deployment.begin(kind, dice).await?;
        for worker in stopped {
            let _ = write!(strike.target, ", and worker {worker} stands still");
        }
        if kind == FaultKind::Clock
            && let Some(clock) = &self.workers_clock
        {
            // The direction must not matter to them.
            let ahead = dice.fork("workers").one_in(2);
            clock.move_to(if ahead { HOUR } else { -HOUR })?;
            let _ = write!(strike.target, ", and the workers' an hour {}", if ahead { "ahead" } else { "back" });
        }
        live.put(begins(strike.target.clone(), None, strike.spares.clone()));
        let over = tokio::time::Instant::now() + strike.lasts;
        if strike.served {
            // If a server is replaced, the fault ends only then.
            let replaced = matches!(kind, FaultKind::Failover | FaultKind::Clock);
            let bound = if replaced { REPLACEMENT } else { strike.lasts };
            if tokio::time::timeout(bound, self.deployment.others_serve(kind)).await.is_ok() {
                live.put(begins(strike.target, Some(live.now()), strike.spares));
            }
        }
        tokio::time::sleep_until(over).await;
        let after = self.deployment.connections();
        let connections = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        let note = self.deployment.end(kind).await?;
        if let Some(clock) = &self.workers_clock {
            clock.move_to(0)?;
        }
        live.put(Event::FaultEnd { t: live.now(), fault: number, note, connections });
        if !stopped.is_empty() {
            // Other workers acquire the lock in the meantime; their leases last longer than that.
            tokio::time::sleep(self.ttl / 2).await;
        }
        Ok(())
    }

    /// Waits until a worker holds a lock, then stops all holders.
    async fn stop_holders(&self, live: &Live, crew: &Crew) -> Vec<Worker> {
        let give_up = live.now() + nanos(self.ttl * 2);
        while live.holders().is_empty() && live.now() < give_up {
            tokio::time::sleep(LOOK).await;
        }
        let mut stopped = Vec::new();
        for worker in live.holders() {
            if crew.stop(worker).await {
                stopped.push(worker);
            }
        }
        stopped
    }

    /// Kills or stops a holder.
    async fn hit_holder(
        &self,
        number: u32,
        kind: FaultKind,
        live: &Live,
        crew: &mut Crew,
        assignment: &Assignment,
        dice: &mut Dice,
    ) -> Result<(), Trouble> {
        let (worker, t) = self.catch(live, crew, dice).await?;
        let mates = crew.mates(worker);
        let workers: Vec<Worker> = mates.iter().map(|(worker, _)| *worker).collect();
        let lanes: Vec<u32> = mates.iter().map(|(_, lane)| *lane).collect();
        let target = match lanes.as_slice() {
            [lane] => format!("worker {worker} on lane {lane}"),
            _ => "the process with all workers".to_owned(),
        };
        live.put(Event::FaultBegin { t, fault: number, kind, target, workers, served: None, spares: Vec::new() });
        if kind == FaultKind::Kill {
            // On a busy machine it may take a while until the process is gone.
            crew.kill(worker).await;
            live.put(Event::FaultEnd { t: live.now(), fault: number, note: String::new(), connections: None });
            crew.start(assignment, &[lanes]).await?;
        } else {
            let least = nanos(self.ttl) * 5 / 4;
            let stopped = Duration::from_nanos(dice.between(least, least + nanos(self.ttl) / 2));
            tokio::time::sleep(stopped).await;
            crew.resume(worker).await;
            live.put(Event::FaultEnd { t: live.now(), fault: number, note: String::new(), connections: None });
        }
        Ok(())
    }

    /// Stops a worker while it holds a lock; returns since when. Its last events may arrive only
    /// after the stop: if it turns out to hold nothing, it is resumed, and another is tried.
    async fn catch(&self, live: &Live, crew: &Crew, dice: &Dice) -> Result<(Worker, Nanos), Trouble> {
        // How many random numbers are used here depends on timing.
        let mut dice = dice.fork("catch");
        let give_up = live.now() + nanos(self.ttl * 2 + Duration::from_secs(2));
        loop {
            let late = live.now() >= give_up;
            let holders = live.holders();
            // No worker holds a lock for long enough: then any worker.
            let candidates = if late && holders.is_empty() { live.workers() } else { holders };
            let Some(worker) = one_of(&candidates, &mut dice) else {
                if late {
                    return Err(Trouble::new("no worker is left"));
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
                continue;
            };
            let t = live.now();
            if crew.stop(worker).await {
                if late || live.holders().contains(&worker) {
                    return Ok((worker, t));
                }
                crew.resume(worker).await;
            } else {
                // It has ended; the error is reported when all workers are dismissed.
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Sets the workers' own clocks back for a while.
    async fn move_workers_clock(&self, number: u32, live: &Live) -> Result<(), Trouble> {
        let Some(clock) = &self.workers_clock else { return Ok(()) };
        let t = live.now();
        clock.move_to(-HOUR)?;
        let target = "the workers' wall clocks, an hour back".to_owned();
        let (kind, workers) = (FaultKind::Clock, Vec::new());
        live.put(Event::FaultBegin { t, fault: number, kind, target, workers, served: None, spares: Vec::new() });
        tokio::time::sleep(self.ttl * 3).await;
        clock.move_to(0)?;
        live.put(Event::FaultEnd { t: live.now(), fault: number, note: String::new(), connections: None });
        Ok(())
    }
}

/// How much of a run is over, from 0 to 1; its duration counts from `first` on.
fn far(length: Length, first: Nanos, state: &Progress) -> f64 {
    let elapsed = state.elapsed.saturating_sub(first) as f64;
    match length {
        Length::Calls(calls) => {
            let worked = state.calls as f64 / calls.max(1) as f64;
            let longest = LONGEST.max(SLOWEST.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX)));
            worked.max(elapsed / nanos(longest) as f64)
        }
        Length::Time(time) => elapsed / nanos(time).max(1) as f64,
    }
}

/// Waits until `enough`, and reports the progress meanwhile.
async fn wait(live: &Live, progress: &mut impl FnMut(&Progress), enough: impl Fn(&Progress) -> bool) {
    loop {
        let state = live.progress();
        if enough(&state) {
            return;
        }
        progress(&state);
        tokio::time::sleep(LOOK).await;
    }
}
