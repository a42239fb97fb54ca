//! The legend of the marks.

use std::fmt::Write as _;

use super::lanes::LOCK_COLOURS;
use super::layout::{LANE_NAME_WIDTH, Layout, text_width};
use super::round_coordinate;
use crate::report::escape::escape_markup;
use crate::report::model::{MarkStyle, ProcessEnd, Span, SpanOutcome, TimelineModel};

/// A mark, 26 by 14, and its meaning.
pub(crate) type Entry = (String, String);

/// Further locks have no colour of their own in the legend.
const MAX_LOCKS: usize = 6;

/// Lists only what occurs in this run.
pub(crate) fn legend_entries(model: &TimelineModel, ids: &str) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    let mut add = |there: bool, mark: &str, words: &str| {
        if there {
            out.push((mark.to_owned(), words.to_owned()));
        }
    };
    let several = model.locks.len() > 1;
    for (at, lock) in model.locks.iter().enumerate().take(MAX_LOCKS).filter(|_| several) {
        let mark = format!(r#"<rect class="hold l{}" x="2" y="2" width="22" height="10" rx="2"/>"#, at % LOCK_COLOURS);
        add(true, &mark, &format!("holds {lock}"));
    }
    let held = model.spans.iter().any(|span| span.granted_at.is_some());
    add(
        held && !several,
        r#"<rect class="hold l0" x="2" y="2" width="22" height="10" rx="2"/>"#,
        "holds, with its token",
    );
    add(!model.spans.is_empty(), r#"<rect class="wait l0" x="2" y="6" width="22" height="2"/>"#, "waits");
    let slow = |from: u64, to: u64| to.saturating_sub(from) > model.end / 200;
    let gives = model.spans.iter().any(|span| span.granted_at.is_some() && slow(span.held_until, span.done_at));
    add(gives, r#"<rect class="give l0" x="2" y="5" width="22" height="4"/>"#, "releases");
    let failed = |span: &Span| {
        span.granted_at.is_none()
            && !matches!(span.outcome, SpanOutcome::Busy | SpanOutcome::Killed | SpanOutcome::Open)
    };
    let fails = model.spans.iter().any(failed);
    add(
        fails,
        r#"<rect class="wait l0" x="2" y="6" width="12" height="2"/><path class="fail" d="M14 3v8"/>"#,
        "not granted",
    );
    let past = model.spans.iter().any(|span| span.held_until > span.relied_on_until);
    add(
        past,
        r#"<rect class="past l0" x="2" y="2" width="22" height="10" rx="2"/>"#,
        "past its deadline, not yet notified",
    );
    let lost = model.spans.iter().any(|span| matches!(span.outcome, SpanOutcome::Lost(_)));
    add(lost, r#"<path class="lost" d="M13 3m-5 0h10l-5 8z"/>"#, "learns of the loss");
    let tail = model.spans.iter().any(|span| span.outcome == SpanOutcome::Killed && span.deadline > span.held_until);
    add(tail, r#"<path class="tail l0" d="M2 7H24"/>"#, "lease of a killed worker, until its deadline");
    let killed = model.lifetimes.iter().any(|life| life.end == ProcessEnd::Killed);
    add(killed, r#"<path class="dead" d="M9 3L17 11M9 11L17 3"/>"#, "killed");
    let stop = format!(r#"<rect fill="url(#{ids}-stop)" x="2" y="1" width="22" height="12"/>"#);
    add(model.pauses.iter().any(|pause| !pause.is_stall), &stop, "stopped");
    let stall = format!(r#"<rect fill="url(#{ids}-stall)" x="2" y="1" width="22" height="12"/>"#);
    add(model.pauses.iter().any(|pause| pause.is_stall), &stall, "machine busy");
    let has_style = |style: MarkStyle| model.marks.iter().any(|mark| mark.style() == style);
    let ok = r#"<circle class="ok" cx="13" cy="7" r="2"/>"#;
    add(has_style(MarkStyle::Accepted), ok, "write accepted");
    add(has_style(MarkStyle::Refused), r#"<circle class="refused" cx="13" cy="7" r="4"/>"#, "stale write refused");
    let read = r#"<path class="read" d="M13 5v4"/>"#;
    add(has_style(MarkStyle::Read), read, "read");
    add(has_style(MarkStyle::Unknown), r#"<circle class="unsure" cx="13" cy="7" r="2.5"/>"#, "write unknown");
    for (class, words) in [("srv", "server fault"), ("net", "network fault"), ("proc", "process fault")] {
        let mark = format!(
            r#"<rect class="band {class}" x="2" y="1" width="22" height="12"/><rect class="edge {class}" x="2" y="1" width="22" height="2"/>"#
        );
        add(model.bands.iter().any(|band| band.css_class() == class), &mark, words);
    }
    add(!model.flags.is_empty(), r#"<rect class="flag" x="3" y="1.5" width="20" height="11" rx="3"/>"#, "violation");
    out
}

/// One mark as a separate small picture.
pub(crate) fn legend_icon(mark: &str) -> String {
    format!(r#"<svg class="lh" width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>"#)
}

/// The legend below the axis, and its height.
pub(super) fn draw(model: &TimelineModel, layout: &Layout, ids: &str) -> (String, f64) {
    let mut out = String::new();
    let (mut x, mut y) = (LANE_NAME_WIDTH, layout.height + 6.0);
    for (mark, words) in legend_entries(model, ids) {
        let width = 32.0 + text_width(&words) + 16.0;
        if x + width > layout.right_edge() && x > LANE_NAME_WIDTH {
            (x, y) = (LANE_NAME_WIDTH, y + 20.0);
        }
        let _ = write!(
            out,
            r#"<g transform="translate({} {})">{mark}<text class="soft" x="31" y="11">{}</text></g>"#,
            round_coordinate(x),
            round_coordinate(y),
            escape_markup(&words)
        );
        x += width;
    }
    (out, y + 24.0 - layout.height)
}
