//! The command of a job, run for a tick.

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

/// How long after its end a lease that was not renewed is known to be lost.
const AFTER_THE_END: Duration = Duration::from_millis(500);

/// What is run for each tick of a job.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) plan: Arc<Plan>,
    pub(crate) locks: Locks,
    /// How the command finds the engine.
    pub(crate) engine: ForCommand,
    pub(crate) report: Report,
    /// What is sent to the command; if nobody gives orders, what we are sent ourselves.
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
    /// Runs the command, and ends it before the lock does.
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
            // It was ended before the lock: whether and why that is lost is known when its time is over.
            let (guard, clock) = (run.guard(), self.locks.clock());
            tokio::select! {
                _ = guard.lost() => {}
                () = clock.sleep_until(guard.deadline().max(clock.now()).after(AFTER_THE_END)) => {}
            }
            run.interrupted();
            return Err(Failed { code, text: "ended, because its lock was about to be lost".to_owned() });
        }
        if end.asked_to_end && self.orders.is_some() {
            // We did that, not the command, whatever it made of it: nobody knows how far it came.
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
