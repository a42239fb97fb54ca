//! The width of the documents: prose wraps at 100 columns. Tables, code, headings, generated parts,
//! and code spans or links that are too long for a line may be wider.

use std::fs;
use std::path::Path;

use crate::{TaskResult, links};

/// The columns of a line of prose.
const MAX_COLUMNS: usize = 100;

/// A line with a code span or a link of more columns may be longer, because neither is broken.
const MAX_SPAN: usize = 80;

/// Fails with every line of prose that is too long.
pub(crate) fn check_wrap(root: &Path) -> TaskResult {
    let (mut pages, mut found) = (links::markdown_pages(root)?, Vec::new());
    pages.extend(links::readmes(root)?);
    for page in pages {
        let text = fs::read_to_string(&page)?;
        let shown = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        let lines = long_lines(&text).into_iter();
        found.extend(lines.map(|(line, columns)| format!("  {shown}:{line}: {columns} columns")));
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("lines of prose with more than {MAX_COLUMNS} columns: wrap them\n{}", found.join("\n")).into())
}

/// The lines of prose that are too long: their numbers and columns.
fn long_lines(page: &str) -> Vec<(usize, usize)> {
    let (mut fence, mut is_generated, mut found) = (None, false, Vec::new());
    for (at, line) in page.lines().enumerate() {
        let text = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| text.starts_with(mark));
        if fence.is_some() || mark.is_some() {
            fence = match (fence, mark) {
                (None, mark) => mark,
                // A block ends with the mark that began it.
                (open, mark) if open == mark => None,
                (open, _) => open,
            };
            continue;
        }
        if let Some(name) = text.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            is_generated = page.contains(&format!("<!-- /{name} -->"));
        }
        let width = columns(line);
        if !is_generated && width > MAX_COLUMNS && is_prose(text) && longest_span(text) <= MAX_SPAN {
            found.push((at + 1, width));
        }
    }
    found
}

/// Whether a line outside code is not a table's, a heading, HTML or the definition of a link.
fn is_prose(text: &str) -> bool {
    let is_definition = text.starts_with('[') && text.split_once("]: ").is_some_and(|(name, _)| !name.contains(' '));
    !text.starts_with(['|', '#', '<']) && !is_definition
}

/// The columns of the longest code span or link in a line.
fn longest_span(text: &str) -> usize {
    let (mut rest, mut longest) = (text, 0);
    while let Some(start) = rest.find(['`', '[']) {
        rest = &rest[start..];
        let end = match rest.strip_prefix('`') {
            Some(span) => span.find('`').map(|end| end + 2),
            None => link_end(rest),
        };
        longest = longest.max(columns(&rest[..end.unwrap_or(0)]));
        rest = &rest[end.unwrap_or(1)..];
    }
    longest
}

/// Where the link ends with which a text begins, if it begins with one.
fn link_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let close = text.char_indices().find(|(_, c)| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let target = close.map(|(at, _)| at + 1).filter(|at| text[*at..].starts_with('('))?;
    text[target..].find(')').map(|end| target + end + 1)
}

/// The columns of a text: two for a Chinese character.
fn columns(text: &str) -> usize {
    text.chars().map(|c| 1 + usize::from(is_wide(c))).sum()
}

fn is_wide(c: char) -> bool {
    matches!(c, '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}'
        | '\u{ff00}'..='\u{ff60}' | '\u{ffe0}'..='\u{ffe6}' | '\u{20000}'..='\u{3fffd}')
}

#[cfg(test)]
mod tests {
    use super::{columns, long_lines, longest_span};

    /// A text of `count` columns.
    fn words(count: usize) -> String {
        "word ".repeat(count / 5) + &"w".repeat(count % 5)
    }

    #[test]
    fn a_long_line_of_prose_is_found_with_its_number() {
        let page = format!("# Title\n\n{}\n- {}\n", words(100), words(99));
        assert_eq!(long_lines(&page), [(4, 101)]);
    }

    #[test]
    fn tables_code_headings_and_generated_parts_may_be_wider() {
        let long = words(120);
        let page = format!(
            "# {long}\n| {long} |\n```text\n{long}\n~~~\n{long}\n```\n<!-- part -->\n{long}\n<!-- /part -->\n\
             [name]: {long}\n<!-- note -->\n{long}"
        );
        assert_eq!(long_lines(&page), [(13, 120)]);
    }

    #[test]
    fn only_a_long_span_may_exceed_the_limit() {
        let link = format!("[![{}](a.svg)](b.md)", words(70));
        let code = format!("the user needs `{}`,", words(90));
        assert_eq!(long_lines(&format!("{link} {link}\n{code}")), []);
        assert_eq!(longest_span("a `b c` [d [e] f](g) [h] `i"), 12);
        assert_eq!(long_lines(&format!("`a` [b](c) {}", words(100))).len(), 1);
    }

    #[test]
    fn a_chinese_character_has_two_columns() {
        assert_eq!(columns("锁 a。"), 6);
        assert_eq!(long_lines(&"锁".repeat(50)), []);
        assert_eq!(long_lines(&"锁".repeat(51)), [(1, 102)]);
    }
}
