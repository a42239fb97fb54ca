//! The command `leasehold`: runs a command under a lock, lists holders and waiters, and forces a
//! holder to release.
//!
//! `args` is the command line. `run` is the main command, `cron` runs jobs on a schedule, and
//! `verify` tests the guarantees. `show`, `evict`, `doctor`, `engines` and `help_files` are the others.
//! All of them use only the library's public interface.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command `leasehold` needs Linux: it supervises other processes through /proc; \
     the library builds on other systems, without `file:`"
);

mod args;
mod cron;
mod doctor;
mod engine_url;
mod engines;
mod evict;
mod help_files;
mod run;
mod show;
mod verify;
mod view;

use std::process::ExitCode;

use leasehold_command::{duration, exit, output, startup};

use crate::args::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::SUPERVISOR_ARGUMENT) {
        return run::supervisor_main();
    }
    let cli = match Cli::parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(startup::print_usage_error(&error)),
    };
    startup::log_to_stderr();
    startup::report_result(cli.and_then(|cli| dispatch(cli.command)))
}

/// Runs the command; returns its exit code.
fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(options) => block_on(run::run(*options)),
        Command::Cron(options) => block_on(cron::run_cron(*options)),
        Command::Ls(options) => block_on(show::list_locks(options)),
        Command::Show(options) => block_on(show::show_lock(options)),
        Command::Evict(options) => block_on(evict::evict(options)),
        Command::Doctor(options) => block_on(doctor::run_doctor(options)),
        Command::Verify(options) => verify::exec_verify(&options),
        Command::Engines(options) => engines::run_engines(&options),
        Command::Completions { shell } => help_files::print_completions(shell),
        Command::Man { dir } => help_files::write_man(dir.as_deref()),
    }
}

/// Runs a command on this one thread, and no other: the command's parent-death signal fires when
/// the thread that started it dies.
fn block_on<F: Future<Output = Result<u8, Failure>>>(work: F) -> Result<u8, Failure> {
    startup::block_on(tokio::runtime::Builder::new_current_thread().enable_all().build(), work)
}
