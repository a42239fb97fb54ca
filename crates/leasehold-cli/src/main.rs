//! The command `leasehold`: runs a command under a lock, lists holders and waiters, and forces a
//! holder to release.
//!
//! `args` is the command line. `run` is the main command, `cron` runs jobs on a schedule, and
//! `verify` tests the guarantees. `show`, `evict`, `doctor`, `engines` and `shell` are the others.
//! All of them use only the library's public interface.

mod args;
mod cron;
mod doctor;
mod engine_url;
mod engines;
mod evict;
mod run;
mod shell;
mod show;
mod verify;
mod view;

use std::process::ExitCode;

use leasehold_command::{duration, exit, output, start};

use crate::args::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::WARDEN) {
        return run::warden_main();
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(start::usage(&error)),
    };
    start::log_to_stderr();
    start::finish(cli.and_then(|cli| dispatch(cli.command)))
}

fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(options) => block_on(run::run(*options)),
        Command::Cron(options) => block_on(cron::cron(*options)),
        Command::Ls(options) => block_on(show::list(options)),
        Command::Show(options) => block_on(show::show(options)),
        Command::Evict(options) => block_on(evict::evict(options)),
        Command::Doctor(options) => block_on(doctor::doctor(options)),
        Command::Verify(options) => verify::verify(&options),
        Command::Engines(options) => engines::engines(&options),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man(dir.as_deref()),
    }
}

/// Everything runs on this one thread: the command's parent-death signal fires when the thread that
/// started it dies.
fn block_on<F: Future<Output = Result<u8, Failure>>>(work: F) -> Result<u8, Failure> {
    start::block_on(tokio::runtime::Builder::new_current_thread().enable_all().build(), work)
}
