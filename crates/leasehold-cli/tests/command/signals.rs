//! Signals to leasehold, and the death of leasehold itself.

use crate::common::short_leases::{
    LIST_LIVING_FAMILY, earliest_lease_end, retry_with_longer_ttls, wait_for_family_while_held,
};
use crate::common::{RunningCommand, TestFolder, is_alive, wait_for};
use leasehold::clock::Clock;
use rustix::process::{Pid, Signal};

/// A command with a child in the same group; both record their process ids, and the time
/// repeatedly.
const HEARTBEAT_COMMAND: &str = "beat() { while :; do date +%s%N >> beats; done; }
    sh -c 'echo $$ > grandchild; exec sleep 1000' & beat & echo $$ > child; wait";

/// Waits for the process ids of the command and its child.
fn process_ids(place: &TestFolder) -> [String; 2] {
    place.wait_for_file("beats");
    [place.wait_for_file("child"), place.wait_for_file("grandchild")]
}

#[test]
fn signals_reach_the_whole_group() {
    let place = TestFolder::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        // Both have a trap: the shell's runs after its child has ended.
        let child = "trap 'exit 9' TERM INT HUP QUIT
            sh -c 'trap \"echo got >> grand; exit\" TERM INT HUP QUIT; echo > ready; while :; do sleep 0.01; done'; exit 8";
        let running = place.start(["run", "a", "-c", child]);
        place.wait_for_file("ready");
        running.signal(signal);
        assert_eq!((running.wait().exit_code(), place.read("grand").as_str()), (9, "got\n"), "{signal:?}");
        std::fs::remove_file(place.path("grand")).unwrap();
        std::fs::remove_file(place.path("ready")).unwrap();
        let running = place.start(["run", "--verbose", "a", "--", "sleep", "1000"]);
        wait_for("a holder", || (place.holder_count("a") == 1).then_some(()));
        running.signal(signal);
        assert_eq!(running.wait().exit_code(), code);
    }
    for signal in [Signal::USR1, Signal::USR2, Signal::WINCH] {
        let child = "trap 'echo got; exit 5' USR1 USR2 WINCH; echo > ready; while :; do sleep 0.01; done";
        let running = place.start(["run", "a", "-c", child]);
        place.wait_for_file("ready");
        running.signal(signal);
        let ran = running.wait();
        assert_eq!((ran.exit_code(), ran.stdout().as_str()), (5, "got\n"), "{signal:?}");
        std::fs::remove_file(place.path("ready")).unwrap();
    }
}

#[test]
fn a_stopped_command_is_continued_so_that_it_ends() {
    let place = TestFolder::new();
    let running = place.start(["run", "a", "-c", "echo $$ > child; while :; do sleep 0.01; done"]);
    let child = place.wait_for_file("child");
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    rustix::process::kill_process(Pid::from_raw(child.trim().parse().unwrap()).unwrap(), Signal::STOP).unwrap();
    wait_for("a stopped command", || state().contains(") T ").then_some(()));
    running.signal(Signal::TERM);
    assert_eq!(running.wait().exit_code(), 143);
}

#[test]
fn remaining_group_processes_end_before_the_lock_is_free() {
    let place = TestFolder::new();
    let slow = "sh -c 'trap \"sleep 0.2; echo clean > clean; exit\" TERM; echo > ready; while :; do sleep 0.01; done' \
        > /dev/null 2>&1 & wait";
    let running = place.start(["run", "--ttl", "1h", "--grace", "20m", "a", "-c", slow]);
    place.wait_for_file("ready");
    running.signal(Signal::TERM);
    assert_eq!(running.wait().exit_code(), 143);
    assert_eq!(place.read("clean"), "clean\n", "leasehold waited for it");
    let stubborn = "sh -c 'trap \"\" TERM; echo $$ > grandchild; exec sleep 1000' > /dev/null 2>&1 & wait";
    let running = place.start(["run", "--grace", "200ms", "a", "-c", stubborn]);
    let grandchild = place.wait_for_file("grandchild");
    running.signal(Signal::TERM);
    assert_eq!(running.wait().exit_code(), 143);
    assert!(!is_alive(&grandchild));
}

