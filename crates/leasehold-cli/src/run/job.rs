//! The command of a scheduled job, run for one tick.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Locks, schedule};

use super::child::Status;
use super::held::Ancestors;
use super::plan::Plan;
use super::report::Report;
use super::signals::{Orders, Signals};
use super::{Run, command};
use crate::engine_url::ForCommand;
use crate::exit::{self, Failure};

/// How long after its end an unrenewed lease is certainly reported as lost.
const AFTER_THE_END: Duration = Duration::from_millis(500);

/// What runs for each tick of a job.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) plan: Arc<Plan>,
    pub(crate) locks: Locks,
    /// How the command finds the engine.
    pub(crate) engine: ForCommand,
    pub(crate) report: Report,
    /// Signals to send to the command; without orders, the signals that we receive.
    pub(crate) orders: Option<Orders>,
}

/// How a command failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) code: u8,
    text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Task {
    /// Runs the command, and ends it before its lock is lost.
    pub(crate) async fn perform(&self, run: schedule::Run) -> Result<(), Failed> {
        let system = |error: io::Error| Failure::system("cannot listen to signals", error);
        let signals = match &self.orders {
            Some(orders) => Signals::obey(orders.clone()),
            None => Signals::listen(),
        };
        let mut signals = signals.map_err(system)?;
        let tick = [
            ("LEASEHOLD_JOB", run.job().to_owned()),
            ("LEASEHOLD_TICK", run.tick().to_string()),
            ("LEASEHOLD_ATTEMPT", run.attempt().to_string()),
        ];
        let plan = Plan::clone(&self.plan).with_env(tick);
        let (engine, around) = (self.engine.clone(), Ancestors::read());
        let this = Run { plan: &plan, locks: &self.locks, around, owner: None, engine, report: &self.report };
        let end = command(&this, run.guard(), &mut signals).await?;
        let code = end.status.code();
        if end.lost && run.guard().is_release_requested() && run.guard().is_held() {
            run.interrupted();
            return Err(Failed {
                code,
                text: "ended, because an operator asked for the release of its lock".to_owned(),
            });
        }
        if end.lost {
            // The command ended before its lock: wait until the lease is over to learn whether and
            // why the lock is lost.
            let (guard, clock) = (run.guard(), self.locks.clock());
            tokio::select! {
                _ = guard.lost() => {}
                () = clock.sleep_until(guard.deadline().max(clock.now()).after(AFTER_THE_END)) => {}
            }
            run.interrupted();
            return Err(Failed { code, text: "ended, because its lock was about to be lost".to_owned() });
        }
        if end.asked_to_end && self.orders.is_some() {
            // We ended the command, whatever its exit status: how far it came is unknown.
            run.interrupted();
            return Err(Failed { code, text: "ended, because its host was told to stop".to_owned() });
        }
        match end.status {
            Status::Exited(0) => Ok(()),
            Status::Exited(code) => Err(Failed { code, text: format!("exit code {code}") }),
            Status::Signalled(number) => Err(Failed { code, text: format!("signal {number}") }),
        }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let code = if failure.code == 0 { exit::SYSTEM } else { failure.code };
        Self { code, text: failure.message }
    }
}
