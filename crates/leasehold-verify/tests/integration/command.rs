//! Tests the command `leasehold verify`, run as a user runs it.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leasehold_testbed::redis;
use leasehold_testbed::zookeeper::ZooKeeper;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold-verify");

/// Runs the command in this folder, with exceeded time bounds only reported.
pub(crate) fn run_verify(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).args(["--late", "report"]).current_dir(folder).env_remove("LEASEHOLD_ENGINE");
    command.output().expect("it runs")
}

/// What the command printed to standard output and standard error.
pub(crate) fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The JSON that the command printed with `--json`.
pub(crate) fn output_json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output_text(output)))
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_run_leaves_a_history_and_a_report_and_can_be_checked_again() {
    let folder = folder();
    let run =
        run_verify(folder.path(), &["--local", "file", "--faults", "kill,stop", "--ops", "150", "--svg", "line.svg"]);
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    assert!(output_text(&run).starts_with("holds: "), "{}", output_text(&run));
    let history = folder.path().join("verify-file-fenced-1.jsonl");
    let page = std::fs::read_to_string(history.with_extension("html")).expect("a report");
    assert!(
        page.contains("<svg") && page.contains("leasehold verify --local file"),
        "a picture, and the command that repeats the run"
    );
    assert!(std::fs::read_to_string(folder.path().join("line.svg")).expect("a picture").starts_with("<svg"));
    std::fs::remove_file(history.with_extension("html")).expect("it is there");
    let again = run_verify(folder.path(), &["--check", "verify-file-fenced-1.jsonl", "--json"]);
    assert_eq!(again.status.code(), Some(0), "{}", output_text(&again));
    assert_eq!(output_json(&again)["violations_in_all"], 0);
    assert_eq!(output_json(&again)["counts"]["faults"], 2);
    assert!(history.with_extension("html").exists(), "the report is written again");
}

#[test]
fn violations_in_a_history_are_found_and_reported() {
    let folder = folder();
    let run =
        run_verify(folder.path(), &["--local", "memory", "--workload", "mutex", "--faults", "none", "--ops", "60"]);
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    let history = folder.path().join("verify-memory-mutex-1.jsonl");
    let lines = std::fs::read_to_string(&history).expect("a history");
    // Forge the history: every grant gets the same token.
    let forged: Vec<String> = lines
        .lines()
        .map(|line| {
            let mut event: serde_json::Value = serde_json::from_str(line).expect("an event");
            if event["outcome"]["is"] == "granted" {
                event["outcome"]["token"] = 7.into();
            }
            format!("{event}\n")
        })
        .collect();
    std::fs::write(&history, forged.concat()).expect("written");
    let check = run_verify(folder.path(), &["--check", "verify-memory-mutex-1.jsonl"]);
    assert_eq!(check.status.code(), Some(1), "{}", output_text(&check));
    assert!(
        output_text(&check).contains("BROKEN") && output_text(&check).contains("token 7"),
        "{}",
        output_text(&check)
    );
    // In a negative control, the same history is the expected result.
    let control = forged.concat().replace("\"guard\":true", "\"guard\":false");
    std::fs::write(&history, control).expect("written");
    let check = run_verify(folder.path(), &["--check", "verify-memory-mutex-1.jsonl"]);
    assert_eq!(check.status.code(), Some(0), "{}", output_text(&check));
    assert!(output_text(&check).starts_with("detected: "), "{}", output_text(&check));
    // Truncated in the middle of a line, as after a crash: the rest is checked.
    let half = &lines[..lines.len() / 2];
    std::fs::write(&history, half).expect("written");
    let check = run_verify(folder.path(), &["--check", "verify-memory-mutex-1.jsonl"]);
    assert!(output_text(&check).starts_with("CUT SHORT"), "{}", output_text(&check));
    assert_eq!(check.status.code(), Some(1), "half a history must not pass: {}", output_text(&check));
}

