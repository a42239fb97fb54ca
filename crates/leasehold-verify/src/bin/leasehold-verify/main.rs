//! The command `leasehold-verify`, which `leasehold verify` starts. Each worker process runs this
//! program again.

mod command;
mod ttl;

use std::process::ExitCode;

use clap::Parser;
use leasehold_command::{output, start};
use leasehold_verify::worker;

use crate::command::VerifyArgs;

#[derive(Debug, Parser)]
#[command(name = "leasehold-verify", bin_name = "leasehold verify", version)]
struct Cli {
    #[command(flatten)]
    verify: VerifyArgs,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == worker::WORKER) {
        return worker_main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(start::usage(&error)),
    };
    cli.verify.protect_password();
    start::log_to_stderr();
    // One thread reads the workers' reports while the other causes faults.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    start::finish(start::block_on(runtime, command::verify(cli.verify)))
}

/// Runs this process as a worker.
fn worker_main() -> ExitCode {
    match worker::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            output::say(&problem);
            ExitCode::FAILURE
        }
    }
}
