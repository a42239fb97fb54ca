//! Counts the lines of Rust and Lua in the tree: without tests, comments and blank lines. The peers
//! of the benches, which are other projects' locks, do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{TaskResult, print_line};

/// Prints the lines of each crate, and their sum.
pub(crate) fn print_lines(root: &Path) -> TaskResult {
    let listed = Command::new("git").args(["ls-files", "*.rs", "*.lua"]).current_dir(root).output()?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in String::from_utf8(listed.stdout)?.lines().filter(|path| !is_test_or_peer(path)) {
        let text = fs::read_to_string(root.join(path))?;
        let lines = if path.ends_with(".lua") { count_lua(&text) } else { count_rust(&text) };
        *counts.entry(crate_of(path)).or_default() += lines;
    }
    for (name, lines) in &counts {
        print_line(&format!("{lines:>7}  {name}"));
    }
    print_line(&format!("{:>7}  in all", counts.values().sum::<usize>()));
    Ok(())
}

/// The crate's folder: `crates/leasehold`, `bench`.
fn crate_of(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

fn is_test_or_peer(path: &str) -> bool {
    let is_test_file = path.ends_with("tests.rs") || path.ends_with("/simulation.rs");
    is_test_file || ["/tests/", "/peers/", "/simulation/"].iter().any(|folder| path.contains(folder))
}

fn count_lua(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--")).count()
}

fn count_rust(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test") {
            skip_item(&mut lines);
        } else if !line.is_empty() && !line.starts_with("//") {
            count += 1;
        }
    }
    count
}

/// Skips an item: up to its `;`, or to the brace that ends it.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut depth = 0;
    for line in lines {
        let braces = |brace: char| i32::try_from(line.matches(brace).count()).unwrap_or(i32::MAX);
        depth += braces('{') - braces('}');
        let is_end = depth == 0 && (line.contains('}') || line.ends_with(';'));
        if is_end && !line.starts_with("#[") {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_do_not_count() {
        let text = "//! A page.\n\nuse a;\n/// A doc.\nfn b() {\n    c(); // as d\n}\n\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\n\
                    mod more {\n    fn e() {}\n}\nfn f() {}\n";
        assert_eq!(count_rust(text), 5);
        assert_eq!(count_lua("-- A script.\nlocal a = 1\n\nreturn a\n"), 2);
        assert!(is_test_or_peer("crates/a/src/tests.rs") && is_test_or_peer("bench/peers/x/main.rs"));
        assert_eq!((crate_of("crates/a/src/b.rs"), crate_of("bench/src/b.rs")), ("crates/a".into(), "bench".into()));
    }
}
