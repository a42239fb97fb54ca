//! `ls`, `show`, `evict`, `engines`, `completions`, `man`, and secrets that must never be printed.

use std::process::Stdio;

use crate::common::{Place, wait_for};
use serde_json::{Value, json};

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn ls_and_show_tell_who_holds_and_who_waits() {
    let place = Place::new();
    assert_eq!(place.run(["ls"]).ok().out(), format!("no locks held or awaited on {}\n", place.engine()));
    assert_eq!(parsed(&place.run(["ls", "--json"]).ok().out()), json!([]));
    let holder = place.hold(&["--describe", "the nightly job"], "job:1");
    let _other = place.hold(&["--slots", "2"], "other");
    let waiter = place.start(["run", "job:1", "--", "true"]);
    place.wait_for_waiters("job:1", 1);

    let table = place.run(["ls"]).ok().out();
    assert!(table.starts_with("NAME"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("job:1") && line.contains("the nightly job")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("other") && line.contains("1 of 2")), "{table}");
    assert!(table.ends_with(&format!("\n2 locks on {}\n", place.engine())), "{table}");
    let list = parsed(&place.run(["ls", "--json", "job:"]).ok().out());
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["name"], &list[0]["engine"]), (&json!("job:1"), &json!(place.engine())));

    let shown = place.show("job:1");
    let party = &shown["holders"][0];
    assert_eq!((&shown["state"], &party["mode"], &party["token"]), (&json!("held"), &json!("exclusive"), &json!(1)));
    assert_eq!(party["pid"], json!(holder.pid().as_raw_nonzero().get()));
    assert_eq!((&party["text"], &party["program"]), (&json!("the nightly job"), &json!("leasehold")));
    assert!(party["age_seconds"].as_f64().unwrap() >= 0.0 && party["left_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(party["claim"].as_str().unwrap().len(), 8);
    assert_eq!(shown["waiters"][0]["pid"], json!(waiter.pid().as_raw_nonzero().get()));
    let text = place.run(["show", "job:1"]).ok().out();
    for part in [
        &format!("engine      {}\n", place.engine()),
        "held (exclusive)",
        "last token  1",
        "HOLDER",
        "WAITER",
        "the nightly job",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    holder.finish().ok();
    waiter.end().ok();
    assert!(place.run(["show", "job:1"]).ok().out().contains("state       free"));
}

#[test]
fn looking_makes_no_folder() {
    let place = Place::new();
    std::fs::create_dir(place.path("other")).unwrap();
    let here = place.dir.path().display();
    for folder in ["locks", "mistyped/deep", "other"] {
        let url = format!("file://{here}/{folder}");
        let listed = place.run(["ls", "--engine", &url]).ok();
        assert!(listed.err().contains(&format!("{here}/{folder} has no locks")), "{}", listed.err());
        place.run(["show", "--engine", &url, "a"]).ok();
        place.run(["evict", "--yes", "--engine", &url, "a"]).failed(1, "nothing was made");
        place.run(["cron", "status", "--engine", &url]).ok();
    }
    assert!(!place.path("locks").exists() && !place.path("mistyped").exists());
    assert_eq!(std::fs::read_dir(place.path("other")).unwrap().count(), 0);
}

#[test]
fn evict_needs_a_yes_and_says_what_it_did() {
    let place = Place::new();
    place.run(["evict", "--yes", "a"]).failed(1, "nobody holds it").failed(1, &format!("a on {}: ", place.engine()));
    assert_eq!(parsed(&place.run(["evict", "--yes", "--json", "a"]).out())["evicted"], json!([]));
    let holder = place.hold(&["--on-lost", "ignore"], "a");
    place.run(["evict", "a"]).failed(64, "--yes");
    place.run(["evict", "--yes", "--token", "99", "a"]).failed(1, "nobody who holds it is meant");
    place.run(["evict", "--yes", "--claim", "zzzz", "a"]).failed(1, "nobody who holds it is meant");
    assert_eq!(place.holders("a"), 1);
    let done = parsed(&place.run(["evict", "--yes", "--json", "--token", "1", "a"]).ok().out());
    assert_eq!((&done["fence_token"], &done["evicted"][0]["token"]), (&json!(2), &json!(1)));
    assert_eq!(done["engine"], json!(place.engine()));
    assert_eq!(place.holders("a"), 0);
    holder.finish().ok();
    // The next grant's token is above the fence token.
    assert_eq!(place.run(["run", "a", "-c", "echo $LEASEHOLD_TOKEN"]).ok().out(), "3\n");
}

#[test]
fn evict_can_name_one_of_many_and_a_waiter() {
    let place = Place::new();
    let one = place.hold(&["-s", "--on-lost", "ignore"], "a");
    let two = place.hold(&["-s", "--on-lost", "ignore"], "a");
    let waiter = place.start(["run", "a", "--", "true"]);
    place.wait_for_waiters("a", 1);
    let claim = place.show("a")["holders"][0]["claim"].as_str().unwrap().to_owned();
    // The other holder has the next token: there is no number in between.
    let said = place.run(["evict", "--yes", "--claim", &claim, "a"]).ok().out();
    assert!(said.contains("no fence token"), "{said}");
    assert_eq!((place.holders("a"), place.waiters("a")), (1, 1));
    let said = place.run(["evict", "--yes", "a"]).ok().out();
    assert!(said.contains("fence token 3:"), "{said}");
    waiter.end().ok();
    one.finish().ok();
    two.finish().ok();
}

/// An evicted waiter ends, and does not run later; no fence token is printed that would refuse the
/// holder.
#[test]
fn an_evicted_waiter_ends_with_75_and_does_not_run() {
    let place = Place::new();
    let holder = place.hold(&[], "a");
    let waiter = place.start(["run", "a", "-c", "echo > ran"]);
    place.wait_for_waiters("a", 1);
    let claim = place.show("a")["waiters"][0]["claim"].as_str().unwrap().to_owned();
    let done = parsed(&place.run(["evict", "--yes", "--json", "--claim", &claim, "a"]).ok().out());
    assert_eq!((&done["fence_token"], &done["evicted"][0]["token"]), (&json!(null), &json!(null)), "{done}");
    waiter.end().failed(75, "evicted");
    assert_eq!((place.holders("a"), place.waiters("a")), (1, 0));
    holder.finish().ok();
    assert!(!place.path("ran").exists());
}

/// An unset shell variable is not a claim.
#[test]
fn an_empty_claim_evicts_nobody() {
    let place = Place::new();
    let holder = place.hold(&[], "a");
    for empty in ["", " "] {
        place.run(["evict", "--yes", "--claim", empty, "a"]).failed(64, "--claim is empty");
    }
    assert_eq!(place.holders("a"), 1);
    holder.finish().ok();
}

#[test]
fn engines_lists_all_that_there_are() {
    let place = Place::new();
    let table = place.run(["engines"]).ok().out();
    assert!(table.contains("memory:") && table.contains("file:") && table.contains("survives"), "{table}");
    let list = parsed(&place.run(["engines", "--json"]).ok().out());
    let file = list.as_array().unwrap().iter().find(|engine| engine["scheme"] == json!("file")).unwrap();
    assert_eq!((&file["in_this_build"], &file["capabilities"]["fairness"]), (&json!(true), &json!("fifo")));
    assert_eq!(file["techniques"], json!([]));
    for scheme in ["mysql", "postgres"] {
        assert!(table.contains("?technique=for-update") && table.contains("?technique=session"), "{table}");
        let engine = list.as_array().unwrap().iter().find(|engine| engine["scheme"] == json!(scheme)).unwrap();
        let ways = engine["techniques"].as_array().unwrap();
        let named: Vec<_> = ways.iter().map(|way| way["technique"].as_str().unwrap()).collect();
        assert_eq!(named, ["row", "for-update", "session"]);
        assert_eq!(ways[0]["capabilities"], engine["capabilities"], "{scheme}: row is the engine itself");
        for way in &ways[1..] {
            let can = &way["capabilities"];
            assert_eq!((&can["fairness"], &can["expiry"]), (&json!("none"), &json!("lease-or-death")), "{can}");
            assert!(can["breaks"].as_str().unwrap().contains("session that the server ends"), "{can}");
        }
    }
}

#[test]
fn completions_and_manual_pages() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.run(["completions", shell]).ok().out().contains("on-lost"), "{shell}");
    }
    let script = place.run(["completions", "bash"]).ok().out();
    assert!(script.contains("mutex reentrant rwlock"), "the workloads of verify, and no files");
    let page = place.run(["man"]).ok().out();
    for part in
        [".TH leasehold 1", "LEASEHOLD RUN", "LEASEHOLD EVICT", "LEASEHOLD CRON STATUS", "EXIT CODES", "on\\-lost"]
    {
        assert!(page.contains(part), "{part}");
    }
    place.run(["man", "--dir", "pages"]).ok();
    for name in [
        "leasehold",
        "leasehold-run",
        "leasehold-ls",
        "leasehold-show",
        "leasehold-evict",
        "leasehold-doctor",
        "leasehold-engines",
        "leasehold-cron",
        "leasehold-cron-status",
    ] {
        assert!(place.read(&format!("pages/{name}.1")).contains(".TH"), "{name}");
    }
    let help = place.run(["run", "--help"]).ok().out();
    assert!(help.contains("mysql://user:password@host"), "an example is no secret: {help}");
    place.run(["man", "--dir", "/proc/pages"]).failed(74, "/proc/pages");
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let place = Place::new();
    // So that `ls` and `show` print nothing about a missing folder.
    place.run(["run", "a", "--", "true"]).ok();
    for args in [
        &["ls"][..],
        &["engines"],
        &["engines", "--json"],
        &["show", "a"],
        &["doctor"],
        &["man"],
        &["--help"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.leasehold(args);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place.leasehold(["engines"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    // A closed standard error is no problem, either.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = place.leasehold(["run", "-v", "a", "-c", "exit 5"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(5));
}

#[test]
fn a_password_in_the_url_is_never_shown() {
    let place = Place::new();
    for url in
        ["redis://u:hunter2@h/0?password=hunter2", "file://u:hunter2@h/x", "hunter2://u:x@h", "x y://u:hunter2@h"]
    {
        for args in [
            vec!["run", "a", "--", "true"],
            vec!["run", "--json", "-v", "a", "--", "true"],
            vec!["run", "--help"],
            vec!["ls"],
            vec!["show", "a"],
            vec!["evict", "--yes", "a"],
            vec!["doctor"],
            vec!["doctor", "--json"],
            vec!["engines", url],
            vec!["run", "-w", url, "a", "--", "true"],
            vec![url],
        ] {
            let output =
                place.leasehold(&args).env("LEASEHOLD_ENGINE", url).env("LEASEHOLD_LOG", "trace").output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let said = said.replace("hunter2:", "scheme:");
            assert!(!said.contains("hunter2"), "{args:?} with {url}: {said}");
        }
    }
}

#[test]
fn text_of_others_does_not_steer_the_terminal() {
    let place = Place::new();
    let _holder = place.start(["run", "n\u{202e}ame", "--", "sh", "-c", "read x # \u{1b}[2J\u{7}\u{9b}"]);
    let list = wait_for("a holder", || Some(place.run(["ls"]).ok().out()).filter(|list| list.contains("HOLDER")));
    let shown = [list, place.run(["ls", "--json"]).ok().out(), place.run(["show", "n\u{202e}ame"]).ok().out()];
    for text in shown {
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{text:?}");
    }
}
