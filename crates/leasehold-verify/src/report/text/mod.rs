//! Prints the verdict as a few lines for a terminal.

mod wrap;

use wrap::{columns, pad_right, wrap};

use super::escape::escape_terminal;
use super::format;
use crate::history::WorkerId;
use crate::verdict::{FindingStatus, Verdict, Violation};

/// How many violations are described in full.
const MAX_FULL_VIOLATIONS: usize = 5;

/// The minimum width of a table's text column. In a narrower terminal, its text is printed below
/// each row and not beside it.
const MIN_TEXT_COLUMNS: usize = 24;

/// Formats the verdict for a terminal of `width` columns; no line is longer. Without `colour` the
/// text has no escape codes.
pub fn verdict(verdict: &Verdict, width: usize, colour: bool) -> String {
    let mut report = TerminalReport { out: String::new(), width: width.max(12), colour };
    report.write_headline(verdict);
    report.write_run_parameters(verdict);
    report.write_guarantees(verdict);
    report.write_faults(verdict);
    report.write_violations(verdict);
    report.out
}

#[derive(Clone, Copy)]
enum TextStyle {
    Plain,
    Good,
    Bad,
    Dim,
    Bold,
}

struct TerminalReport {
    out: String,
    width: usize,
    colour: bool,
}

impl TerminalReport {
    fn write_headline(&mut self, verdict: &Verdict) {
        let head = format::headline(verdict);
        let whole = escape_terminal(&format!("{}: {}", head.verdict, head.rest));
        let paint = if head.is_expected { TextStyle::Good } else { TextStyle::Bad };
        for line in wrap(&whole, self.width) {
            self.write_line(&line, paint);
        }
    }

    fn write_run_parameters(&mut self, verdict: &Verdict) {
        let header = &verdict.header;
        let versions =
            if header.versions.is_empty() { String::new() } else { format!(" ({})", header.versions.join(", ")) };
        let mut parameters = format!(
            "{} at {}{versions}: {}, seed {}, TTL {}, {}, {}",
            header.engine,
            header.url,
            header.workload,
            header.seed,
            format::format_duration(header.ttl),
            format::format_quantity(u64::from(header.lanes), "lane"),
            format::format_duration(verdict.counts.lasted),
        );
        if let Some(opinion) = format::describe_second_opinion(&verdict.second_opinion) {
            parameters.push_str("; ");
            parameters.push_str(opinion);
        }
        for line in wrap(&escape_terminal(&parameters), self.width) {
            self.write_line(&line, TextStyle::Dim);
        }
    }

    fn write_guarantees(&mut self, verdict: &Verdict) {
        if verdict.findings.is_empty() {
            return;
        }
        let rows: Vec<TableRow> = verdict
            .findings
            .iter()
            .map(|finding| TableRow {
                cells: vec![
                    format::guarantee_name(finding.guarantee).to_owned(),
                    format::status_name(finding.state).to_owned(),
                    format::format_count(finding.checked),
                ],
                style: match finding.state {
                    FindingStatus::Kept => TextStyle::Good,
                    FindingStatus::Broken | FindingStatus::Undecided => TextStyle::Bad,
                    FindingStatus::Untested | FindingStatus::NotGuaranteed => TextStyle::Dim,
                },
                text: escape_terminal(&finding.figure),
            })
            .collect();
        self.write_table(["guarantee", "state", "checked"], "figure", &rows);
    }

    fn write_faults(&mut self, verdict: &Verdict) {
        if verdict.recovered.is_empty() {
            return;
        }
        let ttl = verdict.header.ttl;
        let rows: Vec<TableRow> = verdict
            .recovered
            .iter()
            .map(|one| {
                let recovery = format::describe_recovery(one, ttl);
                let lasted = match one.to {
                    Some(to) if to > one.from => format!(", for {}", format::format_duration(to - one.from)),
                    Some(_) => String::new(),
                    None => ", to the end".to_owned(),
                };
                let at = format::format_time(one.from);
                let more = recovery.remark.map(|more| format!("; {more}")).unwrap_or_default();
                TableRow {
                    cells: vec![format!("{} {}", one.fault, one.kind), recovery.time, recovery.bound],
                    style: match recovery.is_within_bound {
                        Some(true) => TextStyle::Good,
                        Some(false) => TextStyle::Bad,
                        None => TextStyle::Dim,
                    },
                    text: escape_terminal(&format!("{} at {at}{lasted}{more}", one.target)),
                }
            })
            .collect();
        self.write_table(["fault", "recovered", "at most"], "target", &rows);
        if let Some(left_out) = format::describe_missing_faults(verdict) {
            for line in wrap(&left_out, self.width) {
                self.write_line(&line, TextStyle::Dim);
            }
        }
    }

