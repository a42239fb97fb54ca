//! `leasehold cron`: a timetable that every host of a fleet runs, and each tick of which one of them does.
//!
//! `crontab` and `table` read the two forms of a file into `spec`s; `daemon` runs them; `status`, `control` and `check` are for
//! whoever looks on; `log` says what happens, in lines for people or for programs; `presence` shows which hosts are there.

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

/// Runs a timetable, or one of the commands around it.
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
