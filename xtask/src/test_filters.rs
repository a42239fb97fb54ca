//! The commands in the pages that run tests, such as `cargo test -p leasehold --lib backoff::`: each filter matches
//! a test of its crate. In the column `reproduce` of `docs/defects.md`, other names of tests match a test of any
//! crate. A command without `-p` is not checked.

mod names;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use self::names::Test;
use crate::{TaskResult, links};

/// Fails with every filter that matches no test.
pub(crate) fn check_test_filters(root: &Path) -> TaskResult {
    let (tests, mut wrong) = (names::read_tests(root)?, Vec::new());
    for page in links::markdown_pages(root)? {
        let text = fs::read_to_string(&page)?;
        let shown = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        let mut found = unmatched_commands(&text, &tests);
        if page.ends_with("docs/defects.md") {
            found.extend(unknown_names(&text, &tests));
        }
        wrong.extend(found.into_iter().map(|(line, reason)| format!("  {shown}:{line}: {reason}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("filters that match no test\n{}", wrong.join("\n")).into()) }
}

/// The commands of a page that run no test: line and reason.
fn unmatched_commands(page: &str, tests: &BTreeMap<String, Vec<Test>>) -> Vec<(usize, String)> {
    let commands = page.match_indices("cargo test ").filter_map(|(at, _)| {
        // A command between backticks may continue on the next line.
        let before = page[..at].rsplit('\n').next().unwrap_or_default();
        let end = if before.matches('`').count() % 2 == 1 { '`' } else { '\n' };
        let reason = unmatched_reason(page[at..].split(end).next()?, tests)?;
        Some((page[..at].matches('\n').count() + 1, reason))
    });
    commands.collect()
}

/// Why a command runs no test, if it runs none.
fn unmatched_reason(command: &str, tests: &BTreeMap<String, Vec<Test>>) -> Option<String> {
    let (mut package, mut program, mut filter, mut has_nightly) = (None, None, "", false);
    let mut words = command.split_whitespace().skip(2);
    while let Some(word) = words.next() {
        match word {
            "-p" | "--package" => package = words.next(),
            "--test" => program = words.next(),
            "--bin" => program = words.next().and(Some("bin")),
            "--lib" => program = Some("lib"),
            "--features" => has_nightly |= words.next().is_some_and(|features| features.contains("nightly")),
            "--all-features" => has_nightly = true,
            "--" | "#" => break,
            // `…` stands for any filter.
            _ if word.starts_with('-') || word == "…" => {}
            _ => filter = word,
        }
    }
    let package = package?;
    let Some(tests) = tests.get(package) else { return Some(format!("no crate {package}")) };
    let of_program = tests.iter().filter(|test| program.is_none_or(|program| test.program == program));
    let mut matched = of_program.filter(|test| test.name.contains(filter)).peekable();
    if matched.peek().is_none() {
        return Some(format!("`{filter}` matches no test of {package}, {}", program.unwrap_or("all programs")));
    }
    let is_left_out = !has_nightly && matched.all(|test| test.needs_nightly);
    is_left_out.then(|| format!("`{filter}` matches only tests with `--features nightly`"))
}

/// The names in the third column of a table that are no test's: line and reason.
fn unknown_names(page: &str, tests: &BTreeMap<String, Vec<Test>>) -> Vec<(usize, String)> {
    let rows = page.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
    let cells = rows.filter_map(|(at, row)| Some((at + 1, row.split(" | ").nth(2)?)));
    let names = cells.flat_map(|(line, cell)| cell.split('`').skip(1).step_by(2).map(move |code| (line, code)));
    let is_known = |name: &str| tests.values().flatten().any(|test| test.name.contains(name));
    let unknown = names.filter(|(_, code)| is_test_name(code) && !is_known(code));
    unknown.map(|(line, name)| (line, format!("`{name}` matches no test of any crate"))).collect()
}

/// Whether code is a test's name or a part of one. Options and variables have fewer words.
fn is_test_name(code: &str) -> bool {
    let is_path = code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':'));
    is_path && (code.contains("::") || code.matches('_').count() > 2)
}

#[cfg(test)]
mod tests;
