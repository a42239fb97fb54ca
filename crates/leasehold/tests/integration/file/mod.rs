//! The file engine under bad conditions: killed between two system calls, on a full disk, in
//! folders of other users.
//!
//! Most scenarios run in a child process: this test binary, started again with the name of a task
//! in its environment.

#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test")]

mod crash;
mod permissions_and_space;
mod records;
mod waiting;

use std::process::Command;

/// The environment variable with the name of a child process's task.
const TASK: &str = "LEASEHOLD_TEST_TASK";
/// The environment variable with the engine URL for a child process.
const URL: &str = "LEASEHOLD_TEST_URL";

/// The name of the test [`child_task`], which a child process runs.
fn child_task_test_name() -> &'static str {
    crate::test_name(concat!(module_path!(), "::child_task"))
}

/// Waits until `condition` returns a value, and returns it; panics after the timeout.
async fn wait_until<T>(description: &str, condition: impl AsyncFn() -> Option<T>) -> T {
    let waiting = async {
        loop {
            match condition().await {
                Some(found) => return found,
                None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(crate::TEST_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("not within {:?}: {description}", crate::TEST_TIMEOUT))
}

/// The command that starts this test binary as a child process with this task.
fn child_command(task: &str, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child_task_test_name(), "--nocapture", "--test-threads=1"]).env(TASK, task).env(URL, url);
    command
}

/// Runs the task of a child process. As an ordinary test it returns at once.
#[test]
fn child_task() {
    let (Ok(task), Ok(url)) = (std::env::var(TASK), std::env::var(URL)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match task.as_str() {
        "cycle" => runtime.block_on(crash::cycle(&url)),
        "hand-off" => runtime.block_on(crash::hand_off(&url)),
        "wait" => runtime.block_on(waiting::wait_for_lock(&url)),
        "permit" => runtime.block_on(waiting::hold_permit(&url)),
        "open" => runtime.block_on(permissions_and_space::open_and_report(&url)),
        "fill" => runtime.block_on(permissions_and_space::fill_disk(&url)),
        other => panic!("no task {other}"),
    }
}

/// The lines of a child process's output that start with `key`, without it.
fn lines(output: &[u8], key: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    text.lines().filter_map(|line| line.trim().strip_prefix(key)).map(|rest| rest.trim().to_owned()).collect()
}
