//! Reports a verdict as text, as JSON, and as one HTML page with the timeline.
//!
//! | module | output |
//! |---|---|
//! | [`text`] | a few lines for the terminal |
//! | [`html`] | one page that works offline, with a zoomable timeline |
//! | [`svg`] | the timeline alone, as a picture |
//!
//! [`svg`] and the script in the page draw the same `model::TimelineModel`.

pub mod html;
pub mod svg;
pub mod text;

mod escape;
pub(crate) mod format;
mod model;

use crate::verdict::Verdict;

/// Formats the verdict as indented JSON, with a newline at the end.
pub fn json(verdict: &Verdict) -> String {
    // Map keys are text and numbers are finite, so this cannot fail.
    let mut text = serde_json::to_string_pretty(verdict).unwrap_or_default();
    text.push('\n');
    text
}
