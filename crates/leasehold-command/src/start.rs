//! How a command starts: its log, its runtime, and what it says when the command line is wrong.

use std::io;
use std::process::ExitCode;

use tokio::runtime::Runtime;

use crate::exit::{self, Failure};
use crate::output;

/// Runs `work` to its end on `runtime`.
///
/// # Errors
/// When the runtime cannot be started, or `work` fails.
pub fn block_on<F: Future<Output = Result<u8, Failure>>>(runtime: io::Result<Runtime>, work: F) -> Result<u8, Failure> {
    let runtime = runtime.map_err(|error| Failure::system("cannot start", error))?;
    let result = runtime.block_on(work);
    // A call that still hangs somewhere must not keep the process.
    runtime.shutdown_background();
    result
}

/// The exit code of a command, after saying why it failed.
pub fn finish(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // A usage message of ours may have several lines; text from elsewhere is shown as one, whatever it contains.
            match failure.kind {
                "usage" => output::say_lines(&failure.message),
                _ if failure.message.is_empty() => {}
                _ => output::say(&failure.message),
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints help and version to standard output; a usage error to standard error, without any password that was typed.
pub fn usage(error: &clap::Error) -> u8 {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = |terminal: bool| {
        let text = error.render();
        if terminal && colours { text.ansi().to_string() } else { text.to_string() }
    };
    if error.use_stderr() {
        // Typed arguments may contain a password; the help text contains only examples.
        output::err(&output::hide_passwords(&text(rustix::termios::isatty(io::stderr()))));
        return exit::USAGE;
    }
    match output::out(&text(rustix::termios::isatty(io::stdout()))) {
        Ok(()) => 0,
        Err(failure) => failure.code,
    }
}

/// Logs to standard error what `LEASEHOLD_LOG` asks for: `warn`, `debug`, `leasehold=trace`, …
pub fn log_to_stderr() {
    let wanted = std::env::var("LEASEHOLD_LOG").unwrap_or_else(|_| "error".to_owned());
    match tracing_subscriber::EnvFilter::try_new(&wanted) {
        Ok(filter) => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(false)
            .log_internal_errors(false)
            .init(),
        Err(error) => output::say(&format!("LEASEHOLD_LOG is not understood: {error}")),
    }
}
