//! `leasehold cron`: every host of a fleet runs the same schedule, and one host runs each tick.
//!
//! `crontab` and `toml_format` parse the two forms of a file into `job_spec`s, and `daemon` runs them.
//! `status`, `control` and `check` are for operators. `log` prints events as lines for people or
//! JSON for programs. `presence` makes hosts visible to each other.

mod args;
mod check;
mod control;
mod crontab;
mod daemon;
mod health;
mod job_spec;
pub(crate) mod log;
pub(crate) mod policy;
mod presence;
mod schedule_file;
mod status;
mod toml_format;

pub(crate) use self::args::CronArgs;
use self::args::CronCommand;
use crate::exit::Failure;

/// Runs the scheduler, or one of the subcommands of `leasehold cron`; returns the exit code.
pub(crate) async fn run_cron(args: CronArgs) -> Result<u8, Failure> {
    match args.command {
        None => daemon::run(args.daemon).await,
        Some(CronCommand::Check(args)) => check::check(&args),
        Some(CronCommand::Status(args)) => status::show_status(args).await,
        Some(CronCommand::History(args)) => status::show_history(args).await,
        Some(CronCommand::Pause(args)) => control::run_control(control::ControlAction::Pause, args).await,
        Some(CronCommand::Resume(args)) => control::run_control(control::ControlAction::Resume, args).await,
        Some(CronCommand::RunNow(args)) => control::run_control(control::ControlAction::RunNow, args).await,
        Some(CronCommand::Reset(args)) => control::run_control(control::ControlAction::Reset, args).await,
        Some(CronCommand::Forget(args)) => control::run_control(control::ControlAction::Forget, args).await,
    }
}
