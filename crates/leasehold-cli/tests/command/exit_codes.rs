//! Each exit code, and each kind of bad input with its message.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::short_leases::UNAVAILABLE;
use crate::common::{TestFolder, wait_for};

#[test]
fn the_commands_exit_code_and_signals_are_returned() {
    let place = TestFolder::new();
    assert_eq!(place.run(["run", "a", "--", "true"]).exit_code(), 0);
    assert_eq!(place.run(["run", "a", "--", "sh", "-c", "exit 3"]).exit_code(), 3);
    assert_eq!(place.run(["run", "a", "-c", "exit 255"]).exit_code(), 255);
    assert_eq!(place.run(["run", "a", "--", "sh", "-c", "kill -9 $$"]).exit_code(), 137);
    assert_eq!(place.run(["run", "a", "-c", "kill $$"]).exit_code(), 143);
    // As with flock, the double dash is optional, and options after the command belong to the
    // command.
    assert_eq!(place.run(["run", "a", "sh", "-c", "exit 4"]).exit_code(), 4);
}

#[test]
fn a_command_that_cannot_be_run_releases_the_lock() {
    let place = TestFolder::new();
    place.run(["run", "a", "--", "no-such-command"]).assert_failed(127, "cannot run no-such-command");
    std::fs::write(place.path("plain"), "text").unwrap();
    place.run(["run", "a", "--", "./plain"]).assert_failed(126, "cannot run ./plain");
    assert_eq!(place.holder_count("a"), 0);
    place.run(["run", "-n", "a", "--", "true"]).assert_ok();
}

#[test]
fn conflicts_and_timeouts_have_their_exit_code() {
    let place = TestFolder::new();
    let holder = place.start_holder(&["--describe", "the nightly job"], "a");
    assert_eq!(place.run(["run", "-nq", "a", "--", "true"]).assert_failed(1, "").stderr(), "", "silent, as flock");
    let output = place.run(["run", "-n", "-E", "42", "a", "--", "true"]).assert_failed(42, "").stderr();
    let pid = holder.pid().as_raw_nonzero();
    for part in [&format!("lock a on {} is held by ", place.engine()), &format!(":{pid} (the nightly job) for ")] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(output.contains(", token 1; did not wait"), "{output}");
    place.run(["run", "--nonblock", "--verbose", "a", "--", "true"]).assert_failed(1, "is held by ");
    let event = place.run(["run", "-n", "--json", "a", "--", "true"]).assert_failed(1, "").events().remove(0);
    assert_eq!((&event["event"], &event["holders"][0]["token"]), (&"not-acquired".into(), &1.into()), "{event}");
    assert_eq!(event["engine"], place.engine(), "{event}");
    place.run_with_longer_waits(0.3, &["run", "-w", "{wait}", "a", "--", "true"]).assert_failed(1, "");
    place
        .run_with_longer_waits(0.3, &["run", "--timeout", "{wait}s", "-E", "43", "--verbose", "a", "--", "true"])
        .assert_failed(43, "(the nightly job) for ");
    let waiter = place.start(["run", "--describe", "the first", "a", "--", "true"]);
    place.wait_for_waiters("a", 1);
    place
        .run_with_longer_waits(0.3, &["run", "-w", "{wait}", "a", "--", "true"])
        .assert_failed(1, "; 1 ahead in the queue, first ")
        .assert_failed(1, "(the first) for ")
        .assert_failed(1, "; gave up after ");
    waiter.signal(rustix::process::Signal::TERM);
    waiter.wait();
    // The shortest wait includes a fixed time for the engine's answer.
    let shortest =
        || Some(place.run(["run", "--wait", "0", "a", "--", "true"])).filter(|ran| ran.exit_code() != UNAVAILABLE);
    wait_for("an answer within the shortest wait", shortest).assert_failed(1, "");
    assert_eq!(place.waiter_count("a"), 0, "a waiter that gave up has left the queue");
    holder.close_input_and_wait().assert_ok();
    place.run(["run", "-n", "a", "--", "true"]).assert_ok();
}

#[test]
fn usage_errors_name_the_mistake() {
    let place = TestFolder::new();
    for (args, message) in [
        (vec!["run", "a"], "no command to run"),
        (vec!["run", "-w", "soon", "a", "--", "true"], "a duration is seconds"),
        (vec!["run", "--ttl", "0", "a", "--", "true"], "longer than zero"),
        (vec!["run", "--ttl", "1us", "a", "--", "true"], "a duration is seconds"),
        (vec!["run", "--ttl", "1ms", "a", "--", "true"], "the TTL must be between"),
        (vec!["run", "--grace", "20s", "a", "--", "true"], "below half of the TTL"),
        (vec!["run", "--min-hold", "5", "--max-hold", "5", "a", "--", "true"], "longer than --min-hold"),
        (vec!["run", "--slots", "0", "a", "--", "true"], "--slots"),
        (vec!["run", "--describe", "a\tb", "a", "--", "true"], "no control characters, and this has '\\t'"),
        (vec!["run", "--slots", "2", "-s", "a", "--", "true"], "cannot be used with"),
        (vec!["run", "-n", "-w", "1", "a", "--", "true"], "cannot be used with"),
        (vec!["run", "-E", "256", "a", "--", "true"], "256"),
        (vec!["run", "-c", "true", "a", "--", "true"], "cannot be used with"),
        (vec!["run", "--on-lost", "pray", "a", "--", "true"], "term, kill, ignore"),
        (vec!["run", "", "--", "true"], "at least one character"),
        (vec!["run", "--engine", "", "a", "--", "true"], "no engine is named"),
        (vec!["run", "a\nb", "--", "true"], "U+000A"),
        (vec!["run", "--describe", "a\u{1b}[2J", "a", "--", "true"], "description"),
        (vec!["show", ""], "at least one character"),
        (vec!["frobnicate"], "unrecognized subcommand"),
        (vec![], "Usage"),
    ] {
        place.run(&args).assert_failed(64, message);
    }
    let long = "x".repeat(513);
    place.run(["run", &long, "--", "true"]).assert_failed(64, "at most 512 bytes");
    place.run(["run", &"x".repeat(512), "--", "true"]).assert_ok();
    place.run(["run", "../../etc/passwd", "--", "true"]).assert_ok();
}

