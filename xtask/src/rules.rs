//! The rule about time: no test asserts how long something took. Tests count operations instead;
//! see `CONTRIBUTING.md`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Done;

/// All sources with tests: test folders, and modules beside the code.
fn sources(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let mut folders = vec![root.join("crates")];
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
pub(crate) fn no_time_in_assertions(root: &Path) -> Done {
    let mut found = Vec::new();
    for path in sources(root)? {
        let text = fs::read_to_string(&path)?;
        if is_virtual(&path, &text) {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        found.extend(timed(&text).into_iter().map(|(line, what)| format!("  {shown}:{line}: {what}")));
    }
    if found.is_empty() {
        return Ok(());
    }
    let rule = "tests must not assert how long something took (CONTRIBUTING.md, \"Time in tests\"): count requests, or move a clock";
    Err(format!("{rule}\n{}", found.join("\n")).into())
}

/// In virtual time every duration is exact, so these tests may assert durations.
fn is_virtual(path: &Path, text: &str) -> bool {
    let folders = ["simulation", "scripted"];
    path.components().any(|part| folders.iter().any(|folder| part.as_os_str() == *folder))
        || text.contains("start_paused")
}

/// The assertions about elapsed time, and the polls with a time limit: their line numbers and text.
fn timed(text: &str) -> Vec<(usize, String)> {
    let bound = bound_to_elapsed(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("assert") {
        let Some(body) = body_of_macro(&text[at..]) else { continue };
        let names_one =
            bound.iter().any(|(from, name)| *from < at && at - from < 4000 && has_word(condition(body), name));
        let is_time = ["elapsed()", ".since("].iter().any(|word| condition(body).contains(word)) || names_one;
        let is_shortened = condition(body).contains('>') && is_shortened(&text[..at], condition(body));
        if is_time && (condition(body).contains('<') || is_shortened) {
            let line = text[..at].matches('\n').count() + 1;
            found.push((line, body.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found.extend(watched(text));
    found.sort();
    found
}

/// Whether a lower bound is reduced by a guess at the clocks' precision: then it proves nothing.
/// `before` is the text before the assertion, which binds its names.
fn is_shortened(before: &str, condition: &str) -> bool {
    let here = before.rfind("\nasync fn ").or_else(|| before.rfind("\nfn ")).map_or(before, |at| &before[at..]);
    let bound = here.match_indices("let ").filter_map(|(at, _)| here[at + 4..].split(';').next()?.split_once('='));
    condition.contains(" - ")
        || bound.filter(|(_, value)| value.contains(" - ")).any(|(name, _)| has_word(condition, name.trim()))
}

/// Time-limited checks, `if x.elapsed() > … { Ok(…) } else { Err(…) }`: their assertion holds only
/// on a fast machine.
fn watched(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("if ") {
        let Some((condition, then)) = text[at..].split_once('{') else { continue };
        let ends_a_watch = then.trim_start().starts_with("Ok(") && condition.contains(".elapsed()");
        if ends_a_watch && !condition.contains(';') {
            let line = text[..at].matches('\n').count() + 1;
            found.push((line, condition.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// The names bound by `let NAME = ….elapsed()…;`, and their positions.
fn bound_to_elapsed(text: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("let ") {
        let statement = text[at..].split(';').next().unwrap_or_default();
        let Some((name, value)) = statement[4..].split_once('=') else { continue };
        let name = name.split(':').next().unwrap_or_default().trim().trim_start_matches("mut ");
        if value.contains(".elapsed()") && !value.contains('{') && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        {
            names.push((at, name.to_owned()));
        }
    }
    names
}

/// The text between the parentheses of `assert…!(…)`.
fn body_of_macro(text: &str) -> Option<&str> {
    let open = text.find('(')?;
    let name = text[..open].strip_suffix('!')?;
    if !matches!(name, "assert" | "assert_eq" | "assert_ne") {
        return None;
    }
    let mut depth = 0_usize;
    for (at, c) in text[open..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(&text[open + 1..open + at]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// An assertion without its message, which may print a time.
fn condition(body: &str) -> &str {
    body.split('"').next().unwrap_or(body)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::timed;

    #[test]
    fn elapsed_time_in_an_assertion_is_found() {
        let direct = "fn a() {\n    assert!(start.elapsed() < SOON, \"too slow\");\n}";
        assert_eq!(timed(direct), [(2, "start.elapsed() < SOON, \"too slow\"".to_owned())]);
        let named = "let took = start.elapsed();\nassert!(\n  took < SOON\n);";
        assert_eq!(timed(named), [(2, "took < SOON".to_owned())]);
        assert_eq!(timed("assert!(clock.now().since(start) <= BOUND);").len(), 1);
    }

    #[test]
    fn a_watch_that_ends_by_the_clock_and_a_shortened_lower_bound_are_found() {
        let watch = "eventually(SOON, || async {\n    assert!(held.is_held(), \"{:?}\", start.elapsed());\n    \
                     if start.elapsed() > SESSION * 9 / 4 { Ok(()) } else { Err(\"not yet\") }\n})";
        assert_eq!(timed(watch), [(3, "if start.elapsed() > SESSION * 9 / 4".to_owned())]);
        let shortened = "let least = TTL - Duration::from_millis(50);\nassert!(start.elapsed() >= least, \"{:?}\", x);";
        assert_eq!(timed(shortened).len(), 1);
        assert_eq!(timed("assert!(start.elapsed() >= TTL - SLACK);").len(), 1);
        // A bound in another test.
        let other = "async fn a() {\n let least = x - y;\n}\nasync fn b() {\n assert!(start.elapsed() >= least);\n}";
        assert_eq!(timed(other), []);
    }

    #[test]
    fn a_time_in_a_message_or_a_lower_bound_is_none() {
        for text in [
            "assert!(done, \"after {:?}\", start.elapsed());",
            "let took = start.elapsed();\nassert!(done, \"after {took:?}\");",
            "let took = start.elapsed();\nprintln!(\"{took:?}\");",
            "if start.elapsed() > LIMIT { return; }",
            "assert!(start.elapsed() >= delay * 2, \"not before\");",
            // An exact duration can only come from a clock that the test controls.
            "assert_eq!(start.elapsed(), TIMEOUT / 3);",
        ] {
            assert_eq!(timed(text), [], "{text}");
        }
    }
}
