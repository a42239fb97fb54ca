//! A command that starts while its engine is briefly unreachable.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};

use leasehold_testbed::{Data, redis};

use crate::common::TestFolder;

/// The command prints once that it retries, and runs when the server is back within `-w` or
/// `--connect-timeout`.
#[test]
fn a_run_waits_for_an_engine_that_comes_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut server = runtime.block_on(redis::start()).unwrap();
    let (place, url) = (TestFolder::new(), server.url());
    for options in [&["-w", "120"][..], &["-n", "--connect-timeout", "120s"], &["--connect-timeout", "2m"]] {
        server.kill().unwrap();
        let args = [&["run", "--engine", &url], options, &["job", "--", "echo", "ran"]].concat();
        let mut running = place.start(args);
        let mut output = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(
            line.contains("cannot be reached") && line.contains("; retrying for up to 2m 0s"),
            "{options:?}: {line}"
        );
        runtime.block_on(server.restart(Data::Keep)).unwrap();
        let ran = running.wait().assert_ok();
        assert_eq!(ran.stdout(), "ran\n", "{options:?}");
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "", "{options:?}: one line is enough");
    }
}

/// After the time limit it exits with 69 and the cause; an error that retrying cannot cure is
/// reported at once.
#[test]
fn an_unreachable_engine_exits_with_69_after_the_time_limit() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(redis::start()).unwrap();
    let place = TestFolder::new();
    let (away, bound) = ("redis://127.0.0.1:1", ["--connect-timeout", "300ms"]);
    for args in [
        [&["run", "--engine", away][..], &bound, &["job", "--", "true"]].concat(),
        [&["run", "--engine", away, "-n"][..], &bound, &["job", "--", "true"]].concat(),
        [&["run", "--engine", away, "-w", "0.3", "job", "--", "true"][..]].concat(),
        [&["ls", "--engine", away][..], &bound].concat(),
    ] {
        let ran = place.run(&args).assert_failed(69, "127.0.0.1:1 cannot be reached");
        assert_eq!(ran.stderr().matches("retrying for up to 300ms").count(), 1, "{args:?}: {}", ran.stderr());
    }
    let wrong = server.url().replace("redis://", "redis://nobody:wrong@");
    let ran = place
        .run(["run", "--engine", &wrong, "job", "--", "true"])
        .assert_failed(69, "refuses the user or the password");
    assert!(!ran.stderr().contains("retrying"), "{}", ran.stderr());
}
