//! The file engine under bad conditions: killed between two system calls, on a full disk, in
//! folders of other users.
//!
//! Each scenario runs in its own process: this test binary, started again with a task in its
//! environment.

#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test")]

mod crash;
mod permissions_and_space;
mod records;
mod waiting;

use std::process::Command;

/// The environment variables with the instructions for a child process.
const TASK: &str = "LEASEHOLD_TEST_TASK";
const URL: &str = "LEASEHOLD_TEST_URL";

/// The test that runs the task of a started process.
fn child_task_test_name() -> &'static str {
    crate::test_name(concat!(module_path!(), "::child_task"))
}

/// Waits until the condition returns a value.
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

/// This test binary, to be started again for a task.
fn child_command(task: &str, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child_task_test_name(), "--nocapture", "--test-threads=1"]).env(TASK, task).env(URL, url);
    command
}

/// The task of a child process; returns at once in an ordinary run.
#[test]
fn child_task() {
    let (Ok(task), Ok(url)) = (std::env::var(TASK), std::env::var(URL)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match task.as_str() {
        "cycle" => runtime.block_on(crash::cycle(&url)),
        "hand-over" => runtime.block_on(crash::hand_off(&url)),
        "wait" => runtime.block_on(waiting::wait_for_lock(&url)),
        "permit" => runtime.block_on(waiting::hold_permit(&url)),
        "open" => runtime.block_on(permissions_and_space::open_and_report(&url)),
        "fill" => runtime.block_on(permissions_and_space::fill_disk(&url)),
        other => panic!("no task {other}"),
    }
}

/// The lines of a started process that start with `key`.
fn lines(output: &[u8], key: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    text.lines().filter_map(|line| line.trim().strip_prefix(key)).map(|rest| rest.trim().to_owned()).collect()
}