#[test]
fn an_interrupted_run_is_checked_and_reported() {
    let folder = folder();
    let mut command = Command::new(PROGRAM);
    command
        .args(["--local", "file", "--faults", "kill", "--for", "10m", "--late", "report"])
        .current_dir(folder.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let history = folder.path().join("verify-file-fenced-1.jsonl");
    let granted = || std::fs::read_to_string(&history).is_ok_and(|lines| lines.matches("granted").count() > 3);
    wait_for(granted);
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("its end");
    assert_eq!(ended.status.code(), Some(130), "{}", output_text(&ended));
    assert!(output_text(&ended).starts_with("CUT SHORT"), "{}", output_text(&ended));
    assert!(history.with_extension("html").exists());
    // The report may go to another folder, and the verdict is printed even if the report cannot be
    // written.
    let elsewhere = run_verify(folder.path(), &["--check", "verify-file-fenced-1.jsonl", "--out", "reports/today"]);
    assert!(output_text(&elsewhere).contains("reports/today/verify-file-fenced-1.html"), "{}", output_text(&elsewhere));
    assert!(folder.path().join("reports/today/verify-file-fenced-1.html").exists());
    std::fs::write(folder.path().join("file"), "").expect("written");
    let unwritable = run_verify(folder.path(), &["--check", "verify-file-fenced-1.jsonl", "--out", "file"]);
    assert_eq!(unwritable.status.code(), Some(74), "{}", output_text(&unwritable));
    assert!(output_text(&unwritable).starts_with("CUT SHORT"), "{}", output_text(&unwritable));
}

/// If the conductor is killed, every recorded event is in the file, and its workers end.
#[test]
fn a_killed_run_loses_no_event_and_leaves_no_worker_behind() {
    let folder = folder();
    let mut command = Command::new(PROGRAM);
    command
        .args(["--local", "file", "--faults", "kill", "--for", "10m", "--late", "report"])
        .current_dir(folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let history = folder.path().join("verify-file-fenced-1.jsonl");
    let lines = || std::fs::read_to_string(&history).unwrap_or_default();
    wait_for(|| lines().matches("granted").count() > 20);
    let mut recorded = lines();
    recorded.truncate(recorded.rfind('\n').map_or(0, |at| at + 1));
    child.kill().expect("it runs");
    child.wait().expect("its end");
    let pids: Vec<u64> = recorded
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|event| event["state"]["pid"].as_u64().or_else(|| event["pid"].as_u64()))
        .collect();
    assert!(pids.len() >= 4, "the workers report their process ids: {pids:?}");
    // The workers end although the conductor did not ask them to. Zombies (state Z) have ended.
    let stat = |pid: &u64| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_for(|| pids.iter().all(|pid| stat(pid).is_empty() || stat(pid).contains(") Z ")));
    assert!(lines().starts_with(&recorded), "written events stay");
    let check = run_verify(folder.path(), &["--check", "verify-file-fenced-1.jsonl", "--json"]);
    assert!(
        output_json(&check)["complete"] == false && output_json(&check)["violations_in_all"] == 0,
        "{}",
        output_text(&check)
    );
    let grants = output_json(&check)["counts"]["grants"].as_u64();
    assert!(grants >= Some(recorded.matches("granted").count() as u64), "{grants:?}");
}

/// Waits until the condition is true, for at most two minutes.
fn wait_for(condition: impl Fn() -> bool) {
    let is_true = (0..6000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        condition()
    });
    assert!(is_true, "no result within two minutes");
}

#[tokio::test]
async fn no_fault_is_injected_into_a_users_servers() {
    let (folder, server) = (folder(), redis::start().await.expect("a server"));
    let url = server.url();
    let faults = ["--faults", "kill,cut", "--ops", "150", "--ttl", "1s"];
    let run = run_verify(folder.path(), &[&["--engine", &url], &faults[..]].concat());
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    for fault in ["crash", "wipe", "clock", "failover", "disk-full"] {
        let run = run_verify(folder.path(), &["--engine", &url, "--faults", fault, "--ops", "10"]);
        assert_ne!(run.status.code(), Some(0), "{fault}: {}", output_text(&run));
        assert!(output_text(&run).contains("--local"), "the message names the alternative: {}", output_text(&run));
    }
    assert!(server.is_awake());
}

#[test]
fn wrong_usage_is_refused_before_anything_starts() {
    let folder = folder();
    for (arguments, words) in [
        (&["--local", "sqlite"][..], "redlock"),
        (&["--local", "redis", "--workload", "sleep"], "counter"),
        (&["--local", "redis", "--faults", "kill,rain"], "disk-full"),
        (&["--local", "memory", "--faults", "crash"], "no server to kill"),
        (&["--local", "redis", "--faults", "kill", "--guard", "off"], "--workload unfenced --faults stop"),
        (&["--local", "redis", "--faults", "none,stop"], "none cannot be combined"),
        (&["--local", "redis", "--seed", "-1"], "invalid value '-1'"),
        (&["--local", "redis", "--faults", "kill", "--times", "0"], "use `--faults none` for no faults"),
        // With `memory:` all workers share one process, so that a kill would end them all.
        (&["--engine", "memory:", "--faults", "kill"], "lives in one process"),
        (&["--engine", "MEMORY:", "--faults", "cut"], "lives in one process"),
        (&["--engine", "memory:", "--faults", "crash"], "lives in one process"),
        (
            &["--local", "memory", "--workload", "unfenced", "--faults", "stop", "--guard", "off"],
            "no safeguard to turn off",
        ),
        (&["--engine", "nothing://here"], "nothing"),
        (&["--engine", "rediss://localhost", "--faults", "cut"], "rediss"),
        (&["--check", "nowhere.jsonl"], "cannot be read"),
        (&[], "--engine"),
        (&["--local", "file", "--engine", "file:"], "cannot be used with"),
    ] {
        let run = run_verify(folder.path(), arguments);
        assert_eq!(run.status.code(), Some(64), "{arguments:?}: {}", output_text(&run));
        assert!(output_text(&run).contains(words), "{arguments:?}: {}", output_text(&run));
    }
    let run = run_verify(
        folder.path(),
        &["--local", "file", "--workload", "fenced", "--faults", "none", "--ops", "5", "--out", "/proc/nowhere"],
    );
    assert_eq!(run.status.code(), Some(74), "{}", output_text(&run));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "no file is left behind");
}

