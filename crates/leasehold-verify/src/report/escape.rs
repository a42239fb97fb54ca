//! Escapes text from the history (names, errors, URLs), so that it cannot become markup, script or
//! terminal control codes.

use std::fmt::Write as _;

/// Escapes text for HTML and XML, as content or as a double-quoted attribute.
pub(crate) fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(visible_char(c)),
        }
    }
    out
}

/// Escapes JSON for a `<script>` data block of a page, which ends at the first `</script`, even
/// inside a string.
pub(crate) fn escape_script_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Replaces control characters, so that a terminal does not execute them.
pub(crate) fn escape_terminal(text: &str) -> String {
    text.chars().map(visible_char).collect()
}

/// Replaces a character that would move the cursor, change the writing direction, or be invalid in
/// XML, by a visible symbol; returns any other character unchanged.
fn visible_char(c: char) -> char {
    match c {
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        '\u{80}'..='\u{9f}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fffe}'
        | '\u{ffff}' => '\u{fffd}',
        c => c,
    }
}
