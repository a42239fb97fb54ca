//! The command of a scheduled job, run for one tick.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold_schedule as schedule;

use super::ancestors::Ancestors;
use super::child::ExitStatus;
use super::plan::Plan;
use super::report::Report;
use super::signals::{SignalOrders, Signals};
use super::{RunContext, run_command};
use crate::engine_url::ChildEngine;
use crate::exit::{self, Failure};

/// This long after its end, a lease that was not renewed is certainly reported as lost.
const LOSS_REPORT_DELAY: Duration = Duration::from_millis(500);

/// What runs for each tick of a job.
#[derive(Clone)]
pub(crate) struct JobTask {
    pub(crate) plan: Arc<Plan>,
    pub(crate) locks: Locks,
    /// How the command finds the engine.
    pub(crate) engine: ChildEngine,
    pub(crate) report: Report,
    /// The signals to send to the command; `None`: those that this process receives.
    pub(crate) signal_orders: Option<SignalOrders>,
}

/// Why the command of a job failed, or could not be run.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    /// The command's exit code, or that of the failure to run it.
    pub(crate) code: u8,
    message: String,
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl JobTask {
    /// Runs the command for one tick, and ends it before its lock is lost.
    pub(crate) async fn run(&self, run: schedule::Run) -> Result<(), CommandFailure> {
        let system = |error: io::Error| Failure::system("cannot listen to signals", error);
        let signals = match &self.signal_orders {
            Some(orders) => Signals::from_orders(orders.clone()),
            None => Signals::listen(),
        };
        let mut signals = signals.map_err(system)?;
        let tick = [
            ("LEASEHOLD_JOB", run.job().to_owned()),
            ("LEASEHOLD_TICK", run.tick().to_string()),
            ("LEASEHOLD_ATTEMPT", run.attempt().to_string()),
        ];
        let plan = Plan::clone(&self.plan).with_env(tick);
        let (engine, ancestors) = (self.engine.clone(), Ancestors::from_env());
        let this = RunContext { plan: &plan, locks: &self.locks, ancestors, owner: None, engine, report: &self.report };
        let end = run_command(&this, run.guard(), &mut signals).await?;
        let code = end.status.exit_code();
        if end.is_lost && run.guard().is_release_requested() && run.guard().is_held() {
            run.mark_interrupted();
            return Err(CommandFailure {
                code,
                message: "ended, because an operator requested the release of its lock".to_owned(),
            });
        }
        if end.is_lost {
            // The command ended before its lock: wait until the lease is over to learn whether and
            // why the lock is lost.
            let (guard, clock) = (run.guard(), self.locks.clock());
            tokio::select! {
                _ = guard.lost() => {}
                () = clock.sleep_until(guard.deadline().max(clock.now()).saturating_add(LOSS_REPORT_DELAY)) => {}
            }
            run.mark_interrupted();
            return Err(CommandFailure { code, message: "ended, because its lock was about to be lost".to_owned() });
        }
        if end.is_end_requested && self.signal_orders.is_some() {
            // This process ended the command, so its exit status does not show how far it came.
            run.mark_interrupted();
            return Err(CommandFailure { code, message: "ended, because its host is shutting down".to_owned() });
        }
        match end.status {
            ExitStatus::Exited(0) => Ok(()),
            ExitStatus::Exited(code) => Err(CommandFailure { code, message: format!("exit code {code}") }),
            ExitStatus::Signalled(number) => Err(CommandFailure { code, message: format!("signal {number}") }),
        }
    }
}

impl From<Failure> for CommandFailure {
    fn from(failure: Failure) -> Self {
        let code = if failure.code == 0 { exit::SYSTEM } else { failure.code };
        Self { code, message: failure.message }
    }
}
