//! The parts of the page.

use std::fmt::Write as _;

use crate::report::escape::markup;
use crate::report::model::Run;
use crate::report::svg::{entries, patterns, swatch};
use crate::report::{text, words};
use crate::verdict::{State, Verdict};

/// The verdict as the page's header.
pub(super) fn top(verdict: &Verdict) -> String {
    let head = words::headline(verdict);
    let class = if head.good { "good" } else { "bad" };
    let icon = if head.good { "M7 12.5l3.4 3.4L17 9" } else { "M8.2 8.2l7.6 7.6M15.8 8.2l-7.6 7.6" };
    let mut word = head.word.to_lowercase();
    if let Some(first) = word.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let header = &verdict.header;
    let control = if header.guard { "" } else { "<p class=\"control\">A negative control: it must be found out.</p>" };
    format!(
        r#"<header class="{class}"><p class="brand"><b>leasehold verify</b><span>{} at <code>{}</code></span><span>{}</span></p><h1><svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="11"/><path d="{icon}"/></svg>{word}</h1><p class="lead">{}</p>{control}</header>"#,
        markup(&header.engine),
        markup(&header.url),
        markup(&header.started),
        markup(&words::lead(verdict)),
    )
}

/// The figures, in a row.
pub(super) fn figures(verdict: &Verdict) -> String {
    let counts = &verdict.counts;
    let all = [
        ("lasted", words::span(counts.lasted)),
        ("calls", words::count(counts.calls)),
        ("grants", words::count(counts.grants)),
        ("processes", words::count(counts.workers)),
        ("faults", words::count(counts.faults)),
        ("losses told", words::count(counts.losses)),
        ("stale writes refused", words::count(counts.refused)),
        ("failed", words::count(counts.failed)),
        ("unknown or open", words::count(counts.unknown + counts.open)),
    ];
    let mut out = "<dl class=\"figures\">".to_owned();
    for (name, figure) in all {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{figure}</dd></div>");
    }
    out + "</dl>"
}

