//! `cargo xtask test` installs what the tests need and runs the checks that every change must pass.
//! `cargo xtask nightly` runs all tests, including the long ones.

mod data_folder;
mod gate;
mod layers;
mod lines;
mod links;
mod nightly;
mod part_runner;
mod programs;
mod repeat;
mod rules;
mod setup;
mod test_filters;
mod versions;
mod wrap;

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};

type TaskResult = Result<(), Box<dyn Error>>;

const HELP: &str = "\
cargo xtask test      the gate: install what the tests need (apt, as root), lint, build, and run what must hold
cargo xtask check     only formatting, lints, layers, links, the width of the pages, tests named in them, and the rule
                      about time
cargo xtask nightly   everything else, in named parts that can be resumed; `nightly --list` shows them
cargo xtask repeat    every part of the gate 20 times beside busy loops, resumable; `repeat 5 redlock` runs
                      those with one of these words in their names five times
cargo xtask setup     only install the packages that the tests need
cargo xtask lines     the lines of each crate, without tests, comments and blank lines
cargo xtask bench     the benches, beside their baselines; `bench redis`, `redlock`, `zookeeper`, `sql`, `cache`;
                      with --peers beside other libraries' locks, with --quick as a short trial
cargo xtask soak      every engine under every fault, 100 histories of 1,000 calls each, and the controls;
                      resumable; `--histories 10` is shorter, `--only redis/failover` one cell";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    match run_task(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("xtask: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_task(task: &str) -> TaskResult {
    let root = workspace_root()?;
    let rest: Vec<String> = std::env::args().skip(2).collect();
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    match task {
        "test" => gate::run_gate(root),
        "check" => gate::run_checks(root),
        "lines" => lines::print_lines(root),
        "setup" => setup::install_for_nightly(),
        "nightly" if words.contains(&"--help") => {
            print_line(nightly::HELP);
            Ok(())
        }
        "nightly" => nightly::run_nightly(root, &rest),
        "repeat" => {
            let times = words.first().map_or(Ok(20), |first| first.parse());
            let times =
                times.map_err(|error| format!("repeat needs a number, such as `cargo xtask repeat 20`: {error}"))?;
            repeat::run_repeatedly(root, times, rest.get(1..).unwrap_or_default())
        }
        "bench" => {
            run_cargo(&[&["run", "--profile", "dist", "--package", "leasehold-bench", "--"], &words[..]].concat())
        }
        "soak" => {
            let data_folder = data_folder::ServerDataFolder::new();
            let mut cargo = cargo_command();
            data_folder.set_tmpdir(&mut cargo);
            run_command(cargo.args(nightly::SOAK_COMMAND).args(words))
        }
        "--help" | "help" => {
            print_line(HELP);
            Ok(())
        }
        _ => Err(format!("there is no task {task:?}\n\n{HELP}").into()),
    }
}

#[allow(clippy::print_stderr, reason = "this is a command")]
fn print_line(line: &str) {
    eprintln!("{line}");
}

fn run_cargo(arguments: &[&str]) -> TaskResult {
    run_command(cargo_command().args(arguments))
}

/// Cargo with the environment of a user's shell. Variables that `cargo run` set for this program
/// would make build scripts, and all crates that depend on them, run again.
fn cargo_command() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    let own = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME", "LD_LIBRARY_PATH"];
    let is_own = |name: &str| own.iter().any(|start| name.starts_with(start));
    for (name, _) in std::env::vars().filter(|(name, _)| is_own(name)) {
        cargo.env_remove(name);
    }
    cargo
}

fn workspace_root() -> Result<&'static Path, Box<dyn Error>> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?)
}

fn run_command(command: &mut Command) -> TaskResult {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy());
    let line = words.collect::<Vec<_>>().join(" ");
    print_line(&format!("==> {line}"));
    let status = command.current_dir(workspace_root()?).status().map_err(|error| format!("{line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}").into()) }
}
