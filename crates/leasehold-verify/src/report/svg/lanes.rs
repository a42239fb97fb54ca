//! The contents of the lanes: processes, requests for locks, holds, losses, writes.

use std::fmt::Write as _;

use super::at;
use super::frame::{Frame, merged, text_width};
use crate::history::Mode;
use crate::report::escape::markup;
use crate::report::model::{Death, Fate, Kind, Look, Run, Span};
use crate::report::words;

/// The number of colours for locks.
pub(crate) const COLOURS: usize = 6;

pub(super) fn draw(run: &Run, frame: &Frame, ids: &str, out: &mut String) {
    lives(run, frame, out);
    pauses(run, frame, ids, out);
    let mut begin = 0;
    for chunk in run.spans.chunk_by(|a, b| (a.lane, a.row) == (b.lane, b.row)) {
        waits(chunk, frame, out);
        holds(chunk, begin, run, frame, out);
        begin += chunk.len();
    }
    for span in &run.spans {
        ends(span, frame, out);
    }
    deaths(run, frame, out);
    marks(run, frame, out);
}

fn lives(run: &Run, frame: &Frame, out: &mut String) {
    for life in &run.lives {
        let (x, to) = (at(frame.x(life.from)), at(frame.x(life.to)));
        let y = frame.y(life.lane, 0);
        let _ = write!(out, r#"<path class="life" d="M{x} {}H{to}"/>"#, at(y + frame.bar / 2.0));
        let _ = write!(out, r#"<path class="born" d="M{x} {}V{}"/>"#, at(y - 2.0), at(y + frame.bar + 2.0));
    }
}

/// Draws crosses over the ends of killed processes.
fn deaths(run: &Run, frame: &Frame, out: &mut String) {
    for life in run.lives.iter().filter(|life| life.death == Death::Killed) {
        let (x, y) = (at(frame.x(life.to)), at(frame.y(life.lane, 0) + frame.bar / 2.0));
        let words = format!("worker {} was killed at {}", life.worker, words::moment(life.to));
        let cross = format!("M{x} {y}m-5 -5l10 10m-10 0l10 -10");
        let _ = write!(
            out,
            r#"<path class="under" d="{cross}"/><path class="dead" d="{cross}"><title>{words}</title></path>"#
        );
    }
}

fn pauses(run: &Run, frame: &Frame, ids: &str, out: &mut String) {
    for pause in &run.pauses {
        let (x, to) = (frame.x(pause.from), frame.x(pause.to));
        let Some((top, height)) = frame.lanes.get(pause.lane) else { continue };
        let (name, did) = if pause.stalled { ("stall", "did not run") } else { ("stop", "was stopped") };
        let words = format!("worker {} {did} for {}", pause.worker, words::span(pause.to - pause.from));
        let _ = write!(
            out,
            r#"<rect fill="url(#{ids}-{name})" x="{}" y="{}" width="{}" height="{}"><title>{words}</title></rect>"#,
            at(x),
            at(top + 1.0),
            at((to - x).max(1.0)),
            at(height - 2.0)
        );
    }
}

/// Draws thin lines: requests and releases.
fn waits(spans: &[Span], frame: &Frame, out: &mut String) {
    let asks =
        spans.iter().enumerate().map(|(at, span)| (frame.x(span.begin), frame.x(span.granted.unwrap_or(span.end)), at));
    let given = spans.iter().enumerate().filter(|(_, span)| span.granted.is_some());
    let gives = given.map(|(at, span)| (frame.x(span.to), frame.x(span.end), at));
    for (class, all) in [("wait", merged(asks)), ("give", merged(gives.filter(|(x, to, _)| to > x)))] {
        for one in all.iter().filter(|one| one.to - one.x >= 0.5) {
            let Some(span) = spans.get(one.at) else { continue };
            let high = if class == "wait" { 2.0 } else { 4.0 };
            let y = frame.y(span.lane, span.row) + (frame.bar - high) / 2.0;
            let (x, width) = (at(one.x), at(one.to - one.x));
            let _ = write!(
                out,
                r#"<rect class="{class} l{}" x="{x}" y="{}" width="{width}" height="{high}"/>"#,
                span.lock % COLOURS,
                at(y)
            );
        }
    }
}

fn holds(spans: &[Span], begin: usize, run: &Run, frame: &Frame, out: &mut String) {
    let held = spans.iter().enumerate().filter_map(|(at, span)| Some((frame.x(span.granted?), frame.x(span.sure), at)));
    for one in merged(held) {
        let Some(span) = run.spans.get(begin + one.at) else { continue };
        let (y, width) = (frame.y(span.lane, span.row), (one.to - one.x).max(0.6));
        let class = if shared(span) { "shared" } else { "hold" };
        let words = if one.count > 1 { format!("{} holds", one.count) } else { hold_words(span, run) };
        let _ = write!(
            out,
            r#"<rect class="{class} l{}" x="{}" y="{}" width="{}" height="{}" rx="{}"><title>{}</title></rect>"#,
            span.lock % COLOURS,
            at(one.x),
            at(y),
            at(width),
            frame.bar,
            if width > 6.0 { 2 } else { 0 },
            markup(&words)
        );
        let token = span.token.map(|token| token.to_string()).unwrap_or_default();
        if one.count == 1 && !token.is_empty() && text_width(&token) + 4.0 <= width {
            let (x, y) = (at(one.x + width / 2.0), at(y + frame.bar / 2.0 + 3.6));
            let _ = write!(out, r#"<text class="token" x="{x}" y="{y}">{token}</text>"#);
        }
    }
}

fn shared(span: &Span) -> bool {
    matches!(span.kind, Kind::Lock(Mode::Shared | Mode::Permits { .. }))
}

/// A hold in words.
pub(super) fn hold_words(span: &Span, run: &Run) -> String {
    let lock = run.locks.get(span.lock).map_or("", String::as_str);
    let token = span.token.map(|token| format!(", token {token}")).unwrap_or_default();
    let from = span.granted.unwrap_or(span.begin);
    let held = words::span(span.to - from);
    let why = if span.fate.why().is_empty() { String::new() } else { format!(": {}", span.fate.why()) };
    let (worker, from, fate) = (span.worker, words::moment(from), span.fate.words());
    format!("worker {worker} held {lock}{token}, from {from} for {held}; {fate}{why}")
}

/// Draws how a hold ended, if that is notable: past its deadline, lost, left behind, or never
/// granted.
fn ends(span: &Span, frame: &Frame, out: &mut String) {
    let y = frame.y(span.lane, span.row);
    let (sure, to) = (frame.x(span.sure), frame.x(span.to));
    let colour = span.lock % COLOURS;
    if span.granted.is_none() {
        if !matches!(span.fate, Fate::Busy | Fate::Killed | Fate::Open) {
            let (x, y) = (at(frame.x(span.end)), at(y + frame.bar / 2.0 - 4.0));
            let _ = write!(out, r#"<path class="fail" d="M{x} {y}v8"/>"#);
        }
        return;
    }
    if to - sure >= 1.5 {
        let _ = write!(
            out,
            r#"<rect class="past l{colour}" x="{}" y="{}" width="{}" height="{}" rx="2"/>"#,
            at(sure),
            at(y + 2.5),
            at(to - sure),
            at(frame.bar - 5.0)
        );
    }
    if matches!(span.fate, Fate::Killed) && span.deadline > span.to {
        let (x, y) = (at(to), at(y + frame.bar + 1.5));
        let _ = write!(out, r#"<path class="tail l{colour}" d="M{x} {y}H{}"/>"#, at(frame.x(span.deadline)));
    }
    if matches!(span.fate, Fate::Lost(_)) {
        let words = format!("worker {} learned at {} that it is lost", span.worker, words::moment(span.to));
        let why = markup(span.fate.why());
        let (x, y) = (at(to), at(y - 5.0));
        let _ = write!(out, r#"<path class="lost" d="M{x} {y}m-5 0h10l-5 8z"><title>{words}: {why}</title></path>"#);
    }
}

fn marks(run: &Run, frame: &Frame, out: &mut String) {
    for row in run.marks.chunk_by(|a, b| (a.lane, a.row) == (b.lane, b.row)) {
        // Many dots would merge into a thick line.
        let dot = if row.len() as f64 > frame.width / 10.0 { 0.8 } else { 2.0 };
        // The x position of the last mark of each appearance: overlapping marks are omitted.
        let mut last = [f64::MIN; 4];
        for mark in row {
            let (x, look) = (frame.x(mark.t), mark.look());
            let Some(before) = last.get_mut(look as usize).filter(|before| x - **before >= 2.5) else { continue };
            *before = x;
            // Just below the bar: on it they would cover the token.
            let (x, y) = (at(x), at(frame.y(mark.lane, mark.row) + frame.bar + 4.0));
            let _ = match look {
                Look::Accepted => write!(out, r#"<circle class="ok" cx="{x}" cy="{y}" r="{dot}"/>"#),
                Look::Refused => write!(out, r#"<circle class="refused" cx="{x}" cy="{y}" r="3.75"/>"#),
                Look::Read => write!(out, r#"<path class="read" d="M{x} {}v4"/>"#, at(y - 2.0)),
                Look::Unknown => write!(out, r#"<circle class="unsure" cx="{x}" cy="{y}" r="2.5"/>"#),
            };
        }
    }
}

/// Draws the workers' numbers where they start, then the faults that hit them, where there is
/// space.
pub(super) fn labels(run: &Run, frame: &Frame, out: &mut String) {
    for (lane, (top, _)) in frame.lanes.iter().enumerate() {
        let mut taken: Vec<(f64, f64)> = Vec::new();
        let mut place = |x: f64, text: &str, class: &str, either: bool| {
            let width = text_width(text);
            let spots = [x, x - width];
            let spots = if either { &spots[..] } else { &spots[..1] };
            let fits = |x: f64| {
                x + width <= frame.right() + 8.0 && taken.iter().all(|(a, b)| x > b + 5.0 || x + width + 5.0 < *a)
            };
            let Some(x) = spots.iter().copied().find(|x| fits(*x)) else { return };
            taken.push((x, x + width));
            let (x, y) = (at(x), at(top + 10.5));
            let _ = write!(out, r#"<text class="{class} halo" x="{x}" y="{y}">{}</text>"#, markup(text));
        };
        for life in run.lives.iter().filter(|life| life.lane == lane) {
            place(frame.x(life.from), &format!("worker {}", life.worker), "faint", false);
        }
        for band in run.bands.iter().filter(|band| band.lanes.contains(&lane)) {
            place(frame.x(band.from), band.kind.as_str(), "soft", true);
        }
    }
}
