//! Every example, on the engine without a server: it prints the expected output, exits with 0, and
//! removes its files.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// All examples. Each has a test below.
const EXAMPLES: [&str; 7] = ["cache", "fenced_store", "flash_sale", "fleet_job", "leader", "slots", "ten_lines"];

fn binary(name: &str) -> &'static str {
    match name {
        "cache" => env!("CARGO_BIN_EXE_cache"),
        "fenced_store" => env!("CARGO_BIN_EXE_fenced_store"),
        "flash_sale" => env!("CARGO_BIN_EXE_flash_sale"),
        "fleet_job" => env!("CARGO_BIN_EXE_fleet_job"),
        "leader" => env!("CARGO_BIN_EXE_leader"),
        "slots" => env!("CARGO_BIN_EXE_slots"),
        "ten_lines" => env!("CARGO_BIN_EXE_ten_lines"),
        _ => panic!("there is no example {name}"),
    }
}

struct ExampleOutput {
    code: Option<i32>,
    text: String,
    errors: String,
    /// The number of files left in its temporary folder.
    files_left: usize,
}

fn run(name: &str, arguments: &[&str]) -> ExampleOutput {
    let folder = tempfile::tempdir().unwrap();
    let Output { status, stdout, stderr } =
        Command::new(binary(name)).args(arguments).env("TMPDIR", folder.path()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    ExampleOutput { code: status.code(), text: text(stdout), errors: text(stderr), files_left: left }
}

/// Runs an example as a reader would, and returns its output.
fn run_and_show(name: &str, words: &[&str]) -> String {
    let ExampleOutput { code, text, errors, files_left: left } = run(name, words);
    assert_eq!((code, left, errors.as_str()), (Some(0), 0, ""), "{name} printed\n{text}");
    text
}

/// The words after the prefix, from the line that starts with it.
fn row_after<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin));
    rest.unwrap_or_else(|| panic!("no line begins with {begin:?}:\n{text}")).split_whitespace().collect()
}

fn parse_number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}

#[test]
fn every_example_has_a_test() {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let names: BTreeSet<String> = manifest
        .split("[[bin]]\n")
        .skip(1)
        .map(|bin| bin.split('"').nth(1).expect("a program has a name").to_owned())
        .collect();
    assert_eq!(names, EXAMPLES.map(str::to_owned).into(), "an example without a test, or a test without an example");
}

#[test]
fn ten_lines() {
    let text = run_and_show("ten_lines", &[]);
    assert!(text.contains("another client at the same time: None"), "{text}");
    assert!(text.contains("released: Released"), "{text}");
}

#[test]
fn flash_sale() {
    let text = run_and_show("flash_sale", &[]);
    for technique in ["lock", "fence", "version"] {
        assert_eq!(row_after(&text, technique)[..2], ["100", "0"], "{technique} sold exactly the stock:\n{text}");
    }
    assert!(parse_number(row_after(&text, "none")[0]) > 100, "without a lock too much is sold:\n{text}");
    assert!(text.contains("too many"), "{text}");
}

#[test]
fn flash_sale_as_json() {
    let text = run_and_show("flash_sale", &["--json", "--buyers", "20", "--items", "50", "--engine", "memory:"]);
    let sale: serde_json::Value = serde_json::from_str(&text).unwrap();
    let techniques = sale["techniques"].as_array().unwrap();
    assert_eq!(techniques.len(), 4, "{text}");
    for sold in techniques.iter().filter(|sold| sold["technique"] != "none") {
        assert_eq!((sold["sold"].as_u64(), sold["left"].as_i64()), (Some(20), Some(30)), "{text}");
    }
}

#[test]
fn fleet_job() {
    let text = run_and_show("fleet_job", &[]);
    let scheduled = row_after(&text, "leasehold_schedule");
    assert_eq!(scheduled[0], scheduled[1], "each tick once:\n{text}");
    let ticks = parse_number(scheduled[0]);
    assert!(ticks >= 5, "{text}");
    assert_eq!(text.matches("sends the message").count() as u64, ticks, "{text}");
    assert_eq!(row_after(&text, "each host by its own timer"), ["5", "40"], "{text}");
}

#[test]
fn leader() {
    let text = run_and_show("leader", &[]);
    let options: Vec<Vec<&str>> = ["   1 ", "   2 ", "   3 "].map(|term| row_after(&text, term)).into();
    let leaders: BTreeSet<&str> = options.iter().map(|term| term[0]).collect();
    assert_eq!(leaders.len(), 3, "each led once:\n{text}");
    assert!(options.windows(2).all(|pair| parse_number(pair[0][1]) < parse_number(pair[1][1])), "tokens rise:\n{text}");
    assert!(options[1].contains(&"killed") && text.contains("SIGKILL"), "{text}");
}

#[test]
fn slots() {
    let text = run_and_show("slots", &[]);
    assert!(text.contains("at most 3 of 12 inside at once"), "all slots are used, and no more:\n{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("worker")).count(), 24, "{text}");
}

#[test]
fn fenced_store() {
    let text = run_and_show("fenced_store", &[]);
    for store in ["the bucket", "the table"] {
        assert_eq!(row_after(&text, store), ["6", "9"], "{text}");
        assert!(text.contains(&format!("slow writes 9 to {store} with token 1: REFUSED, token 1 is stale")), "{text}");
    }
}

#[test]
fn cache() {
    let text = run_and_show("cache", &["--seconds", "0.2"]);
    assert_eq!(row_after(&text, "leasehold, strong, write through")[1], "0.0", "{text}");
    assert!(text.contains("not in the cache: 1 load"), "{text}");
}

#[test]
fn every_example_prints_its_help() {
    for name in EXAMPLES {
        // It has no arguments.
        if name == "ten_lines" {
            continue;
        }
        let help = run_and_show(name, &["--help"]);
        assert!(help.starts_with(name) && help.contains("--engine URL"), "{help}");
        let wrong = run(name, &["--nonsense"]);
        assert_eq!((wrong.code, wrong.text.as_str()), (Some(64), ""), "{name}: {}", wrong.errors);
        assert!(wrong.errors.starts_with("\"--nonsense\" is no option\n"), "{name}: {}", wrong.errors);
        let nowhere = run(name, &["--engine", "nowhere:"]);
        assert_eq!((nowhere.code, nowhere.files_left), (Some(1), 0), "{name}: {}", nowhere.errors);
        assert!(nowhere.errors.contains("nowhere"), "{name}: {}", nowhere.errors);
    }
}
