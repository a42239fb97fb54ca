//! The verdict in a few lines for the terminal.

mod wrap;

use wrap::{columns, lines, pad};

use super::escape::plain;
use super::words;
use crate::history::Worker;
use crate::verdict::{State, Verdict, Violation};

/// How many violations are described in full.
const IN_FULL: usize = 5;

/// In a narrower terminal, words are printed below the figures and not beside them.
const NARROW: usize = 24;

/// The verdict for a terminal of this width; no line is longer. Without colour it contains no
/// escape codes.
pub fn verdict(verdict: &Verdict, width: usize, colour: bool) -> String {
    let mut page = Page { out: String::new(), width: width.max(12), colour };
    page.headline(verdict);
    page.run(verdict);
    page.promises(verdict);
    page.faults(verdict);
    page.violations(verdict);
    page.out
}

#[derive(Clone, Copy)]
enum Paint {
    No,
    Good,
    Bad,
    Dim,
    Bold,
}

struct Page {
    out: String,
    width: usize,
    colour: bool,
}

impl Page {
    fn headline(&mut self, verdict: &Verdict) {
        let head = words::headline(verdict);
        let whole = plain(&format!("{}: {}", head.word, head.rest));
        let paint = if head.good { Paint::Good } else { Paint::Bad };
        for line in lines(&whole, self.width) {
            self.line(&line, paint);
        }
    }

    fn run(&mut self, verdict: &Verdict) {
        let header = &verdict.header;
        let versions =
            if header.versions.is_empty() { String::new() } else { format!(" ({})", header.versions.join(", ")) };
        let mut run = format!(
            "{} at {}{versions}: {}, seed {}, TTL {}, {}, {}",
            header.engine,
            header.url,
            header.workload,
            header.seed,
            words::span(header.ttl),
            words::many(u64::from(header.lanes), "lane"),
            words::span(verdict.counts.lasted),
        );
        if let Some(opinion) = words::second_opinion(&verdict.second_opinion) {
            run.push_str("; ");
            run.push_str(opinion);
        }
        for line in lines(&plain(&run), self.width) {
            self.line(&line, Paint::Dim);
        }
    }

    fn promises(&mut self, verdict: &Verdict) {
        if verdict.findings.is_empty() {
            return;
        }
        let rows: Vec<Row> = verdict
            .findings
            .iter()
            .map(|finding| Row {
                cells: vec![
                    words::promise(finding.promise).to_owned(),
                    words::state(finding.state).to_owned(),
                    words::count(finding.checked),
                ],
                paint: match finding.state {
                    State::Kept => Paint::Good,
                    State::Broken | State::Undecided => Paint::Bad,
                    State::Untested | State::Unpromised => Paint::Dim,
                },
                words: plain(&finding.figure),
            })
            .collect();
        self.table(["promise", "state", "checked"], "figure", &rows);
    }

    fn faults(&mut self, verdict: &Verdict) {
        if verdict.recovered.is_empty() {
            return;
        }
        let ttl = verdict.header.ttl;
        let rows: Vec<Row> = verdict
            .recovered
            .iter()
            .map(|one| {
                let recovery = words::recovery(one, ttl);
                let lasted = match one.to {
                    Some(to) if to > one.from => format!(", for {}", words::span(to - one.from)),
                    Some(_) => String::new(),
                    None => ", to the end".to_owned(),
                };
                let at = words::moment(one.from);
                let more = recovery.more.map(|more| format!("; {more}")).unwrap_or_default();
                Row {
                    cells: vec![format!("{} {}", one.fault, one.kind), recovery.took, recovery.bound],
                    paint: match recovery.within {
                        Some(true) => Paint::Good,
                        Some(false) => Paint::Bad,
                        None => Paint::Dim,
                    },
                    words: plain(&format!("{} at {at}{lasted}{more}", one.target)),
                }
            })
            .collect();
        self.table(["fault", "recovered", "at most"], "what it hit", &rows);
        if let Some(left_out) = words::left_out(verdict) {
            for line in lines(&left_out, self.width) {
                self.line(&line, Paint::Dim);
            }
        }
    }

