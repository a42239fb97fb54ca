//! Elements over all lanes: the axis, faults with their labels, violations with their numbers.

use std::fmt::Write as _;

use super::at;
use super::frame::{Frame, GUTTER, LINE, text_width};
use crate::history::Nanos;
use crate::report::escape::markup;
use crate::report::model::{Band, Run};
use crate::report::words;

/// Draws the axis, a line for each of its ticks, and the lanes' names.
pub(super) fn grid(run: &Run, frame: &Frame, out: &mut String) {
    let (ticks, places) = frame.ticks();
    for t in ticks {
        let x = at(frame.x(t));
        let (top, bottom) = (at(frame.top), at(frame.bottom));
        let _ = write!(out, r#"<path class="grid" d="M{x} {top}V{bottom}"/>"#);
        let label = format!("{:.places$} s", t as f64 / 1e9);
        let _ = write!(out, r#"<text class="soft mid" x="{x}" y="{}">{label}</text>"#, at(frame.bottom + 17.0));
    }
    let (bottom, right) = (at(frame.bottom), frame.right());
    let _ = write!(out, r#"<path class="axis" d="M{GUTTER} {bottom}H{right}"/>"#);
    for (lane, (top, _)) in run.lanes.iter().zip(&frame.lanes) {
        let y = at(top + super::ABOVE + frame.bar / 2.0 + 4.0);
        let _ = write!(out, r#"<text class="soft" x="4" y="{y}">{}</text>"#, markup(&lane.name));
    }
}

/// A label of a fault above the lanes.
pub(super) struct Label {
    pub(super) band: usize,
    pub(super) line: usize,
    pub(super) x: f64,
    pub(super) text: String,
}

/// The labels that fit, each on the first line where it overlaps no other.
pub(super) fn labels(run: &Run, frame: &Frame, lines: usize) -> Vec<Label> {
    let mut free = vec![0.0; lines];
    let mut out = Vec::new();
    for (band, fault) in run.bands.iter().enumerate().filter(|(_, fault)| fault.lanes.is_empty()) {
        let start = frame.x(fault.from);
        for text in [fault.label(), fault.kind.to_string()] {
            let width = text_width(&text);
            let x = start.min(frame.right() - width - 6.0).max(GUTTER);
            if let Some(line) = free.iter().position(|end| *end <= x) {
                if let Some(end) = free.get_mut(line) {
                    *end = x + width + 16.0;
                }
                out.push(Label { band, line, x, text });
                break;
            }
        }
    }
    out
}

/// A fault in words.
pub(crate) fn fault_words(band: &Band) -> String {
    let lasted = if band.to > band.from { format!(" for {}", words::span(band.to - band.from)) } else { String::new() };
    let note = if band.note.is_empty() { String::new() } else { format!(": {}", band.note) };
    format!("fault {}: {} {} at {}{lasted}{note}", band.fault, band.kind, band.target, words::moment(band.from))
}

pub(super) fn bands(run: &Run, frame: &Frame, out: &mut String) {
    for band in &run.bands {
        let (x, width) = stretch(frame, band.from, band.to, 2.0);
        let (class, words) = (band.class(), markup(&fault_words(band)));
        if band.lanes.is_empty() {
            let (top, height) = (at(frame.top), at(frame.bottom - frame.top));
            let _ = write!(
                out,
                r#"<g><title>{words}</title><rect class="band {class}" x="{x}" y="{top}" width="{width}" height="{height}"/><rect class="edge {class}" x="{x}" y="{}" width="{width}" height="2"/></g>"#,
                at(frame.top - 2.0)
            );
        }
        for (top, height) in band.lanes.iter().filter_map(|lane| frame.lanes.get(*lane)) {
            let _ = write!(
                out,
                r#"<rect class="band {class}" x="{x}" y="{}" width="{width}" height="{}"><title>{words}</title></rect>"#,
                at(top + 1.0),
                at(height - 2.0)
            );
        }
    }
    for label in labels(run, frame, frame.lines) {
        let Some(band) = run.bands.get(label.band) else { continue };
        let (x, class) = (at(frame.x(band.from)), band.class());
        let y = 4.0 + LINE * label.line as f64;
        let _ = write!(
            out,
            r#"<path class="leader {class}" d="M{x} {y}V{}"/><text class="halo" x="{}" y="{}">{}</text>"#,
            at(frame.top),
            at(label.x + 5.0),
            y + 9.0,
            markup(&label.text)
        );
    }
}

/// Draws violations: an outline on the lanes of the workers involved, and its number above.
pub(super) fn flags(run: &Run, frame: &Frame, out: &mut String) {
    for flag in &run.flags {
        let (x, width) = stretch(frame, flag.from, flag.to, 16.0);
        let all = [(frame.top, frame.bottom - frame.top)];
        let lanes: Vec<(f64, f64)> = flag.lanes.iter().filter_map(|lane| frame.lanes.get(*lane)).copied().collect();
        for (top, height) in if lanes.is_empty() { &all[..] } else { &lanes } {
            let _ = write!(
                out,
                r#"<rect class="flag" x="{x}" y="{}" width="{width}" height="{}" rx="3"/>"#,
                at(top + 2.0),
                at(height - 3.0)
            );
        }
    }
    for (x, first, last) in badges(run, frame) {
        let text = if first == last { first.to_string() } else { format!("{first}–{last}") };
        let width = (text_width(&text) + 10.0).max(17.0);
        let y = at(frame.top - 21.0);
        let _ = write!(
            out,
            r#"<path class="flagline" d="M{x} {}V{}"/><rect class="badge" x="{}" y="{y}" width="{width}" height="17" rx="8.5"/><text class="number" x="{x}" y="{}">{text}</text>"#,
            at(frame.top - 4.0),
            at(frame.bottom),
            at(x - width / 2.0),
            at(y + 12.3),
            x = at(x),
        );
    }
}

/// The positions of the numbers; overlapping ones are merged into a range.
fn badges(run: &Run, frame: &Frame) -> Vec<(f64, usize, usize)> {
    let mut out: Vec<(f64, usize, usize)> = Vec::new();
    for (number, flag) in run.flags.iter().enumerate().map(|(at, flag)| (at + 1, flag)) {
        let x = (frame.x(flag.from) + frame.x(flag.to)) / 2.0;
        match out.last_mut() {
            Some((before, _, last)) if (x - *before).abs() < 34.0 => *last = number,
            _ => out.push((x, number, number)),
        }
    }
    out
}

/// A time span as x position and width, with a minimum width.
fn stretch(frame: &Frame, from: Nanos, to: Nanos, least: f64) -> (f64, f64) {
    let (x, end) = (frame.x(from), frame.x(to));
    let more = ((least - (end - x)) / 2.0).max(0.0);
    (at(x - more), at(end - x + 2.0 * more))
}
