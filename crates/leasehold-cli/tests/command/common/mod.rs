//! Shared by the tests of the command: a private folder, the real binary, and waits with a time
//! limit.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "tests, each of which uses its part")]

pub(crate) mod doctor_report;
pub(crate) mod pty;
pub(crate) mod runs;
pub(crate) mod shared_servers;
pub(crate) mod short_leases;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use leasehold_testbed::WallClock;
use rustix::process::{Pid, Signal};
use serde_json::Value;

pub(crate) const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// The time limit of all waits. Only a failing test waits this long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The TTL of a lease that cannot expire during a test.
pub(crate) const LONG_TTL: &str = "600s";

/// How often a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Copies the program in a separate process. A file that this process writes may stay open in a
/// process that another test starts at that moment. A program that is open for writing cannot be
/// executed.
pub(crate) fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(LEASEHOLD).arg(to).status().unwrap();
    assert!(copied.success(), "cp: {copied}");
}

/// Polls `condition` until it returns a value; panics at the time limit, naming `what` was missing.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..TEST_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis() {
        if let Some(found) = condition() {
            return found;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    panic!("no {what} within {TEST_TIMEOUT:?}");
}

/// The command that starts a program with default signal actions. In the background of a script INT
/// and QUIT are ignored, and the program would inherit that.
pub(crate) const WITH_DEFAULT_SIGNALS: [&str; 2] = ["/usr/bin/env", "--default-signal=INT,QUIT"];

/// A private folder of one test: the working directory of its commands, with their locks in
/// `locks`.
pub(crate) struct TestFolder {
    pub(crate) dir: tempfile::TempDir,
}

impl TestFolder {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// The URL of the folder's own engine.
    pub(crate) fn engine(&self) -> String {
        format!("file://{}/locks", self.dir.path().display())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The contents of a file; empty if it does not exist yet.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `leasehold` with these arguments, in this folder, without inherited variables that would
    /// affect it.
    pub(crate) fn command<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        self.command_via(&WITH_DEFAULT_SIGNALS, args)
    }

    /// `leasehold` with these arguments in this folder, with its own wall clock.
    pub(crate) fn command_with_clock<I: AsRef<OsStr>>(
        &self,
        clock: &WallClock,
        args: impl IntoIterator<Item = I>,
    ) -> Command {
        // The variables are not set for the launcher: it keeps the right time, and leaves no files
        // of a fake clock behind.
        let faked = clock.environment().into_iter().map(|(key, value)| format!("{key}={value}"));
        let before: Vec<String> = WITH_DEFAULT_SIGNALS.map(str::to_owned).into_iter().chain(faked).collect();
        self.command_via(&before, args)
    }