/// The timeline with its buttons and legend, and the violations beside it.
pub(super) fn timeline(run: &Run, verdict: &Verdict, picture: &str) -> String {
    let beside = if verdict.violations.is_empty() { "" } else { " beside" };
    let mut out = format!(r#"<section class="stage{beside}"><div class="chart"><div class="tools"><h2>Timeline</h2>"#);
    if run.locks.len() > 1 {
        out.push_str(r#"<label class="needs-script">lock <select id="lock"><option value="">all</option>"#);
        for (at, lock) in run.locks.iter().enumerate() {
            let _ = write!(out, r#"<option value="{at}">{}</option>"#, markup(lock));
        }
        out.push_str("</select></label>");
    }
    out.push_str(
        r#"<span class="window needs-script" id="window" aria-live="polite"></span><span class="buttons needs-script"><button id="left" aria-label="earlier" title="earlier (←)">←</button><button id="right" aria-label="later" title="later (→)">→</button><button id="out" aria-label="zoom out" title="zoom out (-)">−</button><button id="in" aria-label="zoom in" title="zoom in (+)">+</button><button id="all" title="the whole run (0)">all</button></span></div>"#,
    );
    let _ = write!(out, r#"<div class="static" id="static">{picture}</div>"#);
    out.push_str(r#"<div class="live" id="live" hidden></div><div class="overview" id="overview" hidden></div>"#);
    let _ = write!(
        out,
        r#"<svg class="lh defs" width="0" height="0" aria-hidden="true">{}</svg><ul class="legend">"#,
        patterns("g")
    );
    for (mark, words) in entries(run, "g") {
        let _ = write!(out, "<li>{}{}</li>", swatch(&mark), markup(&words));
    }
    out.push_str("</ul><p class=\"hint needs-script\">Drag to move. Ctrl and wheel, pinch, <kbd>+</kbd> <kbd>−</kbd> <kbd>←</kbd> <kbd>→</kbd> <kbd>0</kbd>; after a click the wheel alone zooms. <kbd>Tab</kbd> goes from hold to hold.</p>");
    if run.left_out > 0 {
        let _ = write!(
            out,
            "<p class=\"note\">{} of {} are drawn: those that went wrong, those around faults, and of the others as many as a page can bear. The verdict is about all of them.</p>",
            words::many(run.spans.len() as u64, "call"),
            words::count(run.spans.len() as u64 + run.left_out),
        );
    }
    out.push_str("</div>");
    if !verdict.violations.is_empty() {
        out.push_str(&violations(verdict));
    }
    out + r#"<div class="tip" id="tip" role="status" hidden></div></section>"#
}

fn violations(verdict: &Verdict) -> String {
    let mut out =
        format!(r#"<aside><h2>{}</h2><ol class="violations">"#, words::many(verdict.violations_in_all, "violation"));
    for (at, one) in verdict.violations.iter().enumerate() {
        let who = if one.workers.is_empty() { String::new() } else { format!(" · {}", text::who(&one.workers)) };
        let number = at + 1;
        let _ = write!(
            out,
            "<li id=\"violation-{number}\"><a href=\"#violation={number}\" data-violation=\"{number}\"><b class=\"no\">{number}</b><span class=\"kind\">{}</span><b class=\"title\">{}</b></a><p class=\"when\">{}{who}</p><p>{}</p></li>",
            words::promise(one.promise),
            markup(&one.title),
            text::when(one),
            markup(&one.words),
        );
    }
    out.push_str("</ol>");
    let more = verdict.violations_in_all.saturating_sub(verdict.violations.len() as u64);
    if more > 0 {
        let _ = write!(out, "<p class=\"more\">and {} more</p>", words::count(more));
    }
    out + "</aside>"
}

/// The table of guarantees.
pub(super) fn promises(verdict: &Verdict) -> String {
    let mut out = "<section><h2>Promises</h2><table class=\"promises\"><thead><tr><th>promise</th><th>state</th><th class=\"n\">checked</th><th>figure</th></tr></thead><tbody>".to_owned();
    for one in &verdict.findings {
        let (class, mark) = match one.state {
            State::Kept => ("kept", "✓"),
            State::Broken => ("broken", "✕"),
            State::Untested | State::Unpromised => ("untested", "–"),
            State::Undecided => ("broken", "?"),
        };
        let broken =
            if one.state == State::Broken { format!("<br>{} broken", words::count(one.broken)) } else { String::new() };
        let _ = write!(
            out,
            "<tr class=\"{class}\"><th scope=\"row\">{}<small>{}</small></th><td class=\"state\"><i>{mark}</i> {}</td><td class=\"n\">{}{broken}</td><td>{}</td></tr>",
            words::promise(one.promise),
            words::about(one.promise),
            words::state(one.state).to_lowercase(),
            words::count(one.checked),
            markup(&one.figure),
        );
    }
    out.push_str("</tbody></table>");
    if let Some(opinion) = words::second_opinion(&verdict.second_opinion) {
        let _ = write!(out, "<p class=\"note\">A second opinion: {opinion}.</p>");
    }
    out + "</section>"
}

/// The faults, and the recovery time after each.
pub(super) fn faults(verdict: &Verdict) -> String {
    if verdict.recovered.is_empty() {
        return String::new();
    }
    let ttl = verdict.header.ttl;
    let longest = verdict.recovered.iter().map(|one| one.bound.max(one.took().unwrap_or(0))).max().unwrap_or(1).max(1)
        as f64
        * 1.03;
    let mut out = "<section><h2>Recovery after faults</h2><table class=\"faults\"><thead><tr><th>fault</th><th class=\"n\">at</th><th class=\"n\">lasted</th><th>first grant after it</th></tr></thead><tbody>".to_owned();
    for one in &verdict.recovered {
        let recovery = words::recovery(one, ttl);
        let class = match recovery.within {
            Some(true) => "kept",
            Some(false) => "broken",
            None => "untested",
        };
        let lasted = match one.to {
            Some(to) if to > one.from => words::span(to - one.from),
            Some(_) => "–".to_owned(),
            None => "to the end".to_owned(),
        };
        let more = recovery.more.map(|more| format!("; {more}")).unwrap_or_default();
        let took = one.took().unwrap_or(if one.late { u64::MAX } else { 0 });
        let width = (took as f64 / longest * 100.0).min(100.0);
        let bound = (one.bound as f64 / longest * 100.0).min(100.0);
        let _ = write!(
            out,
            "<tr class=\"{class}\"><th scope=\"row\">{} {}<small>{}</small></th><td class=\"n\">{}</td><td class=\"n\">{lasted}</td><td class=\"bar\"><span class=\"gauge\"><span class=\"fill\" style=\"width:{width:.1}%\"></span><span class=\"bound\" style=\"left:{bound:.1}%\"></span></span><span>{} <small>of at most {}{more}</small></span></td></tr>",
            one.fault,
            one.kind,
            markup(&one.target),
            words::moment(one.from),
            recovery.took,
            recovery.bound,
        );
    }
    out.push_str("</tbody></table>");
    if let Some(left_out) = words::left_out(verdict) {
        let _ = write!(out, "<p class=\"note\">{left_out}</p>");
    }
    out + "</section>"
}

/// The run's parameters, and the command that repeats it.
pub(super) fn what_was_run(verdict: &Verdict) -> String {
    let header = &verdict.header;
    let faults = header.faults.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(", ");
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let mut all = vec![
        ("engine", header.engine.clone()),
        ("url", header.url.clone()),
        ("servers", if header.versions.is_empty() { "not known".to_owned() } else { header.versions.join(", ") }),
        ("leasehold", header.leasehold.clone()),
        ("workload", format!("{}: {}", header.workload, header.workload.about())),
        ("faults", if faults.is_empty() { "none".to_owned() } else { faults }),
        ("seed", header.seed.to_string()),
        ("TTL", words::span(header.ttl)),
        ("lanes", words::count(u64::from(header.lanes))),
        ("serves in order", yes(header.fair).to_owned()),
        ("fencing tokens", yes(header.fencing).to_owned()),
        ("started", header.started.clone()),
        ("history", if verdict.complete { "complete".to_owned() } else { "cut short".to_owned() }),
    ];
    if !header.guard {
        all.push(("guard", format!("off: {}", header.control.as_deref().unwrap_or("a negative control"))));
    }
    let notes = header.notes.iter().filter(|(name, _)| *name != "command");
    all.extend(notes.map(|(name, note)| (name.as_str(), note.clone())));
    let mut out = "<section class=\"run\"><h2>What was run</h2><dl>".to_owned();
    for (name, value) in all {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", markup(name), markup(&value));
    }
    let _ = write!(out, "</dl><p>Once more:</p><pre><code>{}</code></pre></section>", markup(&words::command(header)));
    out
}
