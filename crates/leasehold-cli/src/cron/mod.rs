//! `leasehold cron`: every host of a fleet runs the same schedule, and one host runs each tick.
//!
//! `crontab` and `table` parse the two forms of a file into `spec`s, and `daemon` runs them.
//! `status`, `control` and `check` are for operators. `log` prints events as lines for people or
//! JSON for programs. `presence` makes hosts visible to each other.

mod args;
mod check;
mod control;
mod crontab;
mod daemon;
mod file;
mod health;
pub(crate) mod log;
pub(crate) mod policy;
mod presence;
mod spec;
mod status;
mod table;

pub(crate) use self::args::CronArgs;
use self::args::CronCommand;
use crate::exit::Failure;

/// Runs the scheduler, or one of the subcommands.
pub(crate) async fn cron(args: CronArgs) -> Result<u8, Failure> {
    match args.command {
        None => daemon::run(args.daemon).await,
        Some(CronCommand::Check(args)) => check::check(&args),
        Some(CronCommand::Status(args)) => status::status(args).await,
        Some(CronCommand::History(args)) => status::history(args).await,
        Some(CronCommand::Pause(args)) => control::control(control::What::Pause, args).await,
        Some(CronCommand::Resume(args)) => control::control(control::What::Resume, args).await,
        Some(CronCommand::RunNow(args)) => control::control(control::What::RunNow, args).await,
        Some(CronCommand::Reset(args)) => control::control(control::What::Reset, args).await,
        Some(CronCommand::Forget(args)) => control::control(control::What::Forget, args).await,
    }
}