    /// `leasehold` with these arguments in this folder, started by the program and arguments
    /// `launcher`.
    fn command_via<I: AsRef<OsStr>>(
        &self,
        launcher: &[impl AsRef<OsStr>],
        args: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(LEASEHOLD);
        for variable in ["LEASEHOLD_OWNER", "LEASEHOLD_HELD", "LEASEHOLD_NAME", "LEASEHOLD_TOKEN", "LEASEHOLD_LOG"] {
            command.env_remove(variable);
        }
        command.args(args).env("LEASEHOLD_ENGINE", self.engine()).env("L", LEASEHOLD).current_dir(self.dir.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs `leasehold` with these arguments to its end.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> CommandOutput {
        CommandOutput(self.command(args).output().unwrap())
    }

    /// Starts `leasehold` with these arguments. A `run` without a TTL gets one that outlasts the
    /// test.
    pub(crate) fn start<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> RunningCommand {
        let mut args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        if args[0] == "run" && !args.iter().any(|arg| arg == "--ttl") {
            args.splice(1..1, ["--ttl", LONG_TTL].map(OsString::from));
        }
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        RunningCommand(Some(command.spawn().unwrap()))
    }

    /// Starts a run that holds `name`, with these options, until its standard input is closed;
    /// returns when it holds the lock.
    pub(crate) fn start_holder(&self, options: &[&str], name: &str) -> RunningCommand {
        let before = self.holder_count(name);
        let holder = self.start([&["run"], options, &[name, "--", "cat"]].concat());
        wait_for("a holder", || (self.holder_count(name) > before).then_some(()));
        holder
    }

    /// Makes this many processes acquire a lock this many times each, and checks that the holds
    /// never overlap; `options` name the engine.
    pub(crate) fn check_exclusion(&self, processes: usize, times: usize, options: &str) {
        let work = "mkdir busy || echo OVERLAP >> log; echo $LEASEHOLD_TOKEN >> log; sleep 0.01; rmdir busy";
        let turn = format!("\"$L\" run --ttl {LONG_TTL} {options} one -c '{work}' || echo FAILED >> log");
        let script = format!("for i in $(seq {times}); do {turn}; done");
        let all: Vec<_> = (0..processes)
            .map(|_| {
                let mut shell = self.command(["x"]);
                let mut command = Command::new("sh");
                command.args(["-c", &script]).envs(shell.get_envs().filter_map(|(key, value)| Some((key, value?))));
                command.current_dir(shell.current_dir(self.dir.path()).get_current_dir().unwrap());
                command.spawn().unwrap()
            })
            .collect();
        for mut process in all {
            assert!(process.wait().unwrap().success());
        }
        let log = self.read("log");
        let tokens: Vec<u64> = log.lines().map(|line| line.parse().expect(line)).collect();
        assert_eq!(tokens.len(), processes * times, "{log}");
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }

    pub(crate) fn show_json(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(["show", "--json", name]).assert_ok().stdout()).unwrap()
    }

    pub(crate) fn holder_count(&self, name: &str) -> usize {
        self.show_json(name)["holders"].as_array().unwrap().len()
    }

    pub(crate) fn waiter_count(&self, name: &str) -> usize {
        self.show_json(name)["waiters"].as_array().unwrap().len()
    }

    /// Waits until the file's last line is complete; returns its contents.
    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        wait_for(&format!("file {name}"), || Some(self.read(name)).filter(|text| text.ends_with('\n')))
    }

    /// Waits until exactly `count` claims wait for the lock.
    #[track_caller]
    pub(crate) fn wait_for_waiters(&self, name: &str, count: usize) {
        wait_for(&format!("{count} waiters"), || (self.waiter_count(name) == count).then_some(()));
    }
}

/// The output and the exit code of a command that has ended.
pub(crate) struct CommandOutput(pub(crate) Output);

impl CommandOutput {
    pub(crate) fn exit_code(&self) -> i32 {
        self.0.status.code().expect("an exit code, not a signal")
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn assert_ok(self) -> Self {
        assert_eq!(self.exit_code(), 0, "{}", self.stderr());
        self
    }

    /// Asserts the exit code and a part of the error output.
    #[track_caller]
    pub(crate) fn assert_failed(self, code: i32, message: &str) -> Self {
        assert_eq!(self.exit_code(), code, "{}{}", self.stdout(), self.stderr());
        assert!(self.stderr().contains(message), "{message:?} is not in {:?}", self.stderr());
        assert!(!self.stderr().contains("panicked"), "{}", self.stderr());
        self
    }

    /// The events of `--json`, one per line of standard error.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.stderr().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A command that runs; it is killed when this is dropped.
pub(crate) struct RunningCommand(pub(crate) Option<Child>);

impl RunningCommand {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.as_ref().unwrap().id()).unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Closes the command's standard input, and waits for its end.
    #[track_caller]
    pub(crate) fn close_input_and_wait(mut self) -> CommandOutput {
        let mut child = self.0.take().unwrap();
        drop(child.stdin.take());
        self.0 = Some(child);
        self.wait()
    }

    /// Waits for the command's end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> CommandOutput {
        wait_for("the end of leasehold", || self.try_wait());
        CommandOutput(self.0.take().unwrap().wait_with_output().unwrap())
    }

    /// The exit status, if the command has ended.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().unwrap().try_wait().unwrap()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether the process with this id runs; a zombie does not.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
