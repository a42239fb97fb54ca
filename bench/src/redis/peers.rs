//! Other libraries' locks under the same loads, on the same server, in the same run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::BoxError;
use super::server::{BenchServer, CommandCalls};
use crate::report::Report;

/// The figures of one lock implementation; `None` for a load that it does not support.
pub(crate) struct Figures {
    name: String,
    /// What the table shows for a missing figure.
    missing: &'static str,
    /// One task acquires and releases one lock: the median time.
    pub(crate) single_task: Option<Duration>,
    /// 64 tasks on 64 locks: cycles per second.
    pub(crate) many_tasks: Option<f64>,
    /// 64 tasks on one lock: hand-offs per second.
    pub(crate) hand_offs_per_second: Option<f64>,
    /// The commands sent for one hand-off.
    pub(crate) commands_per_hand_off: Option<f64>,
    /// The most served task over the least served one; infinite if a task was not served at all.
    pub(crate) max_min_ratio: Option<f64>,
    /// The median time from a release until the waiter has the lock.
    pub(crate) hand_off_time: Option<Duration>,
}

impl Figures {
    /// Figures of a lock: a missing one means an unsupported load.
    pub(crate) fn for_locks(name: &str) -> Self {
        Self::new(name, "no")
    }

    /// Figures of the baseline: a missing one does not apply.
    pub(crate) fn for_baseline() -> Self {
        Self::new("the baseline", "-")
    }

    fn new(name: &str, missing: &'static str) -> Self {
        let name = name.to_owned();
        Self {
            name,
            missing,
            single_task: None,
            many_tasks: None,
            hand_offs_per_second: None,
            commands_per_hand_off: None,
            max_min_ratio: None,
            hand_off_time: None,
        }
    }

    fn cells(&self) -> [String; 7] {
        let time = |value: Option<Duration>| value.map_or_else(|| self.missing.into(), |value| format!("{value:.1?}"));
        let number =
            |value: Option<f64>, digits| value.map_or_else(|| self.missing.into(), |value| format!("{value:.digits$}"));
        [
            self.name.clone(),
            time(self.single_task),
            number(self.many_tasks, 0),
            number(self.hand_offs_per_second, 0),
            number(self.commands_per_hand_off, 1),
            number(self.max_min_ratio, 2),
            time(self.hand_off_time),
        ]
    }
}

const HEADER: [&str; 7] =
    ["", "acquire, release", "64 on 64, /s", "64 on 1, /s", "sent each", "most / least", "release to grant"];

/// Adds the table of all locks.
pub(crate) fn report_table(report: &mut Report, all: &[Figures]) {
    let row = |cells: [String; 7]| {
        let [name, rest @ ..] = cells;
        rest.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>15}"))
    };
    report.print_line(&row(HEADER.map(str::to_owned)));
    for one in all {
        report.print_line(&row(one.cells()));
        report.add_json(json!({
            "what": "redis: the same loads", "lock": one.name,
            "take_and_give_back_ns": one.single_task.map(|time| time.as_nanos() as u64), "64_on_64_per_second": one.many_tasks,
            "64_on_1_per_second": one.hand_offs_per_second, "sent_per_hand_off": one.commands_per_hand_off,
            "most_over_least": one.max_min_ratio.map(|spread| if spread.is_finite() { json!(spread) } else { json!("infinite") }),
            "given_to_taken_ns": one.hand_off_time.map(|time| time.as_nanos() as u64),
        }));
    }
}

/// The peers' programs, built and installed.
pub(crate) struct PeerPrograms {
    pub(crate) rust: PathBuf,
    pub(crate) python: PathBuf,
    script: PathBuf,
    /// The folder of all their sources, and the folder in which they are built.
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

/// The peers: our name for each, and the argument that selects it in our program.
const PEERS: [(&str, Option<&str>); 3] =
    [("rslock 0.10.0", Some("rslock")), ("distributed-lock 0.2.0", Some("distributed-lock")), ("redis-py 8.1.0", None)];

impl PeerPrograms {
    /// Builds the Rust peers with cargo, and installs the Python peers in a virtual environment,
    /// both in the target folder.
    pub(crate) fn build() -> Result<Self, BoxError> {
        let (source, target) = source_and_target_folders()?;
        let rust = build_rust()?;
        let (venv, wanted) = (target.join("venv"), source.join("requirements.txt"));
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let python = venv.join("bin/python");
        run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&wanted))?;
        let script = source.join("redis_py.py");
        Ok(Self { rust, python, script, source, target })
    }

    /// Runs every load on every peer.
    pub(crate) async fn measure_all(&self, bench: &mut BenchServer) -> Result<Vec<Figures>, BoxError> {
        let mut all = Vec::new();
        for (name, rust) in PEERS {
            let mut figures = Figures::for_locks(name);
            let time = |output: &Value| output["p50_ns"].as_u64().map(Duration::from_nanos);
            figures.single_task = time(&self.run_load(bench, rust, "one").await?.0);
            figures.many_tasks = self.run_load(bench, rust, "many").await?.0["per_second"].as_f64();
            let (output, calls) = self.run_load(bench, rust, "turns").await?;
            figures.hand_offs_per_second = output["per_second"].as_f64();
            figures.commands_per_hand_off =
                output["hand_offs"].as_f64().map(|hand_offs| calls.sent_count() as f64 / hand_offs);
            let most = output["most"].as_f64();
            figures.max_min_ratio = most.and_then(|most| Some(most / output["least"].as_f64()?));
            figures.hand_off_time = time(&self.run_load(bench, rust, "handover").await?.0);
            all.push(figures);
        }
        Ok(all)
    }

    /// Runs one load in a separate process; returns its output, and the commands that the server
    /// received meanwhile.
    async fn run_load(
        &self,
        bench: &mut BenchServer,
        rust: Option<&str>,
        load: &str,
    ) -> Result<(Value, CommandCalls), BoxError> {
        let mut command = match rust {
            Some(_) => Command::new(&self.rust),
            None => Command::new(&self.python),
        };
        match rust {
            Some(peer) => command.args([&bench.url(), peer]),
            None => command.arg(&self.script).arg(bench.url()),
        };
        let before = bench.command_calls().await?;
        let finished =
            command.args([load, if bench.scale > 1 { "1" } else { "4" }]).stderr(Stdio::inherit()).output()?;
        let calls = bench.command_calls().await?.since(&before);
        if !finished.status.success() {
            return Err(format!("{command:?}: {}", finished.status).into());
        }
        Ok((serde_json::from_slice(&finished.stdout)?, calls))
    }
}

/// The folder of all their sources, and the folder in which they are built.
fn source_and_target_folders() -> Result<(PathBuf, PathBuf), BoxError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("the bench is not in a target folder")?.join("bench-peers");
    Ok((source, target))
}

/// Builds the Rust peers with cargo, in the target folder.
pub(crate) fn build_rust() -> Result<PathBuf, BoxError> {
    let (source, target) = source_and_target_folders()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(source.join("Cargo.toml"));
    run_command(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release/leasehold-bench-peers"))
}

/// Runs a command with its output on stderr.
pub(crate) fn run_command(command: &mut Command) -> Result<(), BoxError> {
    let status = command.stdout(std::io::stderr()).status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
