//! Causes the faults of a run, one after the other.

use std::fmt::Write as _;
use std::time::Duration;

use super::fault_plan::{PlannedFault, plan_faults};
use super::run_state::RunState;
use super::workers::Workers;
use super::{Conductor, NegativeControl, Progress, RunError, RunLength, RunOptions, random_worker};
use crate::history::{Event, FaultKind, RunNanos, WorkerId, Workload};
use crate::rng::Rng;
use crate::worker::Assignment;

/// How often the progress of the run is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How far the workers' wall clocks jump, in seconds.
const CLOCK_JUMP_SECONDS: i64 = 3600;
/// The longest wait for Sentinels or a cluster to replace a master.
const FAILOVER_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// The average interval between faults in a run with a duration.
const FAULT_INTERVAL: Duration = Duration::from_secs(4);
/// A run of a number of calls ends after this time at the latest, or after `MAX_TIME_PER_CALL` for
/// each call if that is longer.
const MAX_RUN_TIME: Duration = Duration::from_secs(120);
/// A run of a number of calls has at least this time for each call.
const MAX_TIME_PER_CALL: Duration = Duration::from_millis(600);
/// In a run with a duration, no fault begins after this fraction of it.
const LAST_FAULT_FRACTION: f64 = 0.9;
/// How many calls a run with a duration waits for after its last fault.
const CALLS_AFTER_LAST_FAULT: u64 = 20;
/// How many ticks a run with a duration and a scheduled job waits for after its last fault.
const TICKS_AFTER_LAST_FAULT: u64 = 3;