    /// A table of three columns of known width and a text column: the second column is coloured,
    /// the third one right-aligned.
    fn table(&mut self, heads: [&str; 3], last: &str, rows: &[Row]) {
        self.out.push('\n');
        let mut widths = heads.map(columns);
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(columns(cell));
            }
        }
        let [a, b, c] = widths;
        let beside = a + b + c + 6;
        let wide = self.width >= beside + NARROW;
        if wide {
            let third = format!("{}{}", " ".repeat(c - columns(heads[2])), heads[2]);
            self.line(&format!("{}  {}  {third}  {last}", pad(heads[0], a), pad(heads[1], b)), Paint::Bold);
        }
        for row in rows {
            self.row(row, widths, if wide { Some(beside) } else { None });
        }
    }

    fn row(&mut self, row: &Row, [a, b, c]: [usize; 3], beside: Option<usize>) {
        let [first, second, third] = row.cells.as_slice() else { return };
        if let Some(beside) = beside {
            let mut words = lines(&row.words, self.width - beside).into_iter();
            self.out.push_str(&format!("{}  ", pad(first, a)));
            self.paint(&pad(second, b), row.paint);
            let rest = words.next().unwrap_or_default();
            let blanks = " ".repeat(c.saturating_sub(columns(third)));
            self.out.push_str(format!("  {blanks}{third}  {rest}").trim_end());
            self.out.push('\n');
            for line in words {
                self.line(&format!("{}{line}", " ".repeat(beside)), Paint::No);
            }
        } else {
            for line in lines(&format!("{first}: {second} ({third})"), self.width) {
                self.line(&line, row.paint);
            }
            for line in lines(&row.words, self.width - 2) {
                self.line(&format!("  {line}"), Paint::No);
            }
        }
    }

    fn violations(&mut self, verdict: &Verdict) {
        for (at, violation) in verdict.violations.iter().take(IN_FULL).enumerate() {
            self.out.push('\n');
            self.violation(at + 1, violation);
        }
        let told = verdict.violations.len().min(IN_FULL) as u64;
        let more = verdict.violations_in_all.saturating_sub(told);
        if more > 0 {
            self.out.push('\n');
            let and = if told > 0 { "and " } else { "" };
            let rest = if told > 0 { "more" } else { "violations that are not in the list" };
            for line in lines(&format!("{and}{} {rest}", words::count(more)), self.width) {
                self.line(&line, Paint::Bad);
            }
        }
    }

    fn violation(&mut self, number: usize, violation: &Violation) {
        let title = plain(&format!("{number}. {}: {}", words::promise(violation.promise), violation.title));
        for line in lines(&title, self.width) {
            self.line(&line, Paint::Bad);
        }
        let when = when(violation);
        let who = if violation.workers.is_empty() { String::new() } else { format!(", {}", who(&violation.workers)) };
        for line in lines(&format!("{when}{who}"), self.width - 3) {
            self.line(&format!("   {line}"), Paint::Dim);
        }
        for line in lines(&plain(&violation.words), self.width - 3) {
            self.line(&format!("   {line}"), Paint::No);
        }
    }

    fn line(&mut self, text: &str, paint: Paint) {
        self.paint(text.trim_end(), paint);
        self.out.push('\n');
    }

    fn paint(&mut self, text: &str, paint: Paint) {
        let code = match paint {
            Paint::Good => "1;32",
            Paint::Bad => "1;31",
            Paint::Dim => "2",
            Paint::Bold => "1",
            Paint::No => "",
        };
        if self.colour && !code.is_empty() {
            self.out.push_str(&format!("\u{1b}[{code}m{text}\u{1b}[0m"));
        } else {
            self.out.push_str(text);
        }
    }
}

struct Row {
    cells: Vec<String>,
    paint: Paint,
    words: String,
}

/// `at 1.204 s`, `1.204 s to 1.516 s`.
pub(super) fn when(violation: &Violation) -> String {
    let (from, to) = (words::moment(violation.from), words::moment(violation.to));
    if from == to { format!("at {from}") } else { format!("{from} to {to}") }
}

/// `worker 3`, `workers 3 and 5`, `workers 1, 2, 3 and 9 more`.
pub(super) fn who(workers: &[Worker]) -> String {
    match workers {
        [] => String::new(),
        [one] => format!("worker {one}"),
        [one, two] => format!("workers {one} and {two}"),
        [one, two, three] => format!("workers {one}, {two} and {three}"),
        [one, two, three, rest @ ..] => format!("workers {one}, {two}, {three} and {} more", rest.len()),
    }
}
