//! Draws the contents of the lanes: processes, requests for locks, holds, losses, writes.

use std::fmt::Write as _;

use super::layout::{Layout, merge_narrow, text_width};
use super::round_coordinate;
use crate::history::Mode;
use crate::report::escape::escape_markup;
use crate::report::format;
use crate::report::model::{MarkStyle, ProcessEnd, Span, SpanKind, SpanOutcome, TimelineModel};

/// The number of lock colours in the style sheet; further locks repeat them.
pub(crate) const LOCK_COLOURS: usize = 6;

/// Draws all lanes, from back to front. `id_prefix` is that of the fill patterns.
pub(super) fn draw(model: &TimelineModel, layout: &Layout, id_prefix: &str, out: &mut String) {
    draw_lifetimes(model, layout, out);
    draw_pauses(model, layout, id_prefix, out);
    let mut begin = 0;
    for chunk in model.spans.chunk_by(|a, b| (a.lane, a.row) == (b.lane, b.row)) {
        draw_requests(chunk, layout, out);
        draw_holds(chunk, begin, model, layout, out);
        begin += chunk.len();
    }
    for span in &model.spans {
        draw_hold_end(span, layout, out);
    }
    draw_kills(model, layout, out);
    draw_marks(model, layout, out);
}

fn draw_lifetimes(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for life in &model.lifetimes {
        let (x, to) = (round_coordinate(layout.x(life.from)), round_coordinate(layout.x(life.to)));
        let y = layout.y(life.lane, 0);
        let _ = write!(out, r#"<path class="life" d="M{x} {}H{to}"/>"#, round_coordinate(y + layout.bar_height / 2.0));
        let _ = write!(
            out,
            r#"<path class="born" d="M{x} {}V{}"/>"#,
            round_coordinate(y - 2.0),
            round_coordinate(y + layout.bar_height + 2.0)
        );
    }
}

/// Draws a cross where a process was killed.
fn draw_kills(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for life in model.lifetimes.iter().filter(|life| life.end == ProcessEnd::Killed) {
        let (x, y) =
            (round_coordinate(layout.x(life.to)), round_coordinate(layout.y(life.lane, 0) + layout.bar_height / 2.0));
        let words = format!("worker {} was killed at {}", life.worker, format::format_time(life.to));
        let cross = format!("M{x} {y}m-5 -5l10 10m-10 0l10 -10");
        let _ = write!(
            out,
            r#"<path class="under" d="{cross}"/><path class="dead" d="{cross}"><title>{words}</title></path>"#
        );
    }
}

fn draw_pauses(model: &TimelineModel, layout: &Layout, id_prefix: &str, out: &mut String) {
    for pause in &model.pauses {
        let (x, to) = (layout.x(pause.from), layout.x(pause.to));
        let Some((top, height)) = layout.lanes.get(pause.lane) else { continue };
        let (name, did) = if pause.is_stall { ("stall", "did not run") } else { ("stop", "was stopped") };
        let words = format!("worker {} {did} for {}", pause.worker, format::format_duration(pause.to - pause.from));
        let _ = write!(
            out,
            r#"<rect fill="url(#{id_prefix}-{name})" x="{}" y="{}" width="{}" height="{}"><title>{words}</title></rect>"#,
            round_coordinate(x),
            round_coordinate(top + 1.0),
            round_coordinate((to - x).max(1.0)),
            round_coordinate(height - 2.0)
        );
    }
}

/// Draws a thin line for each request until its grant, and for each release until its end.
fn draw_requests(spans: &[Span], layout: &Layout, out: &mut String) {
    let requests = spans
        .iter()
        .enumerate()
        .map(|(at, span)| (layout.x(span.requested_at), layout.x(span.granted_at.unwrap_or(span.done_at)), at));
    let given = spans.iter().enumerate().filter(|(_, span)| span.granted_at.is_some());
    let gives = given.map(|(at, span)| (layout.x(span.held_until), layout.x(span.done_at), at));
    for (class, all) in [("wait", merge_narrow(requests)), ("give", merge_narrow(gives.filter(|(x, to, _)| to > x)))] {
        for one in all.iter().filter(|one| one.x_end - one.x >= 0.5) {
            let Some(span) = spans.get(one.first_index) else { continue };
            let high = if class == "wait" { 2.0 } else { 4.0 };
            let y = layout.y(span.lane, span.row) + (layout.bar_height - high) / 2.0;
            let (x, width) = (round_coordinate(one.x), round_coordinate(one.x_end - one.x));
            let _ = write!(
                out,
                r#"<rect class="{class} l{}" x="{x}" y="{}" width="{width}" height="{high}"/>"#,
                span.lock % LOCK_COLOURS,
                round_coordinate(y)
            );
        }
    }
}

/// Draws a bar for each hold. `spans` is one row of a lane; its first span has the index
/// `first_index` in the model.
fn draw_holds(spans: &[Span], first_index: usize, model: &TimelineModel, layout: &Layout, out: &mut String) {
    let held = spans
        .iter()
        .enumerate()
        .filter_map(|(at, span)| Some((layout.x(span.granted_at?), layout.x(span.relied_on_until), at)));
    for one in merge_narrow(held) {
        let Some(span) = model.spans.get(first_index + one.first_index) else { continue };
        let (y, width) = (layout.y(span.lane, span.row), (one.x_end - one.x).max(0.6));
        let class = if is_shared(span) { "shared" } else { "hold" };
        let words = if one.count > 1 { format!("{} holds", one.count) } else { describe_hold(span, model) };
        let _ = write!(
            out,
            r#"<rect class="{class} l{}" x="{}" y="{}" width="{}" height="{}" rx="{}"><title>{}</title></rect>"#,
            span.lock % LOCK_COLOURS,
            round_coordinate(one.x),
            round_coordinate(y),
            round_coordinate(width),
            layout.bar_height,
            if width > 6.0 { 2 } else { 0 },
            escape_markup(&words)
        );
        let token = span.token.map(|token| token.to_string()).unwrap_or_default();
        if one.count == 1 && !token.is_empty() && text_width(&token) + 4.0 <= width {
            let (x, y) = (round_coordinate(one.x + width / 2.0), round_coordinate(y + layout.bar_height / 2.0 + 3.6));
            let _ = write!(out, r#"<text class="token" x="{x}" y="{y}">{token}</text>"#);
        }
    }
}

/// Whether other holders may have the lock at the same time.
fn is_shared(span: &Span) -> bool {
    matches!(span.kind, SpanKind::Lock(Mode::Shared | Mode::Permits { .. }))
}

/// A hold in words, for a tooltip.
pub(super) fn describe_hold(span: &Span, model: &TimelineModel) -> String {
    let lock = model.locks.get(span.lock).map_or("", String::as_str);
    let token = span.token.map(|token| format!(", token {token}")).unwrap_or_default();
    let from = span.granted_at.unwrap_or(span.requested_at);
    let held = format::format_duration(span.held_until - from);
    let why = if span.outcome.reason().is_empty() { String::new() } else { format!(": {}", span.outcome.reason()) };
    let (worker, from, outcome) = (span.worker, format::format_time(from), span.outcome.description());
    format!("worker {worker} held {lock}{token}, from {from} for {held}; {outcome}{why}")
}

/// Marks the end of a hold that was not simply released: past its deadline, lost, with its process
/// killed, or never granted.
fn draw_hold_end(span: &Span, layout: &Layout, out: &mut String) {
    let y = layout.y(span.lane, span.row);
    let (sure, to) = (layout.x(span.relied_on_until), layout.x(span.held_until));
    let colour = span.lock % LOCK_COLOURS;
    if span.granted_at.is_none() {
        if !matches!(span.outcome, SpanOutcome::Busy | SpanOutcome::Killed | SpanOutcome::Open) {
            let (x, y) =
                (round_coordinate(layout.x(span.done_at)), round_coordinate(y + layout.bar_height / 2.0 - 4.0));
            let _ = write!(out, r#"<path class="fail" d="M{x} {y}v8"/>"#);
        }
        return;
    }
    if to - sure >= 1.5 {
        let _ = write!(
            out,
            r#"<rect class="past l{colour}" x="{}" y="{}" width="{}" height="{}" rx="2"/>"#,
            round_coordinate(sure),
            round_coordinate(y + 2.5),
            round_coordinate(to - sure),
            round_coordinate(layout.bar_height - 5.0)
        );
    }
    if matches!(span.outcome, SpanOutcome::Killed) && span.deadline > span.held_until {
        let (x, y) = (round_coordinate(to), round_coordinate(y + layout.bar_height + 1.5));
        let _ =
            write!(out, r#"<path class="tail l{colour}" d="M{x} {y}H{}"/>"#, round_coordinate(layout.x(span.deadline)));
    }
    if matches!(span.outcome, SpanOutcome::Lost(_)) {
        let words =
            format!("worker {} learned at {} that it is lost", span.worker, format::format_time(span.held_until));
        let why = escape_markup(span.outcome.reason());
        let (x, y) = (round_coordinate(to), round_coordinate(y - 5.0));
        let _ = write!(out, r#"<path class="lost" d="M{x} {y}m-5 0h10l-5 8z"><title>{words}: {why}</title></path>"#);
    }
}

fn draw_marks(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for row in model.marks.chunk_by(|a, b| (a.lane, a.row) == (b.lane, b.row)) {
        // Many dots would merge into a thick line.
        let dot = if row.len() as f64 > layout.width / 10.0 { 0.8 } else { 2.0 };
        // The x position of the last mark of each appearance: overlapping marks are omitted.
        let mut last = [f64::MIN; 4];
        for mark in row {
            let (x, look) = (layout.x(mark.to), mark.style());
            let Some(before) = last.get_mut(look as usize).filter(|before| x - **before >= 2.5) else { continue };
            *before = x;
            // Just below the bar: on it they would cover the token.
            let (x, y) =
                (round_coordinate(x), round_coordinate(layout.y(mark.lane, mark.row) + layout.bar_height + 4.0));
            let _ = match look {
                MarkStyle::Accepted => write!(out, r#"<circle class="ok" cx="{x}" cy="{y}" r="{dot}"/>"#),
                MarkStyle::Refused => write!(out, r#"<circle class="refused" cx="{x}" cy="{y}" r="3.75"/>"#),
                MarkStyle::Read => write!(out, r#"<path class="read" d="M{x} {}v4"/>"#, round_coordinate(y - 2.0)),
                MarkStyle::Unknown => write!(out, r#"<circle class="unsure" cx="{x}" cy="{y}" r="2.5"/>"#),
            };
        }
    }
}

/// Labels each lane with its workers' numbers where they start, and with the faults that hit them.
/// Labels without space are left out.
pub(super) fn draw_labels(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for (lane, (top, _)) in layout.lanes.iter().enumerate() {
        let mut taken: Vec<(f64, f64)> = Vec::new();
        // With `may_end_at_x`, a label without space to the right of `x` may end there instead.
        let mut add_label = |x: f64, text: &str, class: &str, may_end_at_x: bool| {
            let width = text_width(text);
            let positions = [x, x - width];
            let positions = if may_end_at_x { &positions[..] } else { &positions[..1] };
            let fits = |x: f64| {
                x + width <= layout.right_edge() + 8.0 && taken.iter().all(|(a, b)| x > b + 5.0 || x + width + 5.0 < *a)
            };
            let Some(x) = positions.iter().copied().find(|x| fits(*x)) else { return };
            taken.push((x, x + width));
            let (x, y) = (round_coordinate(x), round_coordinate(top + 10.5));
            let _ = write!(out, r#"<text class="{class} halo" x="{x}" y="{y}">{}</text>"#, escape_markup(text));
        };
        for life in model.lifetimes.iter().filter(|life| life.lane == lane) {
            add_label(layout.x(life.from), &format!("worker {}", life.worker), "faint", false);
        }
        for band in model.bands.iter().filter(|band| band.lanes.contains(&lane)) {
            add_label(layout.x(band.from), band.kind.as_str(), "soft", true);
        }
    }
}
