//! The legend: explains the marks that occur in the picture.

use std::fmt::Write as _;

use super::lanes::LOCK_COLOURS;
use super::layout::{LANE_NAME_WIDTH, Layout, text_width};
use super::round_coordinate;
use crate::report::escape::escape_markup;
use crate::report::model::{MarkStyle, ProcessEnd, Span, SpanOutcome, TimelineModel};

/// A mark as SVG, 26 by 14 pixels, and its meaning in words.
pub(crate) type LegendEntry = (String, String);

/// The maximum of locks that the legend lists with their colours.
const MAX_LOCKS: usize = 6;

/// The legend's entries, only for marks that occur in this run. `id_prefix` is that of the fill
/// patterns.
pub(crate) fn legend_entries(model: &TimelineModel, id_prefix: &str) -> Vec<LegendEntry> {
    let mut out: Vec<LegendEntry> = Vec::new();
    let mut add = |occurs: bool, mark: &str, words: &str| {
        if occurs {
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
    let stop = format!(r#"<rect fill="url(#{id_prefix}-stop)" x="2" y="1" width="22" height="12"/>"#);
    add(model.pauses.iter().any(|pause| !pause.is_stall), &stop, "stopped");
    let stall = format!(r#"<rect fill="url(#{id_prefix}-stall)" x="2" y="1" width="22" height="12"/>"#);
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

/// Wraps a mark of the legend as a small SVG of its own.
pub(crate) fn legend_icon(mark: &str) -> String {
    format!(r#"<svg class="lh" width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>"#)
}

/// Draws the legend below the axis; returns its SVG and its height in pixels.
pub(super) fn draw(model: &TimelineModel, layout: &Layout, id_prefix: &str) -> (String, f64) {
    let mut out = String::new();
    let (mut x, mut y) = (LANE_NAME_WIDTH, layout.height + 6.0);
    for (mark, words) in legend_entries(model, id_prefix) {
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