#[test]
fn processes_that_a_command_leaves_behind_keep_running() {
    let place = TestFolder::new();
    let command = "sh -c 'echo $$ > left; exec sleep 1000' >&- 2>&- & while [ ! -s left ]; do sleep 0.01; done";
    place.run(["run", "a", "-c", command]).assert_ok();
    let left = place.read("left");
    assert!(is_alive(&left));
    assert_eq!(place.holder_count("a"), 0);
    let left = Pid::from_raw(left.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(left, Signal::KILL).unwrap();
}

#[test]
fn a_signal_while_waiting_leaves_the_queue() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let waiter = place.start(["run", "a", "--", "touch", "ran"]);
        place.wait_for_waiters("a", 1);
        waiter.signal(signal);
        assert_eq!(waiter.wait().exit_code(), code);
        assert_eq!(place.waiter_count("a"), 0, "at once, not after a TTL");
    }
    holder.close_input_and_wait().assert_ok();
    assert!(!place.path("ran").exists());
}

#[test]
fn signals_ignored_at_the_start_stay_ignored() {
    let place = TestFolder::new();
    let script = "trap '' HUP; exec \"$L\" run a -c 'echo > ready; while [ ! -e stop ]; do sleep 0.01; done; exit 6'";
    let mut command = place.command(["x"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell.current_dir(command.current_dir(place.dir.path()).get_current_dir().unwrap());
    let running = RunningCommand(Some(shell.spawn().unwrap()));
    place.wait_for_file("ready");
    running.signal(Signal::HUP);
    // TERM would arrive next, so HUP has arrived by the time of this answer.
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(running.wait().exit_code(), 6);
}

#[test]
fn killing_leasehold_kills_the_group_and_frees_the_lock() {
    let place = TestFolder::new();
    let running = place.start(["run", "a", "-c", HEARTBEAT_COMMAND]);
    let family = process_ids(&place);
    assert!(family.iter().all(|pid| is_alive(pid)));
    let waiter = place.start(["run", "a", "-c", "date +%s%N > start"]);
    place.wait_for_waiters("a", 1);
    running.signal(Signal::KILL);
    waiter.wait().assert_ok();
    // When the waiter acquired the lock, the group was gone: it wrote no line after the waiter's start.
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let start: u128 = place.read("start").trim().parse().unwrap();
    let beats = place.read("beats");
    let last: u128 = beats.lines().filter(|line| line.len() == 19).map(|line| line.parse().unwrap()).max().unwrap();
    assert!(last < start, "the group still ran {} ns after the lock was another's", last - start);
}

#[test]
fn killing_leasehold_kills_the_group_every_time() {
    let place = TestFolder::new();
    for round in 0..10 {
        let child = format!("sleep 1000 & echo $! $$ > family{round}; wait");
        let running = place.start(["run", "a", "-c", &child]);
        let family = place.wait_for_file(&format!("family{round}"));
        running.signal(Signal::KILL);
        place.run(["run", "a", "--", "true"]).assert_ok();
        for pid in family.split_whitespace() {
            assert!(!is_alive(pid), "round {round}: process {pid} is alive");
        }
    }
}

/// `the_supervisor_acts_for_a_stopped_leasehold_before_the_lease_ends` shows the order of the
/// events.
#[test]
fn the_supervisor_acts_for_a_stopped_leasehold() {
    retry_with_longer_ttls(attempt_end_by_supervisor);
}

/// One attempt of the test; `None` if the lease ended before leasehold was stopped, or before KILL
/// had taken effect.
fn attempt_end_by_supervisor(ttl: &str) -> Option<()> {
    let place = TestFolder::new();
    let earliest_lease_end = earliest_lease_end(ttl);
    let mut running = place.start(["run", "--ttl", ttl, "--grace", "1s", "a", "-c", HEARTBEAT_COMMAND]);
    let family = wait_for_family_while_held(&place, &mut running)?;
    running.signal(Signal::STOP);
    let waiter = place.start(["run", "a", "-c", LIST_LIVING_FAMILY]);
    wait_for("the end of the family", || family.iter().all(|pid| !is_alive(pid)).then_some(()));
    let is_in_time = Clock::system().now() <= earliest_lease_end;
    let living = waiter.wait().assert_ok().stdout();
    assert!(living.is_empty() || !is_in_time, "granted while {living} ran");
    running.signal(Signal::CONT);
    running.wait().assert_failed(75, "is lost");
    living.is_empty().then_some(())
}

#[cfg(feature = "nightly")]
#[test]
fn the_supervisor_acts_for_a_stopped_leasehold_before_the_lease_ends() {
    let place = TestFolder::new();
    let child = format!("trap 'date +%s%N > termed' TERM; {HEARTBEAT_COMMAND}; wait; wait");
    let running = place.start(["run", "--ttl", "10s", "--grace", "4s", "a", "-c", &child]);
    let family = process_ids(&place);
    let waiter = place.start(["run", "a", "-c", "date +%s%N > start"]);
    place.wait_for_waiters("a", 1);
    running.signal(Signal::STOP);
    waiter.wait().assert_ok();
    assert!(family.iter().all(|pid| !is_alive(pid)));
    let start: u128 = place.read("start").trim().parse().unwrap();
    let termed: u128 = place.read("termed").trim().parse().expect("TERM came first");
    let beats = place.read("beats");
    let last: u128 = beats.lines().filter(|line| line.len() == 19).map(|line| line.parse().unwrap()).max().unwrap();
    assert!(termed < start && last < start, "termed {termed}, last beat {last}, start {start}");
    running.signal(Signal::CONT);
    running.wait().assert_failed(75, "is lost");
}

/// The ids of the living children of a `leasehold run`, except `command`: its supervisor process.
fn supervisor_pids(running: &RunningCommand, command: &str) -> Vec<String> {
    let own = running.pid().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    children.split_whitespace().filter(|pid| *pid != command.trim() && is_alive(pid)).map(str::to_owned).collect()
}

#[test]
fn a_killed_supervisor_is_replaced() {
    let place = TestFolder::new();
    let running = place.start(["run", "a", "-c", HEARTBEAT_COMMAND]);
    let family = process_ids(&place);
    let first = supervisor_pids(&running, &family[0]);
    assert_eq!(first.len(), 1);
    rustix::process::kill_process(Pid::from_raw(first[0].parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_for("another supervisor", || {
        supervisor_pids(&running, &family[0]).iter().any(|pid| *pid != first[0]).then_some(())
    });
    assert!(is_alive(&family[0]));
    running.signal(Signal::KILL);
    place.run(["run", "a", "--", "true"]).assert_ok();
    assert!(family.iter().all(|pid| !is_alive(pid)));
}

#[test]
fn the_lock_is_not_free_before_the_supervisor_has_killed_the_group() {
    let place = TestFolder::new();
    let mut running = place.start(["run", "--ttl", "1h", "a", "-c", HEARTBEAT_COMMAND]);
    let family = process_ids(&place);
    let supervisor = supervisor_pids(&running, &family[0]).remove(0);
    // While the test holds the other end of its pipe, the supervisor does not notice.
    let pipe = std::fs::File::options().write(true).open(format!("/proc/{supervisor}/fd/0")).unwrap();
    running.signal(Signal::KILL);
    wait_for("the end of leasehold", || running.try_wait());
    // Leasehold is gone and the group is not: no other run acquires the lock.
    wait_for("the end of the command, by its parent-death signal", || (!is_alive(&family[0])).then_some(()));
    assert!(is_alive(&family[1]));
    assert_eq!(place.run(["run", "-n", "a", "--", "true"]).exit_code(), 1);
    drop(pipe);
    place.run(["run", "a", "--", "true"]).assert_ok();
    assert!(!is_alive(&family[1]) && !is_alive(&supervisor));
}

#[test]
fn a_supervisor_blocks_every_signal_but_kill() {
    let place = TestFolder::new();
    let running = place.start(["run", "a", "-c", "echo $$ > child; cat"]);
    let child = place.wait_for_file("child");
    let supervisor = supervisor_pids(&running, &child).remove(0);
    let pid = Pid::from_raw(supervisor.parse().unwrap()).unwrap();
    let blocked = || {
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?.trim();
        let bit = 1 << (Signal::TERM.as_raw() - 1);
        (u64::from_str_radix(mask, 16).unwrap() & bit != 0).then_some(())
    };
    wait_for("a supervisor that blocks all signals", blocked);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::USR1] {
        rustix::process::kill_process(pid, signal).unwrap();
    }
    assert!(is_alive(&supervisor));
    running.close_input_and_wait().assert_ok();
    assert!(!is_alive(&supervisor), "it exits when the command has ended");
}
