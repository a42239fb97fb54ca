//! The lock itself, between real processes.

use crate::common::{TestFolder, wait_for};
use serde_json::json;

#[test]
fn eight_processes_run_one_at_a_time_with_rising_tokens() {
    TestFolder::new().check_exclusion(8, 5, "");
}

#[test]
fn shared_holders_hold_together_and_an_exclusive_one_alone() {
    let place = TestFolder::new();
    let first = place.start_holder(&["-s"], "a");
    let second = place.start_holder(&["--shared"], "a");
    assert_eq!(place.run(["run", "-n", "a", "--", "true"]).exit_code(), 1);
    assert_eq!(place.run(["run", "-nx", "a", "--", "true"]).exit_code(), 1);
    place.run(["run", "-n", "-x", "-s", "a", "--", "true"]).assert_ok();
    first.close_input_and_wait().assert_ok();
    assert_eq!(place.run(["run", "-n", "a", "--", "true"]).exit_code(), 1);
    second.close_input_and_wait().assert_ok();
    let alone = place.start_holder(&["-e"], "a");
    assert_eq!(place.run(["run", "-ns", "a", "--", "true"]).exit_code(), 1);
    alone.close_input_and_wait().assert_ok();
}

#[test]
fn slots_admit_their_number_and_then_the_next_waiter() {
    let place = TestFolder::new();
    let mut all: Vec<_> = (0..3).map(|_| place.start_holder(&["--slots", "3"], "a")).collect();
    all.extend((0..3).map(|_| place.start(["run", "--slots", "3", "a", "--", "cat"])));
    place.wait_for_waiters("a", 3);
    assert_eq!(place.holder_count("a"), 3);
    place.run(["run", "-n", "--slots", "4", "a", "--", "true"]).assert_failed(1, "semaphore with a limit of 3");
    all.remove(0).close_input_and_wait().assert_ok();
    place.wait_for_waiters("a", 2);
    assert_eq!(place.holder_count("a"), 3);
    for running in all {
        running.close_input_and_wait().assert_ok();
    }
    assert_eq!(place.holder_count("a"), 0);
}

#[test]
fn the_command_gets_its_lock_in_the_environment() {
    let place = TestFolder::new();
    let out = place.run(["run", "täst", "-c", "env | grep ^LEASEHOLD_ | sort"]).assert_ok().stdout();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 5, "{out}");
    assert_eq!(lines[0], format!("LEASEHOLD_ENGINE={}", place.engine()));
    assert!(lines[1].starts_with("LEASEHOLD_HELD=") && lines[1].ends_with(":t%C3%A4st"), "{out}");
    assert_eq!(lines[2], "LEASEHOLD_NAME=täst");
    assert_eq!(lines[3].strip_prefix("LEASEHOLD_OWNER=").map(str::len), Some(32));
    assert_eq!(lines[4], "LEASEHOLD_TOKEN=1");
}

#[test]
fn the_engine_on_the_command_line_reaches_the_command() {
    let place = TestFolder::new();
    let url = format!("file://{}/elsewhere", place.dir.path().display());
    let out = place.run(["run", "--engine", &url, "a", "-c", "\"$L\" show --json a"]).assert_ok().stdout();
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["holders"].as_array().unwrap().len(), 1);
    // A relative folder is the same engine after the command changed its working directory.
    let out = place
        .run(["run", "--engine", "file:here", "a", "-c", "cd / && \"$L\" run -n a -- echo same"])
        .assert_ok()
        .stdout();
    assert_eq!(out, "same\n");
}

