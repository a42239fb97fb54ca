//! The run as short lists for the page's script; `base.js` documents their fields.

use serde_json::{Value, json};

use crate::history::{Mode, Outcome};
use crate::report::model::{Death, Kind, Mark, Run, Span};
use crate::report::svg::{ABOVE, BETWEEN, Frame, GUTTER, LINE, Size};
use crate::report::words;
use crate::verdict::Verdict;

pub(super) fn json(run: &Run, verdict: &Verdict, size: Size) -> String {
    let frame = Frame::new(run, size);
    let lanes = run.lanes.iter().zip(&frame.lanes);
    json!({
        "end": run.end,
        "ttl": verdict.header.ttl,
        "frame": {
            "gutter": GUTTER, "above": ABOVE, "between": BETWEEN, "line": LINE, "bar": frame.bar, "lines": frame.lines,
            "top": frame.top, "bottom": frame.bottom, "height": frame.height,
        },
        "lanes": lanes.map(|(lane, (top, height))| json!([lane.name, top, height, lane.rows])).collect::<Vec<_>>(),
        "locks": run.locks,
        "lives": run.lives.iter().map(|life| {
            json!([life.lane, life.worker, life.pid, life.from, life.to, u8::from(life.death == Death::Killed)])
        }).collect::<Vec<_>>(),
        "pauses": run.pauses.iter().map(|pause| {
            json!([pause.lane, pause.worker, pause.from, pause.to, u8::from(pause.stalled)])
        }).collect::<Vec<_>>(),
        "spans": run.spans.iter().map(span).collect::<Vec<_>>(),
        "marks": run.marks.iter().map(mark).collect::<Vec<_>>(),
        "bands": run.bands.iter().map(|band| {
            json!([band.fault, band.kind.as_str(), band.target, band.from, band.to, band.note, band.lanes, band.class(), band.kind.about(), band.label()])
        }).collect::<Vec<_>>(),
        "flags": run.flags.iter().zip(&verdict.violations).map(|(flag, violation)| {
            json!([flag.from, flag.to, flag.lanes, words::promise(violation.promise), violation.title])
        }).collect::<Vec<_>>(),
    })
    .to_string()
}

fn span(span: &Span) -> Value {
    let (shared, how) = match span.kind {
        Kind::Lock(Mode::Exclusive) => (0, String::new()),
        Kind::Lock(Mode::Shared) => (1, "shared".to_owned()),
        Kind::Lock(Mode::Permits { n, limit }) => (1, format!("{n} of {limit} permits")),
        Kind::Tick(tick, attempt) => (0, format!("tick {tick}, attempt {attempt}")),
    };
    let owner = span.owner.as_ref().map(|owner| format!("owner {owner}"));
    let how = [Some(how), owner].into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    json!([
        span.lane,
        span.row,
        span.lock,
        span.worker,
        span.begin,
        span.granted,
        span.sure,
        span.to,
        span.end,
        span.deadline,
        // A script's numbers have only 53 bits.
        span.token.map(|token| token.to_string()),
        shared,
        span.fate.code(),
        span.fate.why(),
        how,
        span.queued,
        format!("{}:{}", span.op >> 32, span.op & 0xffff_ffff),
    ])
}

fn mark(mark: &Mark) -> Value {
    let what = match (mark.wrote, &mark.outcome) {
        (Some(value), _) => format!("write {value}"),
        (None, Some(Outcome::Value { value: Some(value) })) => format!("read {value}"),
        (None, Some(Outcome::Value { value: None })) => "read, nothing was written yet".to_owned(),
        (None, _) => "read".to_owned(),
    };
    let came = match &mark.outcome {
        Some(Outcome::Accepted) => "accepted".to_owned(),
        Some(Outcome::Refused { seen }) => format!("refused: token {seen} was there before"),
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
        mark.t,
        mark.look() as u8,
        mark.register,
        mark.token.map(|token| token.to_string()),
        what,
        came,
    ])
}
