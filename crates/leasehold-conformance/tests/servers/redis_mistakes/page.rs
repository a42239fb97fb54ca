//! Reads and updates the timelines in the docs page.

use std::fs;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/classic-mistakes.md");
const BLOCK_START: &str = "\n```text\n";
const BLOCK_END: &str = "\n```\n";

/// Reads the page.
pub(crate) fn read() -> String {
    fs::read_to_string(PAGE).expect("docs/classic-mistakes.md")
}

/// The headings of the timelines.
pub(crate) fn headings(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("## "))
}

/// The name of the test for a heading.
pub(crate) fn test_name(heading: &str) -> String {
    let words = heading.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

/// The position of the timeline under a heading.
fn timeline_range(page: &str, heading: &str) -> std::ops::Range<usize> {
    let title = format!("\n## {heading}\n");
    let section = page.find(&title).map(|at| at + title.len());
    let section = section.unwrap_or_else(|| panic!("docs/classic-mistakes.md has no section `## {heading}`"));
    let next = page[section..].find("\n## ").map_or(page.len(), |length| section + length);
    let from =
        page[section..next].find(BLOCK_START).map(|at| section + at + BLOCK_START.len()).expect("a block ```text");
    // An empty block ends with the line feed that began it.
    let length = page[from - 1..next].find(BLOCK_END).expect("the end of the block");
    from..(from - 1 + length).max(from)
}

/// Fails if the timeline on the page differs from `lines` (numbers aside), or rewrites it if
/// `UPDATE_PAGE` is set.
pub(crate) fn compare(heading: &str, lines: &[String]) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut page = read();
    let (place, steps) = (timeline_range(&page, heading), lines.join("\n"));
    if std::env::var_os("UPDATE_PAGE").is_some() {
        let end = if place.is_empty() { "\n" } else { "" };
        page.replace_range(place, &(steps + end));
        fs::write(PAGE, page).expect("the page");
        return;
    }
    let shown = without_numbers(&page[place]);
    assert_eq!(
        without_numbers(&steps),
        shown,
        "left: this run; right: docs/classic-mistakes.md. If this run is right, update the page: \
         UPDATE_PAGE=1 cargo test --package leasehold-conformance --test servers --features nightly redis_mistakes"
    );
}

/// Masks the ports, tokens, times and counts that differ between runs.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for letter in text.trim_end().chars() {
        match letter {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            other => out.push(other),
        }
    }
    out
}
