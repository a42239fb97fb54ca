//! `ls`, `show`, `evict`, `engines`, `completions`, `man`, and secrets that must never be printed.

use std::process::Stdio;

use crate::common::{TestFolder, wait_for};
use serde_json::{Value, json};

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn ls_and_show_list_holders_and_waiters() {
    let place = TestFolder::new();
    assert_eq!(place.run(["ls"]).assert_ok().stdout(), format!("no locks held or awaited on {}\n", place.engine()));
    assert_eq!(parse_json(&place.run(["ls", "--json"]).assert_ok().stdout()), json!([]));
    let holder = place.start_holder(&["--describe", "the nightly job"], "job:1");
    let _other = place.start_holder(&["--slots", "2"], "other");
    let waiter = place.start(["run", "job:1", "--", "true"]);
    place.wait_for_waiters("job:1", 1);

    let table = place.run(["ls"]).assert_ok().stdout();
    assert!(table.starts_with("NAME"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("job:1") && line.contains("the nightly job")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("other") && line.contains("1 of 2")), "{table}");
    assert!(table.ends_with(&format!("\n2 locks on {}\n", place.engine())), "{table}");
    let list = parse_json(&place.run(["ls", "--json", "job:"]).assert_ok().stdout());
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["name"], &list[0]["engine"]), (&json!("job:1"), &json!(place.engine())));

    let shown = place.show_json("job:1");
    let contender = &shown["holders"][0];
    assert_eq!(
        (&shown["state"], &contender["mode"], &contender["token"]),
        (&json!("held"), &json!("exclusive"), &json!(1))
    );
    assert_eq!(contender["pid"], json!(holder.pid().as_raw_nonzero().get()));
    assert_eq!((&contender["text"], &contender["program"]), (&json!("the nightly job"), &json!("leasehold")));
    assert!(contender["age_seconds"].as_f64().unwrap() >= 0.0 && contender["left_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(contender["claim"].as_str().unwrap().len(), 8);
    assert_eq!(shown["waiters"][0]["pid"], json!(waiter.pid().as_raw_nonzero().get()));
    let text = place.run(["show", "job:1"]).assert_ok().stdout();
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
    holder.close_input_and_wait().assert_ok();
    waiter.wait().assert_ok();
    assert!(place.run(["show", "job:1"]).assert_ok().stdout().contains("state       free"));
}

#[test]
fn inspection_creates_no_folder() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("other")).unwrap();
    let here = place.dir.path().display();
    for folder in ["locks", "mistyped/deep", "other"] {
        let url = format!("file://{here}/{folder}");
        let listed = place.run(["ls", "--engine", &url]).assert_ok();
        assert!(listed.stderr().contains(&format!("{here}/{folder} has no locks")), "{}", listed.stderr());
        place.run(["show", "--engine", &url, "a"]).assert_ok();
        place.run(["evict", "--yes", "--engine", &url, "a"]).assert_failed(1, "this command did not create it");
        place.run(["cron", "status", "--engine", &url]).assert_ok();
    }
    assert!(!place.path("locks").exists() && !place.path("mistyped").exists());
    assert_eq!(std::fs::read_dir(place.path("other")).unwrap().count(), 0);
}

#[test]
fn evict_needs_confirmation_and_reports_its_effect() {
    let place = TestFolder::new();
    place
        .run(["evict", "--yes", "a"])
        .assert_failed(1, "the lock has no holder")
        .assert_failed(1, &format!("a on {}: ", place.engine()));
    assert_eq!(parse_json(&place.run(["evict", "--yes", "--json", "a"]).stdout())["evicted"], json!([]));
    let holder = place.start_holder(&["--on-lost", "ignore"], "a");
    place.run(["evict", "a"]).assert_failed(64, "--yes");
    place.run(["evict", "--yes", "--token", "99", "a"]).assert_failed(1, "no holder matches");
    place.run(["evict", "--yes", "--claim", "zzzz", "a"]).assert_failed(64, "other characters than hexadecimal");
    place.run(["evict", "--yes", "--claim", "00000000000000", "a"]).assert_failed(1, "no holder matches");
    assert_eq!(place.holder_count("a"), 1);
    let done = parse_json(&place.run(["evict", "--yes", "--json", "--token", "1", "a"]).assert_ok().stdout());
    assert_eq!((&done["fence_token"], &done["evicted"][0]["token"]), (&json!(2), &json!(1)));
    assert_eq!(done["engine"], json!(place.engine()));
    assert_eq!(place.holder_count("a"), 0);
    holder.close_input_and_wait().assert_ok();
    // The next grant's token is above the fence token.
    assert_eq!(place.run(["run", "a", "-c", "echo $LEASEHOLD_TOKEN"]).assert_ok().stdout(), "3\n");
}

