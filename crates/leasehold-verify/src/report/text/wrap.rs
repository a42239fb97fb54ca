//! Wraps text to the width of a terminal.

/// The number of terminal columns that a text needs.
pub(super) fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

/// The number of terminal columns of a character: two for wide scripts and emoji, none for
/// combining marks.
fn char_columns(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// Wraps a text to lines of at most `width` columns, between words. A word that is longer than a
/// line is split.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && columns(&line) + 1 + columns(word) > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if columns(&line) + char_columns(c) > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Pads a text with blanks to this many columns.
pub(super) fn pad_right(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrapped_line_fits_and_no_text_is_lost() {
        let text = "its holder was stopped; averyveryverylongwordwithoutany break 漢字漢字漢字漢字 end";
        for width in 2..60 {
            let lines = wrap(text, width);
            for line in &lines {
                assert!(columns(line) <= width, "{line:?} at {width}");
            }
            let squeeze = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(squeeze(&lines.join(" ")), squeeze(text), "at {width}");
        }
        assert_eq!(wrap("two words", 9), ["two words"]);
        assert_eq!(wrap("two words", 8), ["two", "words"]);
        assert!(wrap("  ", 8).is_empty());
    }
}