/// A duration in nanoseconds; the maximum if it does not fit.
fn as_nanos(time: Duration) -> RunNanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Conductor {
    /// Causes the run's faults while the workers run, and returns when the run should end.
    pub(super) async fn drive_faults(
        &mut self,
        run: &RunOptions,
        run_state: &RunState,
        workers: &mut Workers,
        assignment: &Assignment,
        progress: &mut impl FnMut(&Progress),
    ) -> Result<(), RunError> {
        let count = run.fault_count.unwrap_or(match run.length {
            RunLength::Calls(_) => run.faults.len(),
            RunLength::ForDuration(time) => {
                run.faults.len().max((time.as_secs_f64() / FAULT_INTERVAL.as_secs_f64()) as usize)
            }
        });
        let rng = Rng::new(run.seed).fork("faults");
        let plan = plan_faults(&run.faults, count, run.seed);
        let total = plan.len();
        // Servers with `strict` grant nothing at first, during a cool-down. A fault before the
        // first grant would put no lock at risk.
        let timeout = as_nanos(self.ttl * 4 + Duration::from_secs(5));
        run_state.set_activity("waiting for the first grant");
        wait_until(run_state, progress, |state| state.grants > 0 || state.ticks > 0 || state.elapsed >= timeout).await;
        let first = run_state.now();
        let fraction = |state: &Progress| run_fraction(run.length, first, state);
        let mut number = 0;
        for planned in plan {
            // How many random numbers a fault uses depends on timing, which must not change the
            // next fault.
            let mut rng = rng.fork(&format!("fault {}", number + 1));
            run_state.set_activity(&format!("waiting for fault {} of {total}: {}", number + 1, planned.kind));
            wait_until(run_state, progress, |state| fraction(state) >= planned.starts_at).await;
            // Faults do not overlap, so no time may be left for some; the report lists those.
            if matches!(run.length, RunLength::ForDuration(_)) && fraction(&run_state.progress()) > LAST_FAULT_FRACTION
            {
                break;
            }
            if self.options.control.is_some_and(NegativeControl::starts_faults_at_a_grant) {
                let (before, give_up) = (run_state.progress().grants, run_state.now() + as_nanos(self.ttl * 2));
                wait_until(run_state, progress, |state| state.grants > before || state.elapsed >= give_up).await;
            } else if assignment.has_constant_hold {
                // With equally long holds, calls come in bursts. The fault should begin between
                // them.
                tokio::time::sleep(rng.duration_in(self.ttl / 10, self.ttl * 4 / 10)).await;
            }
            number += 1;
            run_state.set_activity(&format!("fault {number} of {total}: {}", planned.kind));
            progress(&run_state.progress());
            self.inject(number, planned, run_state, workers, assignment, &mut rng).await?;
            run_state.count_finished_fault();
        }
        run_state.set_activity("no more faults");
        // Some work after the last fault shows that the engine has recovered.
        let (after, since) = (run_state.progress().calls, run_state.now());
        let more = match run.length {
            RunLength::Calls(calls) if total > 0 => after + calls / 5,
            RunLength::ForDuration(_) if total > 0 && run.workload == Workload::Ticks => after + TICKS_AFTER_LAST_FAULT,
            RunLength::ForDuration(_) if total > 0 => after + CALLS_AFTER_LAST_FAULT,
            _ => after,
        };
        let timeout = match run.length {
            RunLength::Calls(_) => timeout,
            RunLength::ForDuration(_) => as_nanos(self.ttl * 2 + Duration::from_secs(3)),
        };
        wait_until(run_state, progress, |state| {
            fraction(state) >= 1.0 && (state.calls >= more || state.elapsed.saturating_sub(since) >= timeout)
        })
        .await;
        Ok(())
    }

    /// Causes one fault, from its beginning to its end.
    async fn inject(
        &mut self,
        number: u32,
        planned: PlannedFault,
        run_state: &RunState,
        workers: &mut Workers,
        assignment: &Assignment,
        rng: &mut Rng,
    ) -> Result<(), RunError> {
        match planned.kind {
            FaultKind::Kill | FaultKind::Stop => {
                self.inject_holder_fault(number, planned.kind, run_state, workers, assignment, rng).await
            }
            kind if self.options.control.is_some_and(|control| control.redirects_fault_to_workers(kind)) => {
                self.set_back_workers_clock(number, run_state).await
            }
            kind => {
                let stopped = match self.options.control {
                    Some(control) if control.stops_holders() => self.stop_all_holders(run_state, workers).await,
                    // Every other time, a majority loses its data, as in the negative control, and
                    // a holder is stopped meanwhile.
                    None if kind == FaultKind::Wipe
                        && rng.fork("wide").one_in(2)
                        && self.deployment.hit_majority_next(kind) =>
                    {
                        vec![self.stop_random_holder(run_state, workers, rng).await?.0]
                    }
                    // While a holder is stopped, others acquire the lock on which it still relies.
                    _ if kind == FaultKind::Ahead && rng.in_range(0, 1) == 0 => {
                        vec![self.stop_random_holder(run_state, workers, rng).await?.0]
                    }
                    _ => Vec::new(),
                };
                self.inject_server_fault(number, kind, &stopped, run_state, rng).await?;
                for worker in stopped {
                    workers.resume(worker).await;
                }
                Ok(())
            }
        }
    }

    /// Causes a fault of the servers or the network. `stopped` are the workers that are stopped
    /// meanwhile.
    async fn inject_server_fault(
        &mut self,
        number: u32,
        kind: FaultKind,
        stopped: &[WorkerId],
        run_state: &RunState,
        rng: &mut Rng,
    ) -> Result<(), RunError> {
        let t = run_state.now();
        let begins = |target, served, spares| {
            let workers = Vec::new();
            Event::FaultBegin { t, fault: number, kind, target, workers, served, spares }
        };
        run_state.record(begins(String::new(), None, Vec::new()));
        let before = self.deployment.connections();
        let mut active_fault = self.deployment.begin_fault(kind, rng).await?;
        for worker in stopped {
            let _ = write!(active_fault.target, ", while worker {worker} is stopped");
        }
        if kind == FaultKind::Clock
            && let Some(clock) = &self.workers_clock
        {
            // Workers must not depend on the wall clock, whether it jumps ahead or back.
            let ahead = rng.fork("workers").one_in(2);
            clock.set_offset(if ahead { CLOCK_JUMP_SECONDS } else { -CLOCK_JUMP_SECONDS })?;
            let _ = write!(active_fault.target, ", and the workers' an hour {}", if ahead { "ahead" } else { "back" });
        }
        run_state.record(begins(active_fault.target.clone(), None, active_fault.unaffected_locks.clone()));
        let over = tokio::time::Instant::now() + active_fault.duration;
        if active_fault.others_can_serve {
            // If a server is to be replaced, the fault ends only after that.
            let replaced = matches!(kind, FaultKind::Failover | FaultKind::Clock);
            let bound = if replaced { FAILOVER_TIMEOUT } else { active_fault.duration };
            if tokio::time::timeout(bound, self.deployment.wait_for_others_to_serve(kind)).await.is_ok() {
                run_state.record(begins(active_fault.target, Some(run_state.now()), active_fault.unaffected_locks));
            }
        }
        tokio::time::sleep_until(over).await;
        let after = self.deployment.connections();
        let connections = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        let note = self.deployment.end_fault(kind).await?;
        if let Some(clock) = &self.workers_clock {
            clock.set_offset(0)?;
        }
        run_state.record(Event::FaultEnd { t: run_state.now(), fault: number, note, connections });
        if !stopped.is_empty() {
            // Time for other workers to acquire the lock, before the stopped holders continue.
            tokio::time::sleep(self.ttl / 2).await;
        }
        Ok(())
    }

    /// Waits until a worker holds a lock, then stops all holders; returns the stopped workers.
    async fn stop_all_holders(&self, run_state: &RunState, workers: &Workers) -> Vec<WorkerId> {
        let give_up = run_state.now() + as_nanos(self.ttl * 2);
        while run_state.holders().is_empty() && run_state.now() < give_up {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let mut stopped = Vec::new();
        for worker in run_state.holders() {
            if workers.stop(worker).await {
                stopped.push(worker);
            }
        }
        stopped
    }

    /// Kills a random holder's process and starts another one, or stops it for longer than its TTL.
    async fn inject_holder_fault(
        &self,
        number: u32,
        kind: FaultKind,
        run_state: &RunState,
        all_workers: &mut Workers,
        assignment: &Assignment,
        rng: &mut Rng,
    ) -> Result<(), RunError> {
        let (worker, t) = self.stop_random_holder(run_state, all_workers, rng).await?;
        let process = all_workers.workers_in_same_process(worker);
        let workers: Vec<WorkerId> = process.iter().map(|(worker, _)| *worker).collect();
        let lanes: Vec<u32> = process.iter().map(|(_, lane)| *lane).collect();
        let target = match lanes.as_slice() {
            [lane] => format!("worker {worker} on lane {lane}"),
            _ => "the process with all workers".to_owned(),
        };
        run_state.record(Event::FaultBegin {
            t,
            fault: number,
            kind,
            target,
            workers,
            served: None,
            spares: Vec::new(),
        });
        if kind == FaultKind::Kill {
            // On a busy machine the process may need a while to end.
            all_workers.kill(worker).await;
            run_state.record(Event::FaultEnd {
                t: run_state.now(),
                fault: number,
                note: String::new(),
                connections: None,
            });
            all_workers.start(assignment, &[lanes]).await?;
        } else {
            let least = as_nanos(self.ttl) * 5 / 4;
            let stopped = Duration::from_nanos(rng.in_range(least, least + as_nanos(self.ttl) / 2));
            tokio::time::sleep(stopped).await;
            all_workers.resume(worker).await;
            run_state.record(Event::FaultEnd {
                t: run_state.now(),
                fault: number,
                note: String::new(),
                connections: None,
            });
        }
        Ok(())
    }

    /// Stops a random worker while it holds a lock; returns the worker and when it was stopped. If
    /// its last events show that it had just released, it is resumed, and another worker is tried.
    async fn stop_random_holder(
        &self,
        run_state: &RunState,
        workers: &Workers,
        rng: &Rng,
    ) -> Result<(WorkerId, RunNanos), RunError> {
        // How many random numbers are used here depends on timing, so they come from another
        // generator.
        let mut rng = rng.fork("catch");
        let give_up = run_state.now() + as_nanos(self.ttl * 2 + Duration::from_secs(2));
        loop {
            let late = run_state.now() >= give_up;
            let holders = run_state.holders();
            // If no worker has held a lock for long enough to be caught, any worker will do.
            let candidates = if late && holders.is_empty() { run_state.workers() } else { holders };
            let Some(worker) = random_worker(&candidates, &mut rng) else {
                if late {
                    return Err(RunError::worker("no worker is running"));
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
                continue;
            };
            let t = run_state.now();
            if workers.stop(worker).await {
                if late || run_state.holders().contains(&worker) {
                    return Ok((worker, t));
                }
                workers.resume(worker).await;
            } else {
                // The worker has ended; its error is reported at the end of the run.
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Causes the fault `clock` on the workers' wall clocks instead of the servers'.
    async fn set_back_workers_clock(&self, number: u32, run_state: &RunState) -> Result<(), RunError> {
        let Some(clock) = &self.workers_clock else { return Ok(()) };
        let t = run_state.now();
        clock.set_offset(-CLOCK_JUMP_SECONDS)?;
        let target = "the workers' wall clocks, an hour back".to_owned();
        let (kind, workers) = (FaultKind::Clock, Vec::new());
        run_state.record(Event::FaultBegin {
            t,
            fault: number,
            kind,
            target,
            workers,
            served: None,
            spares: Vec::new(),
        });
        tokio::time::sleep(self.ttl * 3).await;
        clock.set_offset(0)?;
        run_state.record(Event::FaultEnd { t: run_state.now(), fault: number, note: String::new(), connections: None });
        Ok(())
    }
}

/// The elapsed fraction of a run; 1 or more: it may end. Its time counts from `started_at` on.
fn run_fraction(length: RunLength, started_at: RunNanos, state: &Progress) -> f64 {
    let elapsed = state.elapsed.saturating_sub(started_at) as f64;
    match length {
        RunLength::Calls(calls) => {
            let worked = state.calls as f64 / calls.max(1) as f64;
            let longest = MAX_RUN_TIME.max(MAX_TIME_PER_CALL.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX)));
            worked.max(elapsed / as_nanos(longest) as f64)
        }
        RunLength::ForDuration(time) => elapsed / as_nanos(time).max(1) as f64,
    }
}

/// Waits until `is_done` returns true for the run's progress, which is reported to `progress`
/// meanwhile.
async fn wait_until(run_state: &RunState, progress: &mut impl FnMut(&Progress), is_done: impl Fn(&Progress) -> bool) {
    loop {
        let state = run_state.progress();
        if is_done(&state) {
            return;
        }
        progress(&state);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
