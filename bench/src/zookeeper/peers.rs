//! Other libraries' locks: processes whose clients contend for one lock on command.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use leasehold_testbed::zookeeper::classpath;
use serde_json::Value;

use super::contention::HandOffCount;
use super::handoff::WAITERS;
use super::server::BenchServer;
use crate::redis::peers::run_command;
use crate::redis::{BoxError, TTL};

/// The files that the peers need, and the Debian package of each.
const REQUIRED_PACKAGES: [(&str, &str); 4] = [
    ("/usr/bin/javac", "default-jdk-headless"),
    (CURATOR, "libcurator-recipes-java"),
    (PYTHON, "python3"),
    ("/usr/lib/python3/dist-packages/kazoo/client.py", "python3-kazoo"),
];
/// Curator's jar, whose manifest names the other jars that it needs.
const CURATOR: &str = "/usr/share/java/curator-recipes.jar";
/// The Python that has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The peers' programs, built.
pub(crate) struct PeerPrograms {
    source: PathBuf,
    /// The folder of the Java classes.
    classes: PathBuf,
}

impl PeerPrograms {
    /// Compiles the Java program in the target folder.
    pub(crate) fn build() -> Result<Self, BoxError> {
        let missing: Vec<&str> = REQUIRED_PACKAGES
            .iter()
            .filter(|(file, _)| !Path::new(file).exists())
            .map(|(_, package)| *package)
            .collect();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            return Err(
                format!("--peers needs the Debian packages {missing}; as root: apt-get install {missing}").into()
            );
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).ok_or("the bench is not in a target folder")?;
        let classes = target.join("bench-peers/curator_java");
        std::fs::create_dir_all(&classes)?;
        let mut compile = Command::new(REQUIRED_PACKAGES[0].0);
        compile.args(["-Xlint:-path", "-cp", CURATOR, "-d"]).arg(&classes);
        run_command(compile.arg(source.join("curator_java/Turns.java")))?;
        Ok(Self { source, classes })
    }

    /// Starts all peers, and makes them open their sessions.
    pub(crate) async fn start(&self, bench: &BenchServer) -> Result<Vec<PeerProcess>, BoxError> {
        let (waiters, session) = (WAITERS.to_string(), TTL.as_millis().to_string());
        let parameters = [bench.address(), waiters, session];
        let mut curator = Command::new("java");
        let classpath = format!("{}:{CURATOR}:{}", self.classes.display(), classpath());
        curator.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &classpath, "Turns"]).args(&parameters);
        let mut kazoo = Command::new(PYTHON);
        kazoo.arg(self.source.join("kazoo_py.py")).args(&parameters);
        Ok(vec![
            PeerProcess::start(bench, "Curator's InterProcessMutex (Java)", curator).await?,
            PeerProcess::start(bench, "kazoo's Lock (Python, one GIL)", kazoo).await?,
        ])
    }
}

/// A process with the clients of one peer, which are idle or contend for the lock.
pub(crate) struct PeerProcess {
    pub(crate) name: &'static str,
    pub(crate) sessions: HashSet<String>,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PeerProcess {
    async fn start(bench: &BenchServer, name: &'static str, mut command: Command) -> Result<Self, BoxError> {
        let before = bench.traffic().await?;
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
        let input = child.stdin.take().ok_or("a peer without stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("a peer without stdout")?);
        let mut program = Self { name, sessions: HashSet::new(), child, input, output };
        // It prints its tally when all its clients are connected.
        program.read_tally()?;
        program.sessions = bench.traffic().await?.new_since(&before);
        match program.sessions.len() {
            WAITERS => Ok(program),
            other => Err(format!("{name} has {other} sessions instead of {WAITERS}").into()),
        }
    }

    fn read_tally(&mut self) -> Result<HandOffCount, BoxError> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("{} ended: {}", self.name, self.child.wait()?).into());
        }
        let tally: Value = serde_json::from_str(&line)?;
        let hand_offs =
            tally["hand_offs"].as_u64().ok_or_else(|| format!("unexpected output of {}: {line}", self.name))?;
        Ok(HandOffCount::new(hand_offs))
    }

    fn send_command(&mut self, word: &str) -> Result<HandOffCount, BoxError> {
        writeln!(self.input, "{word}")?;
        self.read_tally()
    }

    /// Makes all its clients contend for the lock.
    pub(crate) fn start_contending(&mut self) -> Result<(), BoxError> {
        self.send_command("go").map(drop)
    }

    /// How often the lock was handed off among the peer's clients so far.
    pub(crate) fn query_tally(&mut self) -> Result<HandOffCount, BoxError> {
        self.send_command("tally")
    }

    /// Makes each client acquire the lock one last time, and then stop.
    pub(crate) fn stop_contending(&mut self) -> Result<(), BoxError> {
        self.send_command("stop").map(drop)
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