#[test]
fn evict_can_select_one_of_many_contenders() {
    let place = TestFolder::new();
    let one = place.start_holder(&["-s", "--on-lost", "ignore"], "a");
    let two = place.start_holder(&["-s", "--on-lost", "ignore"], "a");
    let waiter = place.start(["run", "a", "--", "true"]);
    place.wait_for_waiters("a", 1);
    let claim = place.show_json("a")["holders"][0]["claim"].as_str().unwrap().to_owned();
    // The other holder has the next token: there is no number in between.
    let output = place.run(["evict", "--yes", "--claim", &claim, "a"]).assert_ok().stdout();
    assert!(output.contains("no fence token"), "{output}");
    assert_eq!((place.holder_count("a"), place.waiter_count("a")), (1, 1));
    let output = place.run(["evict", "--yes", "a"]).assert_ok().stdout();
    assert!(output.contains("fence token 3:"), "{output}");
    waiter.wait().assert_ok();
    one.close_input_and_wait().assert_ok();
    two.close_input_and_wait().assert_ok();
}

/// A waiter that must give up ends, and does not run later; no fence token is printed, because it
/// would refuse the holder.
#[test]
fn a_force_released_waiter_ends_with_75_and_does_not_run() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    let waiter = place.start(["run", "a", "-c", "echo > ran"]);
    place.wait_for_waiters("a", 1);
    let claim = place.show_json("a")["waiters"][0]["claim"].as_str().unwrap().to_owned();
    let done = parse_json(&place.run(["evict", "--yes", "--json", "--claim", &claim, "a"]).assert_ok().stdout());
    assert_eq!((&done["fence_token"], &done["evicted"][0]["token"]), (&json!(null), &json!(null)), "{done}");
    waiter.wait().assert_failed(75, "force released");
    assert_eq!((place.holder_count("a"), place.waiter_count("a")), (1, 0));
    holder.close_input_and_wait().assert_ok();
    assert!(!place.path("ran").exists());
}

/// An empty --claim usually comes from an unset shell variable.
#[test]
fn an_empty_claim_is_refused() {
    let place = TestFolder::new();
    let holder = place.start_holder(&[], "a");
    for empty in ["", " ", "…", " … "] {
        place.run(["evict", "--yes", "--claim", empty, "a"]).assert_failed(64, "--claim is empty");
    }
    assert_eq!(place.holder_count("a"), 1);
    holder.close_input_and_wait().assert_ok();
}

#[test]
fn engines_lists_every_engine() {
    let place = TestFolder::new();
    let table = place.run(["engines"]).assert_ok().stdout();
    assert!(table.contains("memory:") && table.contains("file:") && table.contains("survives"), "{table}");
    let list = parse_json(&place.run(["engines", "--json"]).assert_ok().stdout());
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
    let place = TestFolder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.run(["completions", shell]).assert_ok().stdout().contains("on-lost"), "{shell}");
    }
    let script = place.run(["completions", "bash"]).assert_ok().stdout();
    assert!(script.contains("mutex reentrant rwlock"), "the workloads of verify, and no files");
    let page = place.run(["man"]).assert_ok().stdout();
    for part in
        [".TH leasehold 1", "LEASEHOLD RUN", "LEASEHOLD EVICT", "LEASEHOLD CRON STATUS", "EXIT CODES", "on\\-lost"]
    {
        assert!(page.contains(part), "{part}");
    }
    place.run(["man", "--dir", "pages"]).assert_ok();
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
    let help = place.run(["run", "--help"]).assert_ok().stdout();
    assert!(help.contains("mysql://user:password@host"), "an example is no secret: {help}");
    place.run(["man", "--dir", "/proc/pages"]).assert_failed(74, "/proc/pages");
}

#[test]
fn a_closed_pipe_causes_no_panic() {
    let place = TestFolder::new();
    // Creates the folder, so that `ls` and `show` print no message about a missing one.
    place.run(["run", "a", "--", "true"]).assert_ok();
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
        let mut command = place.command(args);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place.command(["engines"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    // A closed standard error is no problem, either.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = place.command(["run", "-v", "a", "-c", "exit 5"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(5));
}

#[test]
fn a_password_in_the_url_is_never_shown() {
    let place = TestFolder::new();
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
                place.command(&args).env("LEASEHOLD_ENGINE", url).env("LEASEHOLD_LOG", "trace").output().unwrap();
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let text = text.replace("hunter2:", "scheme:");
            assert!(!text.contains("hunter2"), "{args:?} with {url}: {text}");
        }
    }
}

#[test]
fn foreign_text_cannot_control_the_terminal() {
    let place = TestFolder::new();
    let _holder = place.start(["run", "n\u{202e}ame", "--", "sh", "-c", "read x # \u{1b}[2J\u{7}\u{9b}"]);
    let list =
        wait_for("a holder", || Some(place.run(["ls"]).assert_ok().stdout()).filter(|list| list.contains("HOLDER")));
    let shown = [
        list,
        place.run(["ls", "--json"]).assert_ok().stdout(),
        place.run(["show", "n\u{202e}ame"]).assert_ok().stdout(),
    ];
    for text in shown {
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{text:?}");
    }
}
