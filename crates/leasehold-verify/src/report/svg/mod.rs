//! The timeline as a picture: one self-contained SVG, light and dark.
//!
//! It is drawn from back to front: grid, faults, processes, calls, violations, labels.

mod frame;
mod lanes;
mod legend;
mod over;

pub(crate) use frame::{ABOVE, BETWEEN, Frame, GUTTER, LINE};
pub(crate) use legend::{entries, swatch};

use std::fmt::Write as _;

use super::escape::markup;
use super::model::{self, Run};
use super::words;
use crate::history::Event;
use crate::verdict::Verdict;

/// The style of every timeline; all of it is scoped to the class `lh`.
pub(crate) const STYLE: &str = include_str!("timeline.css");

/// The size of a picture. Its lanes determine its height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The width in pixels.
    pub width: u32,
    /// The height of a bar in pixels.
    pub bar: u32,
    /// Whether a legend is drawn below.
    pub legend: bool,
}

impl Default for Size {
    fn default() -> Self {
        Self { width: 1100, bar: 16, legend: true }
    }
}

/// The whole run as a picture.
pub fn timeline(events: &[Event], verdict: &Verdict, size: Size) -> String {
    let mut run = model::read(events, verdict);
    run.thin(model::MOST_SPANS, verdict.header.ttl);
    draw(&run, &alt(verdict), size, "a")
}

/// The alternative text of the picture.
pub(crate) fn alt(verdict: &Verdict) -> String {
    let head = words::headline(verdict);
    format!("Timeline of a run of leasehold verify on {}. {}: {}", verdict.header.engine, head.word, head.rest)
}

/// `ids` makes its ids distinct from those of other pictures on the same page.
pub(crate) fn draw(run: &Run, alt: &str, size: Size, ids: &str) -> String {
    let frame = Frame::new(run, size);
    let (legend, below) = if size.legend { legend::draw(run, &frame, ids) } else { (String::new(), 0.0) };
    let mut out = String::new();
    let (width, height) = (frame.width, frame.height + below);
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="lh" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{}">"#,
        markup(alt)
    );
    let _ = write!(out, "<style>{STYLE}</style>{}", patterns(ids));
    let _ = write!(out, r#"<rect class="bg" width="{width}" height="{height}"/>"#);
    over::grid(run, &frame, &mut out);
    over::bands(run, &frame, &mut out);
    lanes::draw(run, &frame, ids, &mut out);
    over::flags(run, &frame, &mut out);
    lanes::labels(run, &frame, &mut out);
    out.push_str(&legend);
    out.push_str("</svg>");
    out
}

/// Hatching, for the times in which a process did not run.
pub(crate) fn patterns(ids: &str) -> String {
    let hatch = |name: &str, class: &str| {
        format!(
            r#"<pattern id="{ids}-{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="{class}" d="M3 0V6"/></pattern>"#
        )
    };
    format!("<defs>{}{}</defs>", hatch("stop", "hatch"), hatch("stall", "hatch light"))
}

/// A coordinate, rounded to a tenth of a pixel.
pub(crate) fn at(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
