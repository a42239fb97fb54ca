//! Start-up and exit of a command: its log, its runtime, and its usage errors.

use std::io;
use std::process::ExitCode;

use tokio::runtime::Runtime;

use crate::exit::{self, Failure};
use crate::output;

/// Runs `work` on `runtime` until it completes, and returns its exit code.
///
/// # Errors
/// If the runtime cannot be started, or `work` fails.
pub fn block_on<F: Future<Output = Result<u8, Failure>>>(runtime: io::Result<Runtime>, work: F) -> Result<u8, Failure> {
    let runtime = runtime.map_err(|error| Failure::system("cannot start the async runtime", error))?;
    let result = runtime.block_on(work);
    // A blocking call that hangs must not keep the process alive.
    runtime.shutdown_background();
    result
}

/// Prints the message of a failed command; returns the exit code of the process.
pub fn report_result(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // Leasehold's own usage messages may have several lines; foreign text is always printed
            // as one line.
            match failure.kind {
                "usage" => output::print_message_lines(&failure.message),
                _ if failure.message.is_empty() => {}
                _ => output::print_message(&failure.message),
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints what the parser of the command line returned in place of options: help or version on
/// standard output, a usage error on standard error with passwords hidden. Returns the exit code.
pub fn print_usage_error(error: &clap::Error) -> u8 {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = |terminal: bool| {
        let text = error.render();
        if terminal && colours { text.ansi().to_string() } else { text.to_string() }
    };
    if error.use_stderr() {
        // Typed arguments may contain a password; the help text contains only examples.
        output::write_stderr(&output::hide_passwords(&text(rustix::termios::isatty(io::stderr()))));
        return exit::USAGE;
    }
    match output::write_stdout(&text(rustix::termios::isatty(io::stdout()))) {
        Ok(()) => 0,
        Err(failure) => failure.code,
    }
}

/// Starts logging to standard error at the level of `LEASEHOLD_LOG`: `warn`, `debug`,
/// `leasehold=trace`, …; `error` if it is unset.
pub fn log_to_stderr() {
    let wanted = std::env::var("LEASEHOLD_LOG").unwrap_or_else(|_| "error".to_owned());
    match tracing_subscriber::EnvFilter::try_new(&wanted) {
        Ok(filter) => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(false)
            .log_internal_errors(false)
            .init(),
        Err(error) => output::print_message(&format!("LEASEHOLD_LOG cannot be parsed: {error}")),
    }
}
