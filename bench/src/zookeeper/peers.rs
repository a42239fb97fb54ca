//! Other libraries' locks: processes whose clients contend for one lock on command.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use leasehold_testbed::zookeeper::classpath;
use serde_json::Value;

use super::contest::Tally;
use super::handoff::WAITERS;
use super::server::Bench;
use crate::redis::peers::done;
use crate::redis::{Oops, TTL};

/// The files that they need, and the Debian package of each.
const NEEDED: [(&str, &str); 4] = [
    ("/usr/bin/javac", "default-jdk-headless"),
    (CURATOR, "libcurator-recipes-java"),
    (PYTHON, "python3"),
    ("/usr/lib/python3/dist-packages/kazoo/client.py", "python3-kazoo"),
];
/// Its manifest names the other jars that it needs.
const CURATOR: &str = "/usr/share/java/curator-recipes.jar";
/// The Python that has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The programs, built.
pub(crate) struct Programs {
    source: PathBuf,
    /// The folder of the Java classes.
    classes: PathBuf,
}

impl Programs {
    /// Compiles the Java program in the target folder.
    pub(crate) fn build() -> Result<Self, Oops> {
        let missing: Vec<&str> =
            NEEDED.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            return Err(
                format!("--peers needs the Debian packages {missing}; as root: apt-get install {missing}").into()
            );
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).ok_or("the bench is in no target folder")?;
        let classes = target.join("bench-peers/curator_java");
        std::fs::create_dir_all(&classes)?;
        let mut compile = Command::new(NEEDED[0].0);
        compile.args(["-Xlint:-path", "-cp", CURATOR, "-d"]).arg(&classes);
        done(compile.arg(source.join("curator_java/Turns.java")))?;
        Ok(Self { source, classes })
    }

    /// Starts all of them, and makes them open their sessions.
    pub(crate) async fn start(&self, bench: &Bench) -> Result<Vec<Program>, Oops> {
        let (waiters, session) = (WAITERS.to_string(), TTL.as_millis().to_string());
        let told = [bench.address(), waiters, session];
        let mut curator = Command::new("java");
        let classpath = format!("{}:{CURATOR}:{}", self.classes.display(), classpath());
        curator.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &classpath, "Turns"]).args(&told);
        let mut kazoo = Command::new(PYTHON);
        kazoo.arg(self.source.join("kazoo_py.py")).args(&told);
        Ok(vec![
            Program::start(bench, "Curator's InterProcessMutex (Java)", curator).await?,
            Program::start(bench, "kazoo's Lock (Python, one GIL)", kazoo).await?,
        ])
    }
}

/// A process, with its clients idle or contending.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) sessions: HashSet<String>,
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Program {
    async fn start(bench: &Bench, name: &'static str, mut command: Command) -> Result<Self, Oops> {
        let before = bench.traffic().await?;
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
        let tell = child.stdin.take().ok_or("a peer without stdin")?;
        let hear = BufReader::new(child.stdout.take().ok_or("a peer without stdout")?);
        let mut program = Self { name, sessions: HashSet::new(), child, tell, hear };
        // It prints its tally when all its clients are connected.
        program.heard()?;
        program.sessions = bench.traffic().await?.new_since(&before);
        match program.sessions.len() {
            WAITERS => Ok(program),
            other => Err(format!("{name} has {other} sessions instead of {WAITERS}").into()),
        }
    }

    fn heard(&mut self) -> Result<Tally, Oops> {
        let mut line = String::new();
        if self.hear.read_line(&mut line)? == 0 {
            return Err(format!("{} ended: {}", self.name, self.child.wait()?).into());
        }
        let said: Value = serde_json::from_str(&line)?;
        let hand_offs = said["hand_offs"].as_u64().ok_or_else(|| format!("{} said {line}", self.name))?;
        Ok(Tally::new(hand_offs))
    }

    fn tell(&mut self, word: &str) -> Result<Tally, Oops> {
        writeln!(self.tell, "{word}")?;
        self.heard()
    }

    /// Makes all its clients contend for the lock.
    pub(crate) fn go(&mut self) -> Result<(), Oops> {
        self.tell("go").map(drop)
    }

    /// The tally so far.
    pub(crate) fn tally(&mut self) -> Result<Tally, Oops> {
        self.tell("tally")
    }

    /// Makes each client acquire the lock once more, and then stop.
    pub(crate) fn stop(&mut self) -> Result<(), Oops> {
        self.tell("stop").map(drop)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
