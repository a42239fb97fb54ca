//! The verdict for people: as text, as JSON, and as one HTML page with the timeline.
//!
//! | module | what it gives |
//! |---|---|
//! | [`text`] | a few lines for the terminal |
//! | [`html`] | one page that works offline, with a timeline to zoom into |
//! | [`svg`] | the timeline alone, as a picture |
//!
//! What is drawn is a `model::Run`: both the picture here and the script in the page draw that, and nothing else.

pub mod html;
pub mod svg;
pub mod text;

mod escape;
mod model;
pub(crate) mod words;

use crate::verdict::Verdict;

/// The verdict as JSON, for programs.
pub fn json(verdict: &Verdict) -> String {
    // Keys are text and numbers are finite: this cannot fail.
    let mut text = serde_json::to_string_pretty(verdict).unwrap_or_default();
    text.push('\n');
    text
}
