//! The command `leasehold`: run a command under a lock, see who holds what, put a holder out.
//!
//! `args` is the command line, `run` the command that matters, `cron` the same by a timetable, `verify` the proof, `show`, `evict`, `doctor`, `engines` and `shell` the others. All
//! of them use nothing but the library's public interface.

mod args;
mod cron;
mod doctor;
mod duration;
mod engines;
mod evict;
mod exit;
mod output;
mod run;
mod shell;
mod show;
mod verify;
mod view;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::WARDEN) {
        return run::warden_main();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == leasehold_verify::worker::WORKER) {
        return verify::worker_main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(usage(&error)),
    };
    log_to_stderr();
    match dispatch(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // Our own words may be several lines; what somebody else said is one, whatever is in it.
            match failure.kind {
                "usage" => output::say_lines(&failure.message),
                _ if failure.message.is_empty() => {}
                _ => output::say(&failure.message),
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(options) => block_on(run::run(*options)),
        Command::Cron(options) => block_on(cron::cron(*options)),
        Command::Ls(options) => block_on(show::list(options)),
        Command::Show(options) => block_on(show::show(options)),
        Command::Evict(options) => block_on(evict::evict(options)),
        Command::Doctor(options) => block_on(doctor::doctor(options)),
        Command::Verify(options) => verify::main(*options),
        Command::Engines(options) => engines::engines(&options),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man(dir.as_deref()),
    }
}

/// All runs on this one thread: it is the thread whose death the command's parent-death signal speaks of.
fn block_on<F: Future<Output = Result<u8, Failure>>>(work: F) -> Result<u8, Failure> {
    finish(tokio::runtime::Builder::new_current_thread().enable_all().build(), work)
}

/// Works to the end on a runtime.
fn finish<F: Future<Output = Result<u8, Failure>>>(
    runtime: io::Result<tokio::runtime::Runtime>,
    work: F,
) -> Result<u8, Failure> {
    let runtime = runtime.map_err(|error| Failure::system("cannot start", error))?;
    let result = runtime.block_on(work);
    // A call that still hangs somewhere must not keep us.
    runtime.shutdown_background();
    result
}

/// Help and version on standard output; a wrong command line on standard error, with our own code, and without the
/// password that may stand in it.
fn usage(error: &clap::Error) -> u8 {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = |terminal: bool| {
        let text = error.render();
        if terminal && colours { text.ansi().to_string() } else { text.to_string() }
    };
    if error.use_stderr() {
        // What was typed may have one; what is in the help is an example.
        output::err(&output::hide_passwords(&text(rustix::termios::isatty(std::io::stderr()))));
        return exit::USAGE;
    }
    match output::out(&text(rustix::termios::isatty(std::io::stdout()))) {
        Ok(()) => 0,
        Err(failure) => failure.code,
    }
}

/// What the library tells of itself, as `LEASEHOLD_LOG` asks for: `warn`, `debug`, `leasehold=trace`, …
fn log_to_stderr() {
    let wanted = std::env::var("LEASEHOLD_LOG").unwrap_or_else(|_| "error".to_owned());
    match tracing_subscriber::EnvFilter::try_new(&wanted) {
        Ok(filter) => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .log_internal_errors(false)
            .init(),
        Err(error) => output::say(&format!("LEASEHOLD_LOG is not understood: {error}")),
    }
}
