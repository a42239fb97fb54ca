//! `leasehold verify`: starts the program `leasehold-verify`, which is built and installed
//! separately.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::exit::{self, Failure};

/// The name of the program that `leasehold verify` starts.
const PROGRAM: &str = "leasehold-verify";

/// Test an engine's guarantees under faults, and draw the history
///
/// Starts the program `leasehold-verify`, from this program's folder or from PATH.
/// `leasehold verify --help` prints its help.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct VerifyArgs {
    /// The arguments for `leasehold-verify`: `leasehold verify --local redis --faults kill,stop`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process with `leasehold-verify`; returns only if that fails.
pub(crate) fn exec_verify(options: &VerifyArgs) -> Result<u8, Failure> {
    let error = Command::new(find_program()).args(&options.arguments).exec();
    if error.kind() != io::ErrorKind::NotFound {
        return Err(Failure::system(PROGRAM, error));
    }
    Err(Failure::new(
        exit::UNAVAILABLE,
        "not-installed",
        format!(
            "{PROGRAM} is neither beside this program nor in PATH; install it from the source tree: cargo install --path crates/{PROGRAM}"
        ),
    ))
}

/// The path of `leasehold-verify` in this program's folder; if it is not there, its bare name,
/// which is looked up in PATH.
fn find_program() -> PathBuf {
    let beside = env::current_exe().ok().and_then(|this| Some(this.parent()?.join(PROGRAM)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}
