//! Kills a process on entry to each system call that may change a file, one run for each call. No
//! token may repeat, and the lock must be free again.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use leasehold::Locks;

use crate::TEST_TIMEOUT;
use crate::file::{TASK, URL, child_command, child_task_test_name, lines};

/// The task `cycle`: acquires and releases the lock three times, and prints each token at once.
pub(crate) async fn cycle(url: &str) {
    let locks = Locks::open(url).await.unwrap();
    for _ in 0..3 {
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.unwrap();
        print_token(guard.token().0);
        let _ = guard.release().await.unwrap();
    }
    // No clean-up: the next process finds the state as it is.
    std::process::exit(0);
}

/// The task `hand-off`: holds the lock while another client waits, and then releases it. Prints
/// both tokens.
pub(crate) async fn hand_off(url: &str) {
    let (one, two) = (Locks::open(url).await.unwrap(), Locks::open(url).await.unwrap());
    let first = one.mutex("a").timeout(TEST_TIMEOUT).lock().await.unwrap();
    print_token(first.token().0);
    let waiting = two.mutex("a").timeout(TEST_TIMEOUT);
    let (second, released) = tokio::join!(waiting.lock(), async {
        while two.inspect("a").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        first.release().await
    });
    let _ = released.unwrap();
    print_token(second.unwrap().token().0);
    std::process::exit(0);
}

fn print_token(token: u64) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\ntoken {token}").unwrap();
    stdout.flush().unwrap();
}

/// Runs a task in a child process, which strace kills on entry to its `nth` call of `syscall` (from
/// 1).
fn run_killed_at(task: &str, url: &str, syscall: &str, nth: u32) -> Output {
    let exe = std::env::current_exe().unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={syscall}")]);
    strace.args(["-e", &format!("inject={syscall}:signal=SIGKILL:when={nth}")]).arg(exe);
    strace.args(["--exact", child_task_test_name(), "--nocapture", "--test-threads=1"]).env(TASK, task).env(URL, url);
    strace.output().expect("strace is not installed; it is in the Debian package `strace`: apt-get install strace")
}

/// Kills a task at every system call, with a complete `cycle` after each. Every token must be above
/// all earlier ones.
fn assert_survives_every_kill(task: &str) {
    let temp_dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", temp_dir.path().join("locks").display());
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut kills = 0;
    for syscall in ["pwrite64", "flock", "fdatasync", "fsync", "linkat,link", "unlink,unlinkat", "openat", "sendto"] {
        for nth in 1..40 {
            let output = run_killed_at(task, &url, syscall, nth);
            check_tokens(&mut seen, &output.stdout, syscall, nth);
            let after = child_command("cycle", &url).output().unwrap();
            assert!(
                after.status.success(),
                "after a kill at {syscall} {nth}: {}",
                String::from_utf8_lossy(&after.stderr)
            );
            check_tokens(&mut seen, &after.stdout, syscall, nth);
            // The task made fewer than `nth` calls of `syscall`.
            if output.status.success() {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills >= 30, "only {kills} kills: does strace kill at all?");
    assert!(Path::new(temp_dir.path()).exists());
}

/// Checks that each token in the output is above all in `seen`, and adds it.
fn check_tokens(seen: &mut BTreeSet<u64>, output: &[u8], syscall: &str, nth: u32) {
    for token in lines(output, "token ") {
        let token: u64 = token.parse().unwrap();
        let highest = seen.last().copied().unwrap_or(0);
        assert!(token > highest, "token {token} after {highest}, killed at {syscall} {nth}");
        seen.insert(token);
    }
}

#[test]
fn a_kill_at_any_system_call_of_a_cycle_repeats_no_token() {
    assert_survives_every_kill("cycle");
}

#[test]
fn a_kill_at_any_system_call_of_a_hand_off_repeats_no_token() {
    assert_survives_every_kill("hand-off");
}
