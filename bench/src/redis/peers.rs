//! Other libraries' locks under the same loads, on the same server, in the same run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::Oops;
use super::server::{Bench, Calls};
use crate::report::Report;

/// The figures of one lock; `None` for what it cannot do.
pub(crate) struct Figures {
    name: String,
    /// The text for a missing figure.
    missing: &'static str,
    /// One task acquires and releases: the median.
    pub(crate) one: Option<Duration>,
    /// 64 tasks on 64 locks: cycles per second.
    pub(crate) many: Option<f64>,
    /// 64 tasks on one lock: hand-offs per second.
    pub(crate) turns: Option<f64>,
    /// The commands sent for one hand-off.
    pub(crate) sent: Option<f64>,
    /// The most served task over the least served one; infinite if a task was not served at all.
    pub(crate) spread: Option<f64>,
    /// From release to grant: the median.
    pub(crate) handover: Option<Duration>,
}

impl Figures {
    /// Figures of a lock: a missing one is something that it cannot do.
    pub(crate) fn of_locks(name: &str) -> Self {
        Self::new(name, "no")
    }

    /// Figures of the floor: a missing one has no meaning there.
    pub(crate) fn of_floor() -> Self {
        Self::new("the floor", "-")
    }

    fn new(name: &str, missing: &'static str) -> Self {
        let name = name.to_owned();
        Self { name, missing, one: None, many: None, turns: None, sent: None, spread: None, handover: None }
    }

    fn cells(&self) -> [String; 7] {
        let time = |value: Option<Duration>| value.map_or_else(|| self.missing.into(), |value| format!("{value:.1?}"));
        let number =
            |value: Option<f64>, digits| value.map_or_else(|| self.missing.into(), |value| format!("{value:.digits$}"));
        [
            self.name.clone(),
            time(self.one),
            number(self.many, 0),
            number(self.turns, 0),
            number(self.sent, 1),
            number(self.spread, 2),
            time(self.handover),
        ]
    }
}

const HEAD: [&str; 7] =
    ["", "take, give back", "64 on 64, /s", "64 on 1, /s", "sent each", "most / least", "given to taken"];

/// Adds the table of all locks.
pub(crate) fn table(report: &mut Report, all: &[Figures]) {
    let row = |cells: [String; 7]| {
        let [name, rest @ ..] = cells;
        rest.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>15}"))
    };
    report.say(&row(HEAD.map(str::to_owned)));
    for one in all {
        report.say(&row(one.cells()));
        report.add(json!({
            "what": "redis: the same loads", "lock": one.name,
            "take_and_give_back_ns": one.one.map(|time| time.as_nanos() as u64), "64_on_64_per_second": one.many,
            "64_on_1_per_second": one.turns, "sent_per_hand_off": one.sent,
            "most_over_least": one.spread.map(|spread| if spread.is_finite() { json!(spread) } else { json!("infinite") }),
            "given_to_taken_ns": one.handover.map(|time| time.as_nanos() as u64),
        }));
    }
}

/// The programs that run the loads.
pub(crate) struct Peers {
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

impl Peers {
    /// Builds the Rust peers with cargo, and installs the Python peers in a virtual environment,
    /// both in the target folder.
    pub(crate) fn build() -> Result<Self, Oops> {
        let (source, target) = places()?;
        let rust = build_rust()?;
        let (venv, wanted) = (target.join("venv"), source.join("requirements.txt"));
        done(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let python = venv.join("bin/python");
        done(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&wanted))?;
        let script = source.join("redis_py.py");
        Ok(Self { rust, python, script, source, target })
    }

    /// Runs every load on every peer.
    pub(crate) async fn measure(&self, bench: &mut Bench) -> Result<Vec<Figures>, Oops> {
        let mut all = Vec::new();
        for (name, rust) in PEERS {
            let mut figures = Figures::of_locks(name);
            let time = |said: &Value| said["p50_ns"].as_u64().map(Duration::from_nanos);
            figures.one = time(&self.load(bench, rust, "one").await?.0);
            figures.many = self.load(bench, rust, "many").await?.0["per_second"].as_f64();
            let (said, calls) = self.load(bench, rust, "turns").await?;
            figures.turns = said["per_second"].as_f64();
            figures.sent = said["hand_offs"].as_f64().map(|hand_offs| calls.sent() as f64 / hand_offs);
            let most = said["most"].as_f64();
            figures.spread = most.and_then(|most| Some(most / said["least"].as_f64()?));
            figures.handover = time(&self.load(bench, rust, "handover").await?.0);
            all.push(figures);
        }
        Ok(all)
    }

    /// Runs one load in a separate process; returns its output, and the commands that the server
    /// received meanwhile.
    async fn load(&self, bench: &mut Bench, rust: Option<&str>, load: &str) -> Result<(Value, Calls), Oops> {
        let mut command = match rust {
            Some(_) => Command::new(&self.rust),
            None => Command::new(&self.python),
        };
        match rust {
            Some(peer) => command.args([&bench.url(), peer]),
            None => command.arg(&self.script).arg(bench.url()),
        };
        let before = bench.calls().await?;
        let said = command.args([load, if bench.scale > 1 { "1" } else { "4" }]).stderr(Stdio::inherit()).output()?;
        let calls = bench.calls().await?.since(&before);
        if !said.status.success() {
            return Err(format!("{command:?}: {}", said.status).into());
        }
        Ok((serde_json::from_slice(&said.stdout)?, calls))
    }
}

/// The folder of all their sources, and the folder in which they are built.
fn places() -> Result<(PathBuf, PathBuf), Oops> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("the bench is in no target folder")?.join("bench-peers");
    Ok((source, target))
}

/// Builds the Rust peers with cargo, in the target folder.
pub(crate) fn build_rust() -> Result<PathBuf, Oops> {
    let (source, target) = places()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(source.join("Cargo.toml"));
    done(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release/leasehold-bench-peers"))
}

/// Runs a command with its output on stderr.
pub(crate) fn done(command: &mut Command) -> Result<(), Oops> {
    let status = command.stdout(std::io::stderr()).status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
