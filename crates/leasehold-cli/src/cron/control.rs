//! The commands that control jobs: pause, resume, run now, reset, forget.

use leasehold_schedule::Jobs;

use super::args::ControlArgs;
use crate::exit::Failure;
use crate::output::{self, escape_control_chars};

/// What `leasehold cron pause`, `resume`, `run-now`, `reset` or `forget` does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlAction {
    Pause,
    Resume,
    RunNow,
    Reset,
    Forget,
}

/// What `forget` says of a job that the engine does not know.
const NO_RECORD: &str = "had no record";

/// Applies the action to each job, and prints the results. Returns the exit code.
pub(super) async fn run_control(action: ControlAction, args: ControlArgs) -> Result<u8, Failure> {
    let (locks, url) = args.engine.open_read_only().await?;
    let jobs = Jobs::new(&locks)?;
    let mut code = 0;
    for job in &args.jobs {
        match apply_action(&jobs, action, job).await {
            Ok(NO_RECORD) => output::write_stdout(&format!("{}: {NO_RECORD} on {url}\n", escape_control_chars(job)))?,
            Ok(result) => output::write_stdout(&format!("{}: {result}\n", escape_control_chars(job)))?,
            // After a failure, the other jobs are still handled.
            Err(error) => {
                let failure = Failure::from(error);
                output::print_message(&failure.message);
                code = failure.code;
            }
        }
    }
    locks.close().await?;
    Ok(code)
}

/// Applies the action to one job; returns what to print about it.
async fn apply_action(jobs: &Jobs, action: ControlAction, job: &str) -> leasehold::Result<&'static str> {
    Ok(match action {
        ControlAction::Pause if jobs.pause(job).await? => "paused",
        ControlAction::Pause => "was paused already",
        ControlAction::Resume if jobs.resume(job).await? => "resumed with its next tick",
        ControlAction::Resume => "was not paused",
        ControlAction::RunNow => {
            jobs.run_now(job).await?;
            "runs within ten seconds, if a host is live"
        }
        ControlAction::Reset => {
            jobs.reset(job).await?;
            "schedule restarted"
        }
        ControlAction::Forget if jobs.remove(job).await? => "record deleted",
        ControlAction::Forget => NO_RECORD,
    })
}
