//! The command `leasehold-verify`, which `leasehold verify` starts. Each worker process runs this
//! program again.

mod command;
mod ttl;

use std::process::ExitCode;

use clap::Parser;
use leasehold_command::{output, startup};
use leasehold_verify::worker;

use crate::command::VerifyArgs;

#[derive(Debug, Parser)]
#[command(name = "leasehold-verify", bin_name = "leasehold verify", version)]
struct Cli {
    #[command(flatten)]
    verify: VerifyArgs,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == worker::WORKER_ARGUMENT) {
        return worker_main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(startup::print_usage_error(&error)),
    };
    cli.verify.protect_password();
    startup::log_to_stderr();
    // Two threads: one reads the workers' events while the other causes faults.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    startup::report_result(startup::block_on(runtime, command::run_verify(cli.verify)))
}

/// Runs this process as a worker; its error message goes to standard error.
fn worker_main() -> ExitCode {
    match worker::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            output::print_message(&problem);
            ExitCode::FAILURE
        }
    }
}