#[test]
fn an_unknown_engine_lists_the_known_ones() {
    let place = TestFolder::new();
    for (url, message) in [
        ("nothing", "no scheme"),
        ("gopher://x", "there are memory:, file:"),
        ("file:///%zz", "two hexadecimal"),
        ("file:///tmp?colour=red", "colour"),
    ] {
        place.run(["ls", "--engine", url]).assert_failed(64, message);
        place.run(["run", "--engine", url, "a", "--", "true"]).assert_failed(64, message);
    }
    let failed = place.run(["run", "--json", "--engine", "gopher://x", "a", "--", "true"]).assert_failed(64, "");
    let events = failed.events();
    assert_eq!((&events[0]["event"], &events[0]["kind"]), (&"error".into(), &"unknown-scheme".into()));
    assert_eq!((&events[1]["event"], &events[1]["code"]), (&"exit".into(), &64.into()));
}

#[test]
fn a_file_in_place_of_the_folder_is_refused() {
    let place = TestFolder::new();
    std::fs::write(place.path("not-a-folder"), "").unwrap();
    let url = format!("file://{}/not-a-folder/locks", place.dir.path().display());
    place.run(["run", "--engine", &url, "a", "--", "touch", "ran"]).assert_failed(64, "name a folder");
    assert!(!place.path("ran").exists());
}

#[test]
fn an_unusable_engine_exits_with_69() {
    let place = TestFolder::new();
    let url = format!("file://{}/open", place.dir.path().display());
    std::fs::create_dir(place.path("open")).unwrap();
    std::fs::set_permissions(place.path("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
    place.run(["run", "--engine", &url, "a", "--", "touch", "ran"]).assert_failed(69, "open");
    place.run(["run", "--engine", "file:///proc/leasehold", "a", "--", "touch", "ran"]).assert_failed(69, "/proc");
    assert!(!place.path("ran").exists());
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("other")).unwrap();
    let url = format!("file://{}/other", place.dir.path().display());
    let mut command = if rustix::process::geteuid().is_root() {
        // Runs the command as another user, who can execute the copy but not use the folder.
        std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(place.path("other"), std::fs::Permissions::from_mode(0o700)).unwrap();
        crate::common::copy_program(&place.path("leasehold"));
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(place.path("leasehold"));
        command
    } else {
        std::fs::set_permissions(place.path("other"), std::fs::Permissions::from_mode(0o000)).unwrap();
        Command::new(crate::common::LEASEHOLD)
    };
    command.args(["run", "--engine", &url, "a", "--", "echo", "ran"]);
    let ran = crate::common::CommandOutput(command.output().unwrap()).assert_failed(69, "/other");
    assert_eq!(ran.stdout(), "");
    std::fs::set_permissions(place.path("other"), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_damaged_lock_file_exits_with_69_and_is_left_unchanged() {
    let place = TestFolder::new();
    place.run(["run", "a", "--", "true"]).assert_ok();
    let files: Vec<_> =
        std::fs::read_dir(place.path("locks/locks")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    std::fs::write(&files[0], "garbage").unwrap();
    place.run(["run", "a", "--", "touch", "ran"]).assert_failed(69, "is damaged");
    place.run(["show", "a"]).assert_failed(69, "is damaged");
    assert_eq!(std::fs::read(&files[0]).unwrap(), b"garbage");
    assert!(!place.path("ran").exists());
    place.run(["run", "b", "--", "true"]).assert_ok();
}

#[test]
fn a_full_disk_exits_with_69_and_loses_no_data() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("small")).unwrap();
    // A mount that is visible to this shell only.
    let script = "mount -t tmpfs -o size=256k tmpfs small || exit 99
        export LEASEHOLD_ENGINE=file://$PWD/small/locks
        \"$L\" run a -c 'echo token $LEASEHOLD_TOKEN' || exit 98
        cat /dev/zero > small/fill 2> /dev/null
        \"$L\" run new -- echo ran; echo code $?
        rm small/fill
        \"$L\" run a -c 'echo token $LEASEHOLD_TOKEN'";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", script]).env("L", crate::common::LEASEHOLD).env_remove("LEASEHOLD_OWNER");
    let ran = crate::common::CommandOutput(command.current_dir(place.dir.path()).output().unwrap()).assert_ok();
    assert_eq!(ran.stdout(), "token 1\ncode 69\ntoken 2\n", "{}", ran.stderr());
    assert!(ran.stderr().contains("make room"), "{}", ran.stderr());
}

#[test]
fn help_and_version_exit_with_0() {
    let place = TestFolder::new();
    assert!(place.run(["--version"]).assert_ok().stdout().starts_with("leasehold "));
    for args in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let help = place.run(args).assert_ok().stdout();
        for part in ["Examples:", "Exit codes", "LEASEHOLD_ENGINE"] {
            assert!(help.contains(part), "{args:?} lacks {part}");
        }
    }
}
