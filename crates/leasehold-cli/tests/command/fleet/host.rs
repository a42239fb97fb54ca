//! One host of the fleet, and its output.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_testbed::WallClock;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{RunningCommand, TestFolder, wait_for};

/// The hosts' jobs, each second:
/// - one that is retried after a crash and skips no tick;
/// - one that starts each tick at most once;
/// - one whose runs may overlap;
/// - a long one during which a host is killed;
/// - one that is paused and run manually.
///
/// The jobs themselves use the right clock: a fake clock leaves files in the system's shared memory
/// when its process is killed. The kill may end one run of `long`, the restart another, and a slow
/// restart one more: its number of attempts suffices.
pub(crate) const JOBS: &str = "\
CRON_SECONDS=yes
LD_PRELOAD=
all [crash=retry:3 missed=all:1000 overlap=queue]: * * * * * * echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> all.log
once [overlap=queue]: * * * * * * echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> once.log
beside [overlap=allow:3]: * * * * * * echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> beside.log; sleep 2; echo end $LEASEHOLD_TOKEN >> beside.log
long [crash=retry:9 overlap=queue]: */5 * * * * * echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> long.log; sleep 3; echo $LEASEHOLD_TICK >> long.end
hand [overlap=queue]: */2 * * * * * echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> hand.log
";

/// Longer than a host stalls on a busy machine: a host that stalls longer loses its locks, and its
/// runs start again. Much shorter than the grace, within which the locks of a killed host must
/// become free.
const TTL: &str = "10s";

/// A running `leasehold cron` with its own clock.
pub(crate) struct Host {
    process: RunningCommand,
    clock: WallClock,
    log: PathBuf,
}

impl Host {
    /// Starts a host whose clock is wrong by `skew` seconds.
    pub(crate) fn start(place: &TestFolder, url: &str, skew: i64) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let clock = WallClock::new().unwrap();
        clock.set_offset(skew).unwrap();
        let mut command =
            place.command_with_clock(&clock, ["cron", "--engine", url, "--ttl", TTL, "--json", "jobs.cron"]);
        let log = place.path(&format!("host-{:04}.log", STARTED.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::create(&log).unwrap();
        command.stdout(Stdio::null()).stderr(file);
        Self { process: RunningCommand(Some(command.spawn().unwrap())), clock, log }
    }

    /// The time that its clock shows, in seconds since 1970.
    pub(crate) fn clock_seconds(&self) -> i64 {
        let output = Command::new("date").arg("+%s").envs(self.clock.environment()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    /// Waits until the process uses its own clock: the library that fakes the time is loaded.
    pub(crate) fn wait_for_own_clock(&self) {
        let maps = format!("/proc/{}/maps", self.pid());
        wait_for("a host with a clock of its own", || {
            std::fs::read_to_string(&maps).unwrap().contains("libfaketime").then_some(())
        });
    }

    /// Waits until the host takes part in every job, and uses its own clock.
    pub(crate) fn wait_joined(self) -> Self {
        let jobs = JOBS.lines().filter(|line| line.contains("]: ")).count();
        wait_for("a host that takes part", || {
            let output = std::fs::read_to_string(&self.log).unwrap();
            (parse_events(&output).iter().filter(|event| event["event"] == "joined").count() == jobs).then_some(())
        });
        self.wait_for_own_clock();
        self
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid().as_raw_nonzero().get()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Kills the host, and removes what its clock left behind.
    pub(crate) fn kill(self) {
        let pid = self.pid();
        self.process.signal(Signal::KILL);
        drop(self.process);
        // The files that the killed process's clock left in the system's shared memory.
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(name));
        }
    }

    /// Waits for the host's end; returns its exit code.
    pub(crate) fn wait(self) -> i32 {
        self.process.wait().exit_code()
    }
}

/// The events in a log. The last line of a killed host may be incomplete.
pub(crate) fn parse_events(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The logs of all hosts, concatenated.
pub(crate) fn all_logs(place: &TestFolder) -> String {
    let mut logs: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    logs.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("host-")));
    logs.sort();
    logs.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}
