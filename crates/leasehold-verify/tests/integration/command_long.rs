//! Tests the command `leasehold verify`, run as a user runs it: the slow tests.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use std::process::{Command, Stdio};

use leasehold_testbed::{postgres, redis};

use crate::command::{PROGRAM, folder, output_json, output_text, run_verify};

/// An engine without inspection of holders and waiters is tested, too; the report states that
/// leftovers were not checked.
#[tokio::test]
async fn an_engine_without_inspection_is_tested() {
    let (folder, server) = (folder(), postgres::start().await.expect("a server"));
    let url = format!("{}?technique=session", server.url());
    let run = ["--engine", &url, "--workload", "mutex", "--faults", "kill", "--ops", "60", "--ttl", "2s", "--json"];
    let run = run_verify(folder.path(), &run);
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    let findings = output_json(&run)["findings"].clone();
    let of = |name: &str| findings.as_array().expect("a list").iter().find(|one| one["guarantee"] == name).cloned();
    assert_eq!(of("exclusion").expect("a finding")["state"], "kept", "{findings}");
    let leaks = of("leaks").expect("a finding");
    assert!(leaks["state"] == "untested" && leaks["figure"] == "not inspected", "{leaks}");
}

/// With `--engine`, `all` means every fault of the workers and the network, and no server fault.
#[tokio::test]
async fn a_remote_engine_gets_every_connection_fault() {
    let (folder, server) = (folder(), redis::start().await.expect("a server"));
    let run = run_verify(
        folder.path(),
        &["--engine", &server.url(), "--faults", "all", "--ops", "150", "--ttl", "1s", "--json"],
    );
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    let expected = ["kill", "stop", "cut", "lost-reply", "delay", "duplicate", "partition"];
    assert_eq!(output_json(&run)["header"]["faults"], serde_json::json!(expected), "{}", output_text(&run));
    assert!(server.is_awake());
    // `--times 4` causes four faults of one kind.
    let run = run_verify(
        folder.path(),
        &["--engine", &server.url(), "--faults", "cut", "--times", "4", "--ops", "200", "--ttl", "1s", "--json"],
    );
    assert_eq!(output_json(&run)["counts"]["faults"], 4, "{}", output_text(&run));
    assert!(output_json(&run)["header"]["notes"]["command"].as_str().is_some_and(|words| words.contains("--times 4")));
}

#[test]
fn a_schedule_fires_each_tick_once_though_its_runners_are_killed() {
    let folder = folder();
    let run = run_verify(
        folder.path(),
        &["--local", "file", "--workload", "ticks", "--faults", "kill", "--for", "6s", "--json"],
    );
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    let findings = output_json(&run)["findings"].clone();
    let ticks = findings.as_array().expect("a list").iter().find(|finding| finding["guarantee"] == "ticks").cloned();
    let ticks = ticks.expect("a finding");
    assert!(ticks["state"] == "kept" && ticks["checked"].as_u64() >= Some(3), "{ticks}");
}

/// The progress line is overwritten in place; the verdict replaces it at the end.
#[test]
fn progress_is_shown_on_a_terminal() {
    let folder = folder();
    let words = format!("{PROGRAM} --local file --faults stop --ops 400");
    // `script` gives the program its own terminal.
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &words, "/dev/null"]).current_dir(folder.path());
    let ran = command.stdin(Stdio::null()).output().expect("script, of Debian's bsdutils, runs");
    assert_eq!(ran.status.code(), Some(0), "{}", output_text(&ran));
    let seen = output_text(&ran);
    let mut rest = seen.as_str();
    for part in ["\r\u{1b}[Kstarting", " grants", "fault 1 of 1", "\r\u{1b}[Kchecking", "holds: ", "report   "] {
        let (before, after) = rest.split_once(part).unwrap_or_else(|| panic!("no {part:?} in order in {seen}"));
        assert!(part == "report   " || !before.contains('\n'), "one line until the verdict: {seen}");
        rest = after;
    }
}

#[test]
fn a_detected_control_passes() {
    let folder = folder();
    let control = ["--local", "file", "--workload", "unfenced", "--faults", "stop", "--ops", "150", "--guard", "off"];
    let run = run_verify(folder.path(), &control);
    assert_eq!(run.status.code(), Some(0), "{}", output_text(&run));
    assert!(output_text(&run).starts_with("detected: "), "{}", output_text(&run));
}