    /// Writes a table of three narrow columns and a column of wrapped text. The second column has
    /// the row's style, the third one is right-aligned.
    fn write_table(&mut self, heads: [&str; 3], text_head: &str, rows: &[TableRow]) {
        self.out.push('\n');
        let mut widths = heads.map(columns);
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(columns(cell));
            }
        }
        let [a, b, c] = widths;
        let beside = a + b + c + 6;
        let wide = self.width >= beside + MIN_TEXT_COLUMNS;
        if wide {
            let third = format!("{}{}", " ".repeat(c - columns(heads[2])), heads[2]);
            self.write_line(
                &format!("{}  {}  {third}  {text_head}", pad_right(heads[0], a), pad_right(heads[1], b)),
                TextStyle::Bold,
            );
        }
        for row in rows {
            self.write_row(row, widths, if wide { Some(beside) } else { None });
        }
    }

    /// Writes a row whose first three columns have these widths. The text starts at `text_column`;
    /// `None`: the terminal is too narrow, and the text goes below.
    fn write_row(&mut self, row: &TableRow, [a, b, c]: [usize; 3], text_column: Option<usize>) {
        let [first, second, third] = row.cells.as_slice() else { return };
        if let Some(beside) = text_column {
            let mut words = wrap(&row.text, self.width - beside).into_iter();
            self.out.push_str(&format!("{}  ", pad_right(first, a)));
            self.write_styled(&pad_right(second, b), row.style);
            let rest = words.next().unwrap_or_default();
            let blanks = " ".repeat(c.saturating_sub(columns(third)));
            self.out.push_str(format!("  {blanks}{third}  {rest}").trim_end());
            self.out.push('\n');
            for line in words {
                self.write_line(&format!("{}{line}", " ".repeat(beside)), TextStyle::Plain);
            }
        } else {
            for line in wrap(&format!("{first}: {second} ({third})"), self.width) {
                self.write_line(&line, row.style);
            }
            for line in wrap(&row.text, self.width - 2) {
                self.write_line(&format!("  {line}"), TextStyle::Plain);
            }
        }
    }

    fn write_violations(&mut self, verdict: &Verdict) {
        for (at, violation) in verdict.violations.iter().take(MAX_FULL_VIOLATIONS).enumerate() {
            self.out.push('\n');
            self.write_violation(at + 1, violation);
        }
        let printed = verdict.violations.len().min(MAX_FULL_VIOLATIONS) as u64;
        let more = verdict.violations_in_all.saturating_sub(printed);
        if more > 0 {
            self.out.push('\n');
            let and = if printed > 0 { "and " } else { "" };
            let rest = if printed > 0 { "more" } else { "violations that are not listed" };
            for line in wrap(&format!("{and}{} {rest}", format::format_count(more)), self.width) {
                self.write_line(&line, TextStyle::Bad);
            }
        }
    }

    fn write_violation(&mut self, number: usize, violation: &Violation) {
        let title =
            escape_terminal(&format!("{number}. {}: {}", format::guarantee_name(violation.guarantee), violation.title));
        for line in wrap(&title, self.width) {
            self.write_line(&line, TextStyle::Bad);
        }
        let when = format_span(violation);
        let who = if violation.workers.is_empty() {
            String::new()
        } else {
            format!(", {}", format_workers(&violation.workers))
        };
        for line in wrap(&format!("{when}{who}"), self.width - 3) {
            self.write_line(&format!("   {line}"), TextStyle::Dim);
        }
        for line in wrap(&escape_terminal(&violation.details), self.width - 3) {
            self.write_line(&format!("   {line}"), TextStyle::Plain);
        }
    }

    /// Writes a line without trailing blanks, and its newline.
    fn write_line(&mut self, text: &str, style: TextStyle) {
        self.write_styled(text.trim_end(), style);
        self.out.push('\n');
    }

    /// Writes text with the escape codes of its style, if colours are on.
    fn write_styled(&mut self, text: &str, style: TextStyle) {
        let code = match style {
            TextStyle::Good => "1;32",
            TextStyle::Bad => "1;31",
            TextStyle::Dim => "2",
            TextStyle::Bold => "1",
            TextStyle::Plain => "",
        };
        if self.colour && !code.is_empty() {
            self.out.push_str(&format!("\u{1b}[{code}m{text}\u{1b}[0m"));
        } else {
            self.out.push_str(text);
        }
    }
}

/// A row of [`TerminalReport::write_table`].
struct TableRow {
    /// The first three columns.
    cells: Vec<String>,
    /// The style of the second column.
    style: TextStyle,
    /// The last column, which is wrapped.
    text: String,
}

/// When a violation happened: `at 1.204 s`, `1.204 s to 1.516 s`.
pub(super) fn format_span(violation: &Violation) -> String {
    let (from, to) = (format::format_time(violation.from), format::format_time(violation.to));
    if from == to { format!("at {from}") } else { format!("{from} to {to}") }
}

/// A list of workers: `worker 3`, `workers 3 and 5`, `workers 1, 2, 3 and 9 more`.
pub(super) fn format_workers(workers: &[WorkerId]) -> String {
    match workers {
        [] => String::new(),
        [one] => format!("worker {one}"),
        [one, two] => format!("workers {one} and {two}"),
        [one, two, three] => format!("workers {one}, {two} and {three}"),
        [one, two, three, rest @ ..] => format!("workers {one}, {two}, {three} and {} more", rest.len()),
    }
}
