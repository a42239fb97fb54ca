//! Writes the verdict as one self-contained HTML page: no network, no fonts, no other file.
//!
//! Without scripts the page shows the whole run as [`svg`] draws it; with scripts the timeline can
//! be zoomed. All text from the history is escaped by `escape`; numbers that a script would round
//! are written as text.

mod data;
mod sections;

use super::escape::{escape_markup, escape_script_json};
use super::format;
use super::model;
use super::svg::{self, Size};
use crate::history::Event;
use crate::verdict::Verdict;

const STYLE: &str = include_str!("page.css");

/// The files of the page's script, which are joined in one function so that their names stay
/// private.
const SCRIPT_FILES: [&str; 5] = [
    include_str!("base.js"),
    include_str!("draw.js"),
    include_str!("over.js"),
    include_str!("tips.js"),
    include_str!("moves.js"),
];

/// The page's Content-Security-Policy: it may load nothing, and run only its own inline script.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Writes the page for a history and its verdict.
pub fn page(events: &[Event], verdict: &Verdict) -> String {
    let mut timeline = model::build(events, verdict);
    timeline.thin_out(model::MAX_SPANS, verdict.header.ttl);
    let size = Size { width: if verdict.violations.is_empty() { 1180 } else { 860 }, legend: false, ..Size::default() };
    let picture = svg::draw_timeline(&timeline, &svg::alt_text(verdict), size, "a");
    let head = format::headline(verdict);
    let mut out = String::with_capacity(picture.len() * 2 + 65_536);
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str(&format!(
        r#"<meta http-equiv="Content-Security-Policy" content="{}">"#,
        escape_markup(CONTENT_SECURITY_POLICY)
    ));
    out.push_str(r#"<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">"#);
    out.push_str(&format!(
        "<title>{}: {} · leasehold verify</title>",
        escape_markup(&verdict.header.engine),
        head.verdict
    ));
    out.push_str(&format!("<style>{STYLE}</style></head><body><main>"));
    out.push_str(&sections::header(verdict));
    out.push_str(&sections::key_figures(verdict));
    out.push_str(&sections::timeline_section(&timeline, verdict, &picture));
    out.push_str("<div class=\"pair\">");
    out.push_str(&sections::guarantees_table(verdict));
    out.push_str(&sections::faults_table(verdict));
    out.push_str("</div>");
    out.push_str(&sections::run_parameters(verdict));
    out.push_str("</main>");
    let json = data::page_data(&timeline, verdict, size);
    out.push_str(&format!(r#"<script type="application/json" id="data">{}</script>"#, escape_script_json(&json)));
    out.push_str(&format!(
        "<script>(() => {{\n\"use strict\";\n{}}})();</script></body></html>\n",
        SCRIPT_FILES.concat()
    ));
    out
}
