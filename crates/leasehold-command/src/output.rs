//! Terminal output: a closed pipe causes no panic, and foreign text cannot control the terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::OnceLock;

use comfy_table::{ContentArrangement, Row, Table, presets};
use rustix::termios;
use serde::Serialize;

use crate::exit::{self, Failure};

/// Writes to standard output.
///
/// # Errors
/// A failure with code 0 and no message if the reader closed its pipe; `EX_IOERR` for any other
/// write error.
pub fn write_stdout(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::closed_pipe()),
        Err(error) => Err(Failure::new(exit::OUTPUT, "output", format!("cannot write to standard output: {error}"))),
    }
}

/// Writes to standard error; ignores errors.
pub fn write_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Returns the timestamp of a log line; while unset, log lines have none.
static TIMESTAMP_SOURCE: OnceLock<fn() -> String> = OnceLock::new();

/// From now on, every log line begins with the timestamp that `source` returns. Only the first call
/// has an effect.
pub fn set_timestamp_source(source: fn() -> String) {
    let _ = TIMESTAMP_SOURCE.set(source);
}

/// The timestamp for a log line that is written now; `None` if log lines have none.
pub fn current_timestamp() -> Option<String> {
    TIMESTAMP_SOURCE.get().map(|source| source())
}

/// Prints one line on standard error, prefixed with the timestamp, if any, and the program's name.
/// Escapes control characters.
pub fn print_message(message: &str) {
    let stamp = current_timestamp().map(|time| time + " ").unwrap_or_default();
    write_stderr(&format!("{stamp}leasehold: {}\n", escape_control_chars(message)));
}

/// Prints each line of leasehold's own `message` as [`print_message`] does. For foreign text use
/// [`print_message`], which escapes its line breaks.
pub fn print_message_lines(message: &str) {
    message.lines().for_each(print_message);
}

/// A value as one line of JSON. Characters that could control a terminal are escaped.
pub fn to_json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    let mut safe = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Such a character only occurs inside a JSON string, where its escape means the same.
        if is_terminal_control(c) { safe.push_str(&format!("\\u{:04x}", u32::from(c))) } else { safe.push(c) }
    }
    safe.push('\n');
    safe
}

