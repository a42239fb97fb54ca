//! Draws what spans all lanes: the time axis, faults with their labels, violations with their
//! numbers.

use std::fmt::Write as _;

use super::layout::{LABEL_LINE_HEIGHT, LANE_NAME_WIDTH, Layout, text_width};
use super::round_coordinate;
use crate::history::RunNanos;
use crate::report::escape::escape_markup;
use crate::report::format;
use crate::report::model::{FaultBand, TimelineModel};

/// Draws the axis, a line for each of its ticks, and the lanes' names.
pub(super) fn draw_grid(model: &TimelineModel, layout: &Layout, out: &mut String) {
    let (ticks, places) = layout.axis_ticks();
    for t in ticks {
        let x = round_coordinate(layout.x(t));
        let (top, bottom) = (round_coordinate(layout.top), round_coordinate(layout.bottom));
        let _ = write!(out, r#"<path class="grid" d="M{x} {top}V{bottom}"/>"#);
        let label = format!("{:.places$} s", t as f64 / 1e9);
        let _ = write!(
            out,
            r#"<text class="soft mid" x="{x}" y="{}">{label}</text>"#,
            round_coordinate(layout.bottom + 17.0)
        );
    }
    let (bottom, right) = (round_coordinate(layout.bottom), layout.right_edge());
    let _ = write!(out, r#"<path class="axis" d="M{LANE_NAME_WIDTH} {bottom}H{right}"/>"#);
    for (lane, (top, _)) in model.lanes.iter().zip(&layout.lanes) {
        let y = round_coordinate(top + super::LANE_TOP_PADDING + layout.bar_height / 2.0 + 4.0);
        let _ = write!(out, r#"<text class="soft" x="4" y="{y}">{}</text>"#, escape_markup(&lane.name));
    }
}

/// A fault's label above the lanes.
pub(super) struct FaultLabel {
    /// The index of the fault's band in the model.
    pub(super) band: usize,
    /// The line of labels that it is on, from 0 at the top.
    pub(super) line: usize,
    /// Its left edge.
    pub(super) x: f64,
    pub(super) text: String,
}

/// Places the faults' labels on `line_count` lines, each on the first line where it overlaps no
/// other. Labels that fit on no line are left out.
pub(super) fn place_labels(model: &TimelineModel, layout: &Layout, line_count: usize) -> Vec<FaultLabel> {
    let mut free = vec![0.0; line_count];
    let mut out = Vec::new();
    for (band, fault) in model.bands.iter().enumerate().filter(|(_, fault)| fault.lanes.is_empty()) {
        let start = layout.x(fault.from);
        for text in [fault.label(), fault.kind.to_string()] {
            let width = text_width(&text);
            let x = start.min(layout.right_edge() - width - 6.0).max(LANE_NAME_WIDTH);
            if let Some(line) = free.iter().position(|end| *end <= x) {
                if let Some(end) = free.get_mut(line) {
                    *end = x + width + 16.0;
                }
                out.push(FaultLabel { band, line, x, text });
                break;
            }
        }
    }
    out
}

/// A fault in words, for a tooltip.
pub(crate) fn describe_fault(band: &FaultBand) -> String {
    let lasted = if band.to > band.from {
        format!(" for {}", format::format_duration(band.to - band.from))
    } else {
        String::new()
    };
    let note = if band.note.is_empty() { String::new() } else { format!(": {}", band.note) };
    format!("fault {}: {} {} at {}{lasted}{note}", band.fault, band.kind, band.target, format::format_time(band.from))
}

pub(super) fn draw_faults(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for band in &model.bands {
        let (x, width) = widened(layout, band.from, band.to, 2.0);
        let (class, words) = (band.css_class(), escape_markup(&describe_fault(band)));
        if band.lanes.is_empty() {
            let (top, height) = (round_coordinate(layout.top), round_coordinate(layout.bottom - layout.top));
            let _ = write!(
                out,
                r#"<g><title>{words}</title><rect class="band {class}" x="{x}" y="{top}" width="{width}" height="{height}"/><rect class="edge {class}" x="{x}" y="{}" width="{width}" height="2"/></g>"#,
                round_coordinate(layout.top - 2.0)
            );
        }
        for (top, height) in band.lanes.iter().filter_map(|lane| layout.lanes.get(*lane)) {
            let _ = write!(
                out,
                r#"<rect class="band {class}" x="{x}" y="{}" width="{width}" height="{}"><title>{words}</title></rect>"#,
                round_coordinate(top + 1.0),
                round_coordinate(height - 2.0)
            );
        }
    }
    for label in place_labels(model, layout, layout.label_lines) {
        let Some(band) = model.bands.get(label.band) else { continue };
        let (x, class) = (round_coordinate(layout.x(band.from)), band.css_class());
        let y = 4.0 + LABEL_LINE_HEIGHT * label.line as f64;
        let _ = write!(
            out,
            r#"<path class="leader {class}" d="M{x} {y}V{}"/><text class="halo" x="{}" y="{}">{}</text>"#,
            round_coordinate(layout.top),
            round_coordinate(label.x + 5.0),
            y + 9.0,
            escape_markup(&label.text)
        );
    }
}

/// Draws each violation: an outline on the lanes of the workers involved, and its number above.
pub(super) fn draw_violations(model: &TimelineModel, layout: &Layout, out: &mut String) {
    for flag in &model.flags {
        let (x, width) = widened(layout, flag.from, flag.to, 16.0);
        let all = [(layout.top, layout.bottom - layout.top)];
        let lanes: Vec<(f64, f64)> = flag.lanes.iter().filter_map(|lane| layout.lanes.get(*lane)).copied().collect();
        for (top, height) in if lanes.is_empty() { &all[..] } else { &lanes } {
            let _ = write!(
                out,
                r#"<rect class="flag" x="{x}" y="{}" width="{width}" height="{}" rx="3"/>"#,
                round_coordinate(top + 2.0),
                round_coordinate(height - 3.0)
            );
        }
    }
    for (x, first, last) in place_badges(model, layout) {
        let text = if first == last { first.to_string() } else { format!("{first}–{last}") };
        let width = (text_width(&text) + 10.0).max(17.0);
        let y = round_coordinate(layout.top - 21.0);
        let _ = write!(
            out,
            r#"<path class="flagline" d="M{x} {}V{}"/><rect class="badge" x="{}" y="{y}" width="{width}" height="17" rx="8.5"/><text class="number" x="{x}" y="{}">{text}</text>"#,
            round_coordinate(layout.top - 4.0),
            round_coordinate(layout.bottom),
            round_coordinate(x - width / 2.0),
            round_coordinate(y + 12.3),
            x = round_coordinate(x),
        );
    }
}

/// Places the violations' numbers above the lanes: for each badge its x position, and the first and
/// last number on it. Badges that would overlap are merged.
fn place_badges(model: &TimelineModel, layout: &Layout) -> Vec<(f64, usize, usize)> {
    let mut out: Vec<(f64, usize, usize)> = Vec::new();
    for (number, flag) in model.flags.iter().enumerate().map(|(at, flag)| (at + 1, flag)) {
        let x = (layout.x(flag.from) + layout.x(flag.to)) / 2.0;
        match out.last_mut() {
            Some((before, _, last)) if (x - *before).abs() < 34.0 => *last = number,
            _ => out.push((x, number, number)),
        }
    }
    out
}

/// A time span as x position and width; a span narrower than `min_width` is widened on both sides.
fn widened(layout: &Layout, from: RunNanos, to: RunNanos, min_width: f64) -> (f64, f64) {
    let (x, end) = (layout.x(from), layout.x(to));
    let more = ((min_width - (end - x)) / 2.0).max(0.0);
    (round_coordinate(x - more), round_coordinate(end - x + 2.0 * more))
}
