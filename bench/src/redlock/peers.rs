//! Other libraries' Redlocks: processes that run a given number of cycles, so that they take part
//! in every round.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::NODE_COUNT;
use super::cycle::RoundTimes;
use super::nodes::BenchNodes;
use crate::redis::BoxError;
use crate::redis::peers::{PeerPrograms, run_command};

/// The files that npm needs for a reproducible installation.
const PACKAGE_FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// The peers' programs, built and installed.
pub(crate) struct PeerInstallations {
    peers: PeerPrograms,
    /// The folder of the npm installation.
    node_folder: PathBuf,
}

/// A running peer.
pub(crate) struct PeerProcess {
    pub(crate) name: &'static str,
    /// Whether the peer sends bare `SET` commands; otherwise a script calls `SET`.
    pub(crate) sends_set: bool,
    pub(crate) program: CycleProcess,
}

impl PeerInstallations {
    /// Builds and installs the peers of the Redis bench, and the Node.js package in a folder beside
    /// them.
    pub(crate) fn build() -> Result<Self, BoxError> {
        let peers = PeerPrograms::build()?;
        let node = peers.target.join("redlock_node");
        std::fs::create_dir_all(&node)?;
        for file in PACKAGE_FILES {
            std::fs::copy(peers.source.join("redlock_node").join(file), node.join(file))?;
        }
        run_command(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(&node))?;
        Ok(Self { peers, node_folder: node })
    }

    /// Starts all peers on these nodes.
    pub(crate) fn start(&self, nodes: &BenchNodes) -> Result<Vec<PeerProcess>, BoxError> {
        let urls = nodes.urls(NODE_COUNT);
        let source = &self.peers.source;
        let mut rslock = Command::new(&self.peers.rust);
        rslock.args([&urls.join(","), "rslock", "cycles"]);
        let mut node = Command::new("node");
        node.arg(source.join("redlock_node/cycle.mjs")).args(&urls).current_dir(&self.node_folder);
        let mut pottery = Command::new(&self.peers.python);
        pottery.arg(source.join("redlock_py.py")).args(&urls);
        let peer = |name, sets, command| {
            Ok::<_, BoxError>(PeerProcess { name, sends_set: sets, program: CycleProcess::start(command)? })
        };
        Ok(vec![
            peer("rslock 0.10.0 (Rust)", true, rslock)?,
            peer("redlock 5.0.0-beta.2, ioredis 5.11.1 (Node)", false, node)?,
            peer("pottery 3.0.1, redis-py 8.1.0 (Python)", true, pottery)?,
        ])
    }
}

/// A process that runs cycles.
pub(crate) struct CycleProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl CycleProcess {
    fn start(mut command: Command) -> Result<Self, BoxError> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
        let input = child.stdin.take().ok_or("a peer without stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("a peer without stdout")?);
        Ok(Self { child, input, output })
    }

    /// Makes the process run this many cycles, and returns their times.
    pub(crate) fn run_cycles(&mut self, count: u32) -> Result<RoundTimes, BoxError> {
        writeln!(self.input, "{count}")?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("a peer ended: {}", self.child.wait()?).into());
        }
        let reply: Value = serde_json::from_str(&line)?;
        let time = |what: &str| {
            reply[what].as_u64().map(Duration::from_nanos).ok_or(format!("unexpected output of a peer: {line}"))
        };
        Ok(RoundTimes { p50: time("p50_ns")?, total: time("total_ns")?, client_cpu: time("cpu_ns")? })
    }
}

impl Drop for CycleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