/// A default ZooKeeper accepts no session below 4 s. The default TTL is adjusted, and a TTL that
/// cannot be is refused before anything runs.
#[test]
fn a_ttl_that_the_server_refuses_is_adjusted_or_refused_before_the_run() {
    let folder = folder();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let bounds = (Duration::from_secs(4), Duration::from_secs(40));
    let stock = ZooKeeper::new().tick(Duration::from_secs(2)).session_bounds(bounds.0, bounds.1);
    let server = runtime.block_on(stock.start()).expect("a server");
    let engine = format!("zookeeper://{}", server.url());
    let run = run_verify(
        folder.path(),
        &["--engine", &engine, "--workload", "mutex", "--faults", "none", "--ops", "40", "--workers", "2"],
    );
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    let short = run_verify(folder.path(), &["--engine", &engine, "--faults", "none", "--ops", "40", "--ttl", "3s"]);
    assert_eq!(short.status.code(), Some(64), "{}", output_text(&short));
    assert!(output_text(&short).contains("use 4s or more"), "{}", output_text(&short));
}

#[test]
fn completions_offer_every_name() {
    use leasehold_command::verify_options::{ENGINES, FAULTS, WORKLOADS};
    use leasehold_verify::deployment::LocalEngine;
    use leasehold_verify::history::{FaultKind, Workload};

    assert_eq!(Workload::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>(), WORKLOADS);
    assert_eq!(LocalEngine::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>(), ENGINES);
    let faults = ["all", "none"].into_iter().chain(FaultKind::ALL.iter().map(|one| one.as_str()));
    assert_eq!(faults.collect::<Vec<_>>(), FAULTS);
}

/// The command lines of a process and its children, as the kernel shows them to every user.
fn command_lines(pid: u32) -> String {
    let mut all = vec![pid.to_string()];
    // The kernel lists the children of each thread separately.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads") {
        let children = thread.map(|thread| thread.path().join("children")).and_then(std::fs::read_to_string);
        all.extend(children.unwrap_or_default().split_whitespace().map(str::to_owned));
    }
    let line = |pid: String| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    all.into_iter().map(|pid| line(pid).replace('\0', " ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_password_on_the_command_line_is_hidden_from_other_users() {
    let server = redis::Redis::new().password("hunter2").start().await.expect("a server");
    let url = format!("{}?connect-timeout=60s", server.url());
    assert!(url.contains("hunter2"));
    let folder = folder();
    // Another seed for the second run: the killed workers of the first one still hold its locks.
    for (seed, engine, shown) in [
        ("1", vec!["--engine".to_owned(), url.clone()], "--engine redis://:***@127.0.0.1"),
        ("2", vec![format!("--engine={url}")], "--engine=redis://:***@127.0.0.1"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.args(&engine).args(["--seed", seed, "--faults", "none", "--for", "10m", "--late", "report"]);
        command.current_dir(folder.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let history = folder.path().join(format!("verify-redis-fenced-{seed}.jsonl"));
        wait_for(|| std::fs::read_to_string(&history).is_ok_and(|lines| lines.contains("granted")));
        let lines = command_lines(child.id());
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
        let ended = child.wait_with_output().expect("its end");
        assert!(!lines.contains("hunter2"), "{lines}");
        assert!(lines.contains(shown) && lines.lines().count() > 1, "it and its workers: {lines}");
        assert!(!output_text(&ended).contains("hunter2"), "{}", output_text(&ended));
        for file in [&history, &history.with_extension("html")] {
            assert!(!std::fs::read_to_string(file).expect("written").contains("hunter2"), "{}", file.display());
        }
    }
}

/// The command warns, in one line with the remedy, if every user can read a password file. So does
/// `leasehold run`.
#[test]
fn a_password_file_that_every_user_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "hunter2\n").expect("written");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
    };
    let url = format!("redis://u@127.0.0.1:1?password-file={}", secret.display());
    for (of_folder, of_file, warnings) in [(0o755, 0o644, 1), (0o755, 0o640, 0), (0o700, 0o644, 0)] {
        mode(folder.path(), of_folder);
        mode(&secret, of_file);
        let run = run_verify(folder.path(), &["--engine", &url, "--faults", "none", "--ops", "1"]);
        assert_eq!(run.status.code(), Some(69), "{}", output_text(&run));
        assert_eq!(
            output_text(&run).matches("chmod o-r ").count(),
            warnings,
            "{of_folder:o} {of_file:o}: {}",
            output_text(&run)
        );
    }
}