#[test]
fn a_run_inside_the_command_re_enters() {
    let place = TestFolder::new();
    let inner = "\"$L\" run -n a -c 'echo $LEASEHOLD_TOKEN; \"$L\" run b -c \"\\\"$L\\\" run -n a -- echo deep\"'";
    let out = place
        .run(["run", "a", "-c", &format!("echo $LEASEHOLD_TOKEN; {inner}; \"$L\" ls --json")])
        .assert_ok()
        .stdout();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(&lines[..3], ["1", "1", "deep"], "{out}");
    let list: serde_json::Value = serde_json::from_str(lines[3]).unwrap();
    assert_eq!(list[0]["holders"].as_array().unwrap().len(), 1, "the inner run has released its hold: {list}");
    assert_eq!(place.holder_count("a"), 0);
    // Two spellings of a URL name the same engine.
    let other =
        format!("\"$L\" run -n --engine file:{}/. a -- echo same", place.engine().trim_start_matches("file://"));
    assert_eq!(place.run(["run", "a", "-c", &other]).assert_ok().stdout(), "same\n");
    // Two commands inside one lock exclude each other on another lock.
    let hold = "\"$L\" run b -c 'touch in; until [ -e out ]; do sleep 0.01; done' &";
    let script =
        format!("{hold} until [ -e in ]; do sleep 0.01; done; \"$L\" run -n b -- true; echo $?; touch out; wait");
    assert_eq!(place.run(["run", "a", "-c", &script]).assert_ok().stdout(), "1\n");
    // Without LEASEHOLD_OWNER, a nested run cannot re-enter.
    let out =
        place.run(["run", "a", "-c", "env -u LEASEHOLD_OWNER \"$L\" run -n a -- true; echo $?"]).assert_ok().stdout();
    assert_eq!(out, "1\n");
    // A run that would wait for itself is refused.
    let ran = place.run(["run", "-s", "a", "-c", "\"$L\" run -x -E 9 a -- true"]);
    ran.assert_failed(9, "it would wait for itself");
    // With a time limit it warns, and waits on.
    let script = "env -u LEASEHOLD_OWNER \"$L\" run -w 600 a -- true 2> warned & nested=$!
        until grep -q 'this run would wait for itself' warned; do sleep 0.01; done
        kill -TERM $nested; wait $nested; echo $?";
    assert_eq!(place.run(["run", "a", "-c", script]).assert_ok().stdout(), "143\n");
}

#[test]
fn waiters_are_served_in_order() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    let mut waiters = Vec::new();
    for n in 1..=4 {
        waiters.push(place.start(["run", "a", "-c", &format!("echo {n} >> order")]));
        place.wait_for_waiters("a", n);
    }
    holder.close_input_and_wait().assert_ok();
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().assert_ok()));
    assert_eq!(place.read("order"), "1\n2\n3\n4\n");
}

#[test]
fn min_hold_keeps_the_lock_after_a_short_command() {
    let place = TestFolder::new();
    let running = place.start(["run", "--min-hold", "1h", "a", "-c", "echo done > done; exit 7"]);
    place.wait_for_file("done");
    let status = |pid: rustix::process::Pid| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children", pid = pid.as_raw_nonzero())).unwrap()
    };
    wait_for("the end of command and supervisor", || status(running.pid()).trim().is_empty().then_some(()));
    assert_eq!(place.holder_count("a"), 1);
    assert_eq!(place.run(["run", "-n", "a", "--", "true"]).exit_code(), 1);
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.wait().exit_code(), 143);
    assert_eq!(place.holder_count("a"), 0);
    assert_eq!(place.run(["run", "--min-hold", "50ms", "a", "-c", "exit 7"]).exit_code(), 7);
}

#[test]
fn json_events_are_printed_on_standard_error() {
    let place = TestFolder::new();
    let holder = place.start_holder(&["--describe", "the holder"], "a");
    let running = place.start(["run", "--json", "a", "-c", "echo out; exit 5"]);
    place.wait_for_waiters("a", 1);
    let mut output = String::new();
    let mut running = running;
    let mut stderr = running.0.as_mut().unwrap().stderr.take().unwrap();
    let mut byte = [0];
    // The first line, that the run waits, is printed before the run acquires the lock.
    while !output.ends_with('\n') {
        std::io::Read::read_exact(&mut stderr, &mut byte).unwrap();
        output.push(char::from(byte[0]));
    }
    holder.close_input_and_wait().assert_ok();
    let ran = running.wait();
    std::io::Read::read_to_string(&mut stderr, &mut output).unwrap();
    let events: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["waiting", "acquired", "started", "ended", "released", "exit"], "{output}");
    assert_eq!(events[0]["holders"][0]["text"], json!("the holder"));
    assert_eq!(events[1]["token"], json!(2));
    assert_eq!(events[3]["code"], json!(5));
    assert_eq!(events[5]["code"], json!(5));
    assert_eq!((ran.exit_code(), ran.stdout().as_str()), (5, "out\n"));
}

#[test]
fn verbose_prints_each_step() {
    let place = TestFolder::new();
    let output = place.run(["run", "--verbose", "a", "--", "true"]).assert_ok().stderr();
    assert!(output.contains("leasehold: acquired token 1 after "), "{output}");
    assert!(output.contains("leasehold: released"), "{output}");
    assert_eq!(place.run(["run", "a", "--", "true"]).assert_ok().stderr(), "");
}

#[test]
fn the_description_is_the_command_line_without_passwords() {
    let place = TestFolder::new();
    let _holder = place.start(["run", "a", "--", "sh", "-c", "read x", "redis://u:hunter2@h"]);
    let text = wait_for("a holder", || place.show_json("a")["holders"][0]["text"].as_str().map(str::to_owned));
    assert_eq!(text, "sh -c read x redis://u:***@h");
}
