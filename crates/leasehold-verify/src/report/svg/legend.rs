//! The legend of the marks.

use std::fmt::Write as _;

use super::at;
use super::frame::{Frame, GUTTER, text_width};
use super::lanes::COLOURS;
use crate::report::escape::markup;
use crate::report::model::{Death, Fate, Look, Run, Span};

/// A mark, 26 by 14, and its meaning.
pub(crate) type Entry = (String, String);

/// Further locks have no colour of their own in the legend.
const MOST_LOCKS: usize = 6;

/// Lists only what occurs in this run.
pub(crate) fn entries(run: &Run, ids: &str) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    let mut add = |there: bool, mark: &str, words: &str| {
        if there {
            out.push((mark.to_owned(), words.to_owned()));
        }
    };
    let several = run.locks.len() > 1;
    for (at, lock) in run.locks.iter().enumerate().take(MOST_LOCKS).filter(|_| several) {
        let mark = format!(r#"<rect class="hold l{}" x="2" y="2" width="22" height="10" rx="2"/>"#, at % COLOURS);
        add(true, &mark, &format!("holds {lock}"));
    }
    let held = run.spans.iter().any(|span| span.granted.is_some());
    add(
        held && !several,
        r#"<rect class="hold l0" x="2" y="2" width="22" height="10" rx="2"/>"#,
        "holds, with its token",
    );
    add(!run.spans.is_empty(), r#"<rect class="wait l0" x="2" y="6" width="22" height="2"/>"#, "waits");
    let slow = |from: u64, to: u64| to.saturating_sub(from) > run.end / 200;
    let gives = run.spans.iter().any(|span| span.granted.is_some() && slow(span.to, span.end));
    add(gives, r#"<rect class="give l0" x="2" y="5" width="22" height="4"/>"#, "gives back");
    let failed = |span: &Span| span.granted.is_none() && !matches!(span.fate, Fate::Busy | Fate::Killed | Fate::Open);
    let fails = run.spans.iter().any(failed);
    add(
        fails,
        r#"<rect class="wait l0" x="2" y="6" width="12" height="2"/><path class="fail" d="M14 3v8"/>"#,
        "not granted",
    );
    let past = run.spans.iter().any(|span| span.to > span.sure);
    add(
        past,
        r#"<rect class="past l0" x="2" y="2" width="22" height="10" rx="2"/>"#,
        "past its deadline, not yet told",
    );
    let lost = run.spans.iter().any(|span| matches!(span.fate, Fate::Lost(_)));
    add(lost, r#"<path class="lost" d="M13 3m-5 0h10l-5 8z"/>"#, "learns of the loss");
    let tail = run.spans.iter().any(|span| span.fate == Fate::Killed && span.deadline > span.to);
    add(tail, r#"<path class="tail l0" d="M2 7H24"/>"#, "lease of the dead, until its deadline");
    let killed = run.lives.iter().any(|life| life.death == Death::Killed);
    add(killed, r#"<path class="dead" d="M9 3L17 11M9 11L17 3"/>"#, "killed");
    let stop = format!(r#"<rect fill="url(#{ids}-stop)" x="2" y="1" width="22" height="12"/>"#);
    add(run.pauses.iter().any(|pause| !pause.stalled), &stop, "stopped");
    let stall = format!(r#"<rect fill="url(#{ids}-stall)" x="2" y="1" width="22" height="12"/>"#);
    add(run.pauses.iter().any(|pause| pause.stalled), &stall, "machine busy");
    let look = |look: Look| run.marks.iter().any(|mark| mark.look() == look);
    let ok = r#"<circle class="ok" cx="13" cy="7" r="2"/>"#;
    add(look(Look::Accepted), ok, "write accepted");
    add(look(Look::Refused), r#"<circle class="refused" cx="13" cy="7" r="4"/>"#, "stale write refused");
    let read = r#"<path class="read" d="M13 5v4"/>"#;
    add(look(Look::Read), read, "read");
    add(look(Look::Unknown), r#"<circle class="unsure" cx="13" cy="7" r="2.5"/>"#, "write unknown");
    for (class, words) in [("srv", "server fault"), ("net", "network fault"), ("proc", "process fault")] {
        let mark = format!(
            r#"<rect class="band {class}" x="2" y="1" width="22" height="12"/><rect class="edge {class}" x="2" y="1" width="22" height="2"/>"#
        );
        add(run.bands.iter().any(|band| band.class() == class), &mark, words);
    }
    add(!run.flags.is_empty(), r#"<rect class="flag" x="3" y="1.5" width="20" height="11" rx="3"/>"#, "violation");
    out
}

/// One mark as a separate small picture.
pub(crate) fn swatch(mark: &str) -> String {
    format!(r#"<svg class="lh" width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>"#)
}

/// The legend below the axis, and its height.
pub(super) fn draw(run: &Run, frame: &Frame, ids: &str) -> (String, f64) {
    let mut out = String::new();
    let (mut x, mut y) = (GUTTER, frame.height + 6.0);
    for (mark, words) in entries(run, ids) {
        let width = 32.0 + text_width(&words) + 16.0;
        if x + width > frame.right() && x > GUTTER {
            (x, y) = (GUTTER, y + 20.0);
        }
        let _ = write!(
            out,
            r#"<g transform="translate({} {})">{mark}<text class="soft" x="31" y="11">{}</text></g>"#,
            at(x),
            at(y),
            markup(&words)
        );
        x += width;
    }
    (out, y + 24.0 - frame.height)
}