/// Foreign text made harmless: escapes control characters and those that change the writing
/// direction.
pub fn escape_control_chars(text: &str) -> Cow<'_, str> {
    if !text.contains(is_terminal_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_terminal_control(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// Whether a character can control a terminal, or changes the writing direction of other text.
fn is_terminal_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An empty table as wide as the terminal; without a limit if there is no terminal.
pub fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    if let Some(width) = terminal_width() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table
}

/// A table as text, without trailing blanks.
pub fn format_table(table: &Table) -> String {
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Like [`format_table`], for a table of many columns: one block of lines per row if the terminal
/// would split words.
pub fn format_wide_table(table: &Table) -> String {
    match terminal_width() {
        Some(width) if min_table_width(table) > usize::from(width) => format_as_blocks(table),
        _ => format_table(table),
    }
}

/// The texts of a row's cells, from left to right.
fn cell_texts(row: &Row) -> impl Iterator<Item = String> {
    row.cell_iter().map(|cell| cell.content())
}

/// The width in columns below which the terminal would split words of the table.
fn min_table_width(table: &Table) -> usize {
    let longest = |text: String| text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = Vec::new();
    for row in table.header().into_iter().chain(table.row_iter()) {
        for (at, text) in cell_texts(row).enumerate() {
            let least = longest(text) + 2;
            match widths.get_mut(at) {
                Some(width) => *width = (*width).max(least),
                None => widths.push(least),
            }
        }
    }
    widths.iter().sum::<usize>().saturating_sub(2)
}

/// A block per row: the first column as its heading, the other columns below it.
fn format_as_blocks(table: &Table) -> String {
    let heads: Vec<String> = table.header().map(|row| cell_texts(row).collect()).unwrap_or_default();
    let widest = heads.iter().map(|head| head.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in table.row_iter() {
        for (at, (head, value)) in heads.iter().zip(cell_texts(row)).enumerate() {
            match (at, value.as_str()) {
                (0, value) => text.push_str(&format!("{value}\n")),
                (_, "" | "-") => {}
                (_, value) => text.push_str(&format!("    {:<widest$}  {value}\n", head.to_lowercase())),
            }
        }
    }
    text
}

/// A colour on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Healthy, or free.
    Green,
    /// Needs attention.
    Yellow,
    /// Wrong.
    Red,
    /// A heading.
    Bold,
}

/// Wraps `text` in the codes of this colour. Returns it unchanged if standard output is no terminal
/// with colours, or `NO_COLOR` is set.
pub fn paint(text: &str, colour: Colour) -> String {
    let is_set = |key: &str| std::env::var_os(key).is_some_and(|value| !value.is_empty());
    let plain = is_set("NO_COLOR") || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if plain || !termios::isatty(io::stdout()) {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
        Colour::Bold => 1,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// The table with its first line bold on a terminal.
pub fn with_bold_header(table: &str) -> String {
    match table.split_once('\n') {
        Some((head, rows)) => format!("{}\n{rows}", paint(head, Colour::Bold)),
        None => table.to_owned(),
    }
}

/// `1 key`, `2 keys`.
pub fn format_count(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// The width of the terminal on standard output, in columns and at least 60; `None` without a
/// terminal.
pub fn terminal_width() -> Option<u16> {
    let size = termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.max(60))
}

/// `text`, cut to `max_bytes` bytes at a character boundary, with an ellipsis if it was cut.
pub fn shorten(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let room = max_bytes.saturating_sub('…'.len_utf8());
    let end = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Hides the secrets of every URL in `text`: `scheme://user:secret@host?password=secret` becomes
/// `scheme://user:***@host?password=***`. Ambiguous text is hidden, too.
pub fn hide_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let end = after.find(|c: char| c.is_whitespace() || "'\"`".contains(c)).unwrap_or(after.len());
        let (address, options) = after[..end].split_once('?').unwrap_or((&after[..end], ""));
        shown.push_str(before);
        shown.push_str(&hide_login(address));
        for (index, pair) in options.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            shown.push(if index == 0 { '?' } else { '&' });
            shown.push_str(&hide_option_value(pair));
        }
        rest = &after[end..];
    }
    shown.push_str(rest);
    shown
}

/// Hides the password in `user:password@host`, the part of a URL between `://` and `?`.
fn hide_login(address: &str) -> Cow<'_, str> {
    // A path has no login: `file:///home/a:b@c`.
    match address.rsplit_once('@').and_then(|(login, host)| Some((login.split_once(':')?.0, host))) {
        Some((user, host)) if !address.starts_with('/') => Cow::Owned(format!("{user}:***@{host}")),
        _ => Cow::Borrowed(address),
    }
}

/// Hides the value of a URL's option, `key=value`, if its key names a secret.
fn hide_option_value(pair: &str) -> Cow<'_, str> {
    match pair.split_once('=') {
        // The path of a password file is not secret.
        Some((key, _)) if key.ends_with("-file") => Cow::Borrowed(pair),
        Some((key, _)) if ["pass", "secret", "token", "key"].iter().any(|word| key.contains(word)) => {
            Cow::Owned(format!("{key}=***"))
        }
        _ => Cow::Borrowed(pair),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_does_not_fit_becomes_blocks() {
        let mut made = new_table(&["JOB", "LAST", "STATE"]);
        made.add_row(["nightly", "2026-11-18T03:00:00Z", "waits for its turn"]);
        made.add_row(["report", "-", "paused"]);
        assert_eq!(min_table_width(&made), "nightly  2026-11-18T03:00:00Z  paused".len());
        let expected =
            "nightly\n    last   2026-11-18T03:00:00Z\n    state  waits for its turn\nreport\n    state  paused\n";
        assert_eq!(format_as_blocks(&made), expected);
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(escape_control_chars("plain ключ 🔑"), "plain ключ 🔑");
        assert_eq!(escape_control_chars("a\u{1b}[2Jb\u{9b}c\u{202e}d"), "a\\u{1b}[2Jb\\u{9b}c\\u{202e}d");
        let line = to_json_line(&"a\u{1b}\u{9b}\u{7f}\u{202e}\n");
        assert_eq!(line, "\"a\\u001b\\u009b\\u007f\\u202e\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), "a\u{1b}\u{9b}\u{7f}\u{202e}\n");
    }

    #[test]
    fn passwords_in_urls_are_hidden_anywhere_in_a_text() {
        for (text, shown) in [
            ("redis://u:hunter2@h:1/0?x=1", "redis://u:***@h:1/0?x=1"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("run --engine=redis://u:hunt@er2@h1,h2 x", "run --engine=redis://u:***@h1,h2 x"),
            ("a://u:p1@h b://u:p2@h", "a://u:***@h b://u:***@h"),
            ("'x://u:p@h'", "'x://u:***@h'"),
            ("file:///tmp/a@b:c", "file:///tmp/a@b:c"),
            ("redis://u:a/b@h/0", "redis://u:***@h/0"),
            ("mysql://h/?password=x&db=1", "mysql://h/?password=***&db=1"),
            ("mysql://u@h/?password-file=/x", "mysql://u@h/?password-file=/x"),
            ("no url: at@all", "no url: at@all"),
        ] {
            assert_eq!(hide_passwords(text), shown);
        }
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shorten("short", 10), "short");
        assert_eq!(shorten("ééééé", 8), "éé…");
        assert!(shorten(&"é".repeat(300), 256).len() <= 256);
    }
}
