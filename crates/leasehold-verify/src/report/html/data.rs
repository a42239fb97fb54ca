//! The timeline as JSON for the page's script: arrays without field names, to be short. `base.js`
//! names their fields.

use serde_json::{Value, json};

use crate::history::{Mode, Outcome};
use crate::report::format;
use crate::report::model::{ProcessEnd, RegisterMark, Span, SpanKind, TimelineModel};
use crate::report::svg::{LABEL_LINE_HEIGHT, LANE_NAME_WIDTH, LANE_TOP_PADDING, Layout, ROW_GAP, Size};
use crate::verdict::Verdict;

/// Builds the JSON of the whole timeline. `size` must be that of the static picture.
pub(super) fn page_data(model: &TimelineModel, verdict: &Verdict, size: Size) -> String {
    let layout = Layout::new(model, size);
    let lanes = model.lanes.iter().zip(&layout.lanes);
    json!({
        "end": model.end,
        "ttl": verdict.header.ttl,
        "frame": {
            "gutter": LANE_NAME_WIDTH, "above": LANE_TOP_PADDING, "between": ROW_GAP, "line": LABEL_LINE_HEIGHT, "bar": layout.bar_height, "lines": layout.label_lines,
            "top": layout.top, "bottom": layout.bottom, "height": layout.height,
        },
        "lanes": lanes.map(|(lane, (top, height))| json!([lane.name, top, height, lane.rows])).collect::<Vec<_>>(),
        "locks": model.locks,
        "lives": model.lifetimes.iter().map(|life| {
            json!([life.lane, life.worker, life.pid, life.from, life.to, u8::from(life.end == ProcessEnd::Killed)])
        }).collect::<Vec<_>>(),
        "pauses": model.pauses.iter().map(|pause| {
            json!([pause.lane, pause.worker, pause.from, pause.to, u8::from(pause.is_stall)])
        }).collect::<Vec<_>>(),
        "spans": model.spans.iter().map(span_data).collect::<Vec<_>>(),
        "marks": model.marks.iter().map(mark_data).collect::<Vec<_>>(),
        "bands": model.bands.iter().map(|band| {
            json!([band.fault, band.kind.as_str(), band.target, band.from, band.to, band.note, band.lanes, band.css_class(), band.kind.description(), band.label()])
        }).collect::<Vec<_>>(),
        "flags": model.flags.iter().zip(&verdict.violations).map(|(flag, violation)| {
            json!([flag.from, flag.to, flag.lanes, format::guarantee_name(violation.guarantee), violation.title])
        }).collect::<Vec<_>>(),
    })
    .to_string()
}

/// A span as a JSON array; `base.js` names its fields.
fn span_data(span: &Span) -> Value {
    let (shared, how) = match span.kind {
        SpanKind::Lock(Mode::Exclusive) => (0, String::new()),
        SpanKind::Lock(Mode::Shared) => (1, "shared".to_owned()),
        SpanKind::Lock(Mode::Permits { n, limit }) => (1, format!("{n} of {limit} permits")),
        SpanKind::Tick(tick, attempt) => (0, format!("tick {tick}, attempt {attempt}")),
    };
    let owner = span.owner.as_ref().map(|owner| format!("owner {owner}"));
    let how = [Some(how), owner].into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    json!([
        span.lane,
        span.row,
        span.lock,
        span.worker,
        span.requested_at,
        span.granted_at,
        span.relied_on_until,
        span.held_until,
        span.done_at,
        span.deadline,
        // As text, because a number in JavaScript is exact only up to 53 bits.
        span.token.map(|token| token.to_string()),
        shared,
        span.outcome.code(),
        span.outcome.reason(),
        how,
        span.queued_at,
        format!("{}:{}", span.op >> 32, span.op & 0xffff_ffff),
    ])
}

/// An access to a register as a JSON array; `base.js` names its fields.
fn mark_data(mark: &RegisterMark) -> Value {
    let what = match (mark.written, &mark.outcome) {
        (Some(value), _) => format!("write {value}"),
        (None, Some(Outcome::Value { value: Some(value) })) => format!("read {value}"),
        (None, Some(Outcome::Value { value: None })) => "read: no value written yet".to_owned(),
        (None, _) => "read".to_owned(),
    };
    let outcome_text = match &mark.outcome {
        Some(Outcome::Accepted) => "accepted".to_owned(),
        Some(Outcome::Refused { seen }) => format!("refused: the register has seen token {seen}"),
        Some(Outcome::Failed { error }) => format!("failed: {error}"),
        Some(Outcome::Unknown { error }) => format!("unknown: {error}"),
        Some(_) => String::new(),
        None => "no end".to_owned(),
    };
    json!([
        mark.lane,
        mark.row,
        mark.worker,
        mark.from,
        mark.to,
        mark.style() as u8,
        mark.register,
        mark.token.map(|token| token.to_string()),
        what,
        outcome_text,
    ])
}
