//! Draws the timeline as one self-contained SVG, in light and dark colours.
//!
//! It is drawn from back to front: grid, faults, processes, calls, violations, labels.

mod lanes;
mod layout;
mod legend;
mod overlay;

pub(crate) use layout::{LABEL_LINE_HEIGHT, LANE_NAME_WIDTH, LANE_TOP_PADDING, Layout, ROW_GAP};
pub(crate) use legend::{legend_entries, legend_icon};

use std::fmt::Write as _;

use super::escape::escape_markup;
use super::format;
use super::model::{self, TimelineModel};
use crate::history::Event;
use crate::verdict::Verdict;

/// The CSS of every timeline; all rules apply only inside the class `lh`.
pub(crate) const STYLE: &str = include_str!("timeline.css");

/// The size of a timeline picture. Its height follows from the number of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The width in pixels.
    pub width: u32,
    /// The height of a hold's bar in pixels.
    pub bar: u32,
    /// Whether a legend is drawn below the timeline.
    pub legend: bool,
}

impl Default for Size {
    fn default() -> Self {
        Self { width: 1100, bar: 16, legend: true }
    }
}

/// Draws the whole test run as an SVG.
pub fn timeline(events: &[Event], verdict: &Verdict, size: Size) -> String {
    let mut timeline = model::build(events, verdict);
    timeline.thin_out(model::MAX_SPANS, verdict.header.ttl);
    draw_timeline(&timeline, &alt_text(verdict), size, "a")
}

/// The picture's alternative text for screen readers: the engine and the verdict.
pub(crate) fn alt_text(verdict: &Verdict) -> String {
    let head = format::headline(verdict);
    format!("Timeline of a run of leasehold verify on {}. {}: {}", verdict.header.engine, head.verdict, head.rest)
}

/// Draws the timeline as an SVG. `id_prefix` keeps its element ids distinct from those of other
/// pictures on the same page.
pub(crate) fn draw_timeline(model: &TimelineModel, alt: &str, size: Size, id_prefix: &str) -> String {
    let layout = Layout::new(model, size);
    let (legend, below) = if size.legend { legend::draw(model, &layout, id_prefix) } else { (String::new(), 0.0) };
    let mut out = String::new();
    let (width, height) = (layout.width, layout.height + below);
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="lh" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{}">"#,
        escape_markup(alt)
    );
    let _ = write!(out, "<style>{STYLE}</style>{}", hatch_patterns(id_prefix));
    let _ = write!(out, r#"<rect class="bg" width="{width}" height="{height}"/>"#);
    overlay::draw_grid(model, &layout, &mut out);
    overlay::draw_faults(model, &layout, &mut out);
    lanes::draw(model, &layout, id_prefix, &mut out);
    overlay::draw_violations(model, &layout, &mut out);
    lanes::draw_labels(model, &layout, &mut out);
    out.push_str(&legend);
    out.push_str("</svg>");
    out
}

/// Defines the SVG patterns that fill the times in which a process did not run.
pub(crate) fn hatch_patterns(id_prefix: &str) -> String {
    let hatch = |name: &str, class: &str| {
        format!(
            r#"<pattern id="{id_prefix}-{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="{class}" d="M3 0V6"/></pattern>"#
        )
    };
    format!("<defs>{}{}</defs>", hatch("stop", "hatch"), hatch("stall", "hatch light"))
}

/// Rounds a coordinate to a tenth of a pixel.
pub(crate) fn round_coordinate(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
