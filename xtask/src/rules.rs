//! The rule about time: no test asserts how long something took. Tests count operations instead;
//! see `CONTRIBUTING.md`.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// Code that shows that a function's clock stands still unless the test advances it.
const STILL: [&str; 3] = ["start_paused", "ManualClock::new()", "advance_in_steps(&"];

/// The name of the time limit of all waits, which only a test that hangs reaches.
const BOUND: &str = "TEST_TIMEOUT";

/// The call that returns the time since an instant, which is its argument.
const SINCE: &str = "duration_since(";

/// In virtual time every duration is exact, so the tests in these folders may assert durations.
const VIRTUAL_TIME: [&str; 2] = ["simulation", "scripted_server_tests"];

/// All sources with tests: test folders, and modules beside the code.
fn test_sources(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let mut folders = ["crates", "examples", "bench/src"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            // No clock runs in `logic`: its tests use artificial instants.
            if path.is_dir() && !path.ends_with("src/logic") {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                all.push(path);
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Fails if any assertion bounds how long something took; lists them all.
pub(crate) fn check_time_assertions(root: &Path) -> TaskResult {
    let mut found = Vec::new();
    // If the code no longer has one of these words, the check finds nothing and must be updated.
    let mut unseen = [&STILL[..], &[BOUND, SINCE], &VIRTUAL_TIME].concat();
    for path in test_sources(root)? {
        let text = fs::read_to_string(&path)?;
        unseen.retain(|word| !text.contains(word) && !path.iter().any(|part| part == *word));
        if has_virtual_time(&path) {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        found.extend(find_timed_assertions(&text).into_iter().map(|(line, what)| format!("  {shown}:{line}: {what}")));
    }
    if !unseen.is_empty() {
        return Err(format!("xtask/src/rules.rs looks for words that no source has: {}", unseen.join(", ")).into());
    }
    if found.is_empty() {
        return Ok(());
    }
    let rule = "tests must not assert how long something took (CONTRIBUTING.md, \"Time in tests\"): count requests, or move a clock";
    Err(format!("{rule}\n{}", found.join("\n")).into())
}

fn has_virtual_time(path: &Path) -> bool {
    path.iter().any(|part| VIRTUAL_TIME.iter().any(|folder| part == *folder))
}

/// The assertions about elapsed time, and the polls with a time limit: their line numbers and text.
/// A test whose clock stands still may assert durations; the others beside it may not.
fn find_timed_assertions(text: &str) -> Vec<(usize, String)> {
    let functions = functions(text);
    let bound = elapsed_bindings(text);
    let is_time = |at: usize, condition: &str| {
        let here = function_at(&functions, at).unwrap_or(0..text.len());
        let names = bound.iter().filter(|(from, _)| here.contains(from) && *from < at);
        is_elapsed(condition) || names.into_iter().any(|(_, name)| has_word(condition, name))
    };
    let mut found = Vec::new();
    for (at, _) in text.match_indices("assert") {
        let Some(body) = assertion_body(&text[at..]) else { continue };
        let condition = assertion_condition(body);
        let here = function_at(&functions, at).unwrap_or(0..text.len());
        let is_shortened = condition.contains('>') && is_reduced_bound(&text[here.start..at], condition);
        if is_time(at, condition) && (condition.contains('<') || is_shortened) {
            found.push((at, body));
        }
    }
    found.extend(limited(text, is_time));
    let is_still = |here: Range<usize>| STILL.iter().any(|word| text[here.clone()].contains(word));
    found.retain(|(at, _)| !function_at(&functions, *at).is_some_and(is_still));
    found.sort_unstable();
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    found.iter().map(|(at, code)| (line(*at), code.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// All functions with their attributes, as rustfmt writes them: each ends at a brace below its
/// first line.
fn functions(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut at, mut attributes) = (Vec::new(), 0, None);
    for line in text.split_inclusive('\n') {
        let code = line.trim_start();
        if code.starts_with("#[") {
            attributes.get_or_insert(at);
        } else if is_function(code) {
            let start = attributes.take().unwrap_or(at);
            let brace = format!("\n{}}}", &line[..line.len() - code.len()]);
            let is_one_line = code.trim_end().ends_with(['}', ';']);
            let length =
                if is_one_line { Some(line.len()) } else { text[at..].find(&brace).map(|end| end + brace.len()) };
            found.push(start..length.map_or(text.len(), |length| at + length));
        } else if !code.starts_with("//") {
            attributes = None;
        }
        at += line.len();
    }
    found
}

fn is_function(line: &str) -> bool {
    let before = line.split(['(', '<']).next().unwrap_or_default();
    let words = line.strip_prefix("pub(").and_then(|rest| rest.split_once(')')).map_or(before, |(_, rest)| rest);
    let mut words = words.split_whitespace();
    words.find(|word| !matches!(*word, "pub" | "async" | "const" | "unsafe")) == Some("fn")
}

/// The innermost function around a position.
fn function_at(functions: &[Range<usize>], at: usize) -> Option<Range<usize>> {
    functions.iter().rfind(|range| range.contains(&at)).cloned()
}

/// Whether an expression measures the time since some moment. The time until a deadline,
/// `deadline.duration_since(now())`, is none: a slow machine makes it shorter.
fn is_elapsed(code: &str) -> bool {
    let is_left = |rest: &str| {
        let argument = body_of_call(rest).unwrap_or(rest);
        argument.ends_with("now()") || matches!(argument, "now" | "*now")
    };
    code.contains("elapsed()") || code.match_indices(SINCE).any(|(at, _)| !is_left(&code[at + SINCE.len() - 1..]))
}

/// Whether a lower bound is reduced by a guess at the clocks' precision: then it proves nothing.
/// `before` is its function up to the assertion, which binds its names.
fn is_reduced_bound(before: &str, condition: &str) -> bool {
    let bound = before.match_indices("let ").filter_map(|(at, _)| before[at + 4..].split(';').next()?.split_once('='));
    condition.contains(" - ")
        || bound.filter(|(_, value)| value.contains(" - ")).any(|(name, _)| has_word(condition, name.trim()))
}

/// Time-limited checks, `if x.elapsed() > … { Ok(…) } else { Err(…) }`, and assertions in other
/// words, `if x.elapsed() > … { panic!(…) }`: they hold only on a fast machine. The one bound of
/// all waits is no such limit.
fn limited(text: &str, is_time: impl Fn(usize, &str) -> bool) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("if ") {
        let Some((condition, then)) = text[at..].split_once('{') else { continue };
        let then = then.trim_start();
        let is_watch = then.starts_with("Ok(") && is_elapsed(condition);
        let is_panic = ["panic!", "unreachable!"].iter().any(|end| then.starts_with(end));
        let is_assertion = is_panic && !has_word(condition, BOUND);
        let is_limit = is_assertion && condition.contains(['<', '>']) && is_time(at, condition);
        if (is_watch || is_limit) && !condition.contains(';') {
            found.push((at, condition));
        }
    }
    found
}

/// The names bound by `let NAME = ….elapsed()…;` or `let NAME = ….duration_since(…)…;`, and their
/// positions.
fn elapsed_bindings(text: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("let ") {
        let statement = text[at..].split(';').next().unwrap_or_default();
        let Some((name, value)) = statement[4..].split_once('=') else { continue };
        let name = name.split(':').next().unwrap_or_default().trim().trim_start_matches("mut ");
        if is_elapsed(value) && !value.contains('{') && name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            names.push((at, name.to_owned()));
        }
    }
    names
}

/// The text between the parentheses of `assert…!(…)`.
fn assertion_body(text: &str) -> Option<&str> {
    let open = text.find('(')?;
    let name = text[..open].strip_suffix('!')?;
    if !matches!(name, "assert" | "assert_eq" | "assert_ne") {
        return None;
    }
    body_of_call(&text[open..])
}

/// The text between the first parenthesis and the one that closes it.
fn body_of_call(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(&text[1..at]),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// An assertion without its message, which may print a time.
fn assertion_condition(body: &str) -> &str {
    body.split('"').next().unwrap_or(body)
}

/// Whether `text` contains `word` as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|part| part == word)
}

#[cfg(test)]
mod tests;
