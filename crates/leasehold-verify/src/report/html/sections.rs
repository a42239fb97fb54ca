//! The sections of the HTML page.

use std::fmt::Write as _;

use crate::report::escape::escape_markup;
use crate::report::model::TimelineModel;
use crate::report::svg::{hatch_patterns, legend_entries, legend_icon};
use crate::report::{format, text};
use crate::verdict::{FindingStatus, Verdict};

/// The page's header: the verdict, the engine, and a one-sentence summary.
pub(super) fn header(verdict: &Verdict) -> String {
    let head = format::headline(verdict);
    let class = if head.is_expected { "good" } else { "bad" };
    let icon = if head.is_expected { "M7 12.5l3.4 3.4L17 9" } else { "M8.2 8.2l7.6 7.6M15.8 8.2l-7.6 7.6" };
    let mut word = head.verdict.to_lowercase();
    if let Some(first) = word.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let header = &verdict.header;
    let control =
        if header.guard { "" } else { "<p class=\"control\">A negative control: the checker must detect it.</p>" };
    format!(
        r#"<header class="{class}"><p class="brand"><b>leasehold verify</b><span>{} at <code>{}</code></span><span>{}</span></p><h1><svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="11"/><path d="{icon}"/></svg>{word}</h1><p class="lead">{}</p>{control}</header>"#,
        escape_markup(&header.engine),
        escape_markup(&header.url),
        escape_markup(&header.started),
        escape_markup(&format::summary(verdict)),
    )
}

/// The row of figures below the header: calls, grants, faults, losses.
pub(super) fn key_figures(verdict: &Verdict) -> String {
    let counts = &verdict.counts;
    let all = [
        ("lasted", format::format_duration(counts.lasted)),
        ("calls", format::format_count(counts.calls)),
        ("grants", format::format_count(counts.grants)),
        ("processes", format::format_count(counts.workers)),
        ("faults", format::format_count(counts.faults)),
        ("losses notified", format::format_count(counts.losses)),
        ("stale writes refused", format::format_count(counts.refused)),
        ("failed", format::format_count(counts.failed)),
        ("unknown or open", format::format_count(counts.unknown + counts.open)),
    ];
    let mut out = "<dl class=\"figures\">".to_owned();
    for (name, figure) in all {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{figure}</dd></div>");
    }
    out + "</dl>"
}

/// The timeline with its buttons and legend, and the list of violations beside it. `picture` is the
/// static SVG of the whole run, which the script replaces.
pub(super) fn timeline_section(model: &TimelineModel, verdict: &Verdict, picture: &str) -> String {
    let beside = if verdict.violations.is_empty() { "" } else { " beside" };
    let mut out = format!(r#"<section class="stage{beside}"><div class="chart"><div class="tools"><h2>Timeline</h2>"#);
    if model.locks.len() > 1 {
        out.push_str(r#"<label class="needs-script">lock <select id="lock"><option value="">all</option>"#);
        for (at, lock) in model.locks.iter().enumerate() {
            let _ = write!(out, r#"<option value="{at}">{}</option>"#, escape_markup(lock));
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
        hatch_patterns("g")
    );
    for (mark, words) in legend_entries(model, "g") {
        let _ = write!(out, "<li>{}{}</li>", legend_icon(&mark), escape_markup(&words));
    }
    out.push_str("</ul><p class=\"hint needs-script\">Drag to move. Ctrl and wheel, pinch, <kbd>+</kbd> <kbd>−</kbd> <kbd>←</kbd> <kbd>→</kbd> <kbd>0</kbd>; after a click the wheel alone zooms. <kbd>Tab</kbd> goes from hold to hold.</p>");
    if model.omitted_calls > 0 {
        let _ = write!(
            out,
            "<p class=\"note\">{} of {} are drawn: all that failed, those around faults, and a part of the others. The verdict covers all of them.</p>",
            format::format_quantity(model.spans.len() as u64, "call"),
            format::format_count(model.spans.len() as u64 + model.omitted_calls),
        );
    }
    out.push_str("</div>");
    if !verdict.violations.is_empty() {
        out.push_str(&violations_list(verdict));
    }
    out + r#"<div class="tip" id="tip" role="status" hidden></div></section>"#
}

/// The list of violations beside the timeline.
fn violations_list(verdict: &Verdict) -> String {
    let mut out = format!(
        r#"<aside><h2>{}</h2><ol class="violations">"#,
        format::format_quantity(verdict.violations_in_all, "violation")
    );
    for (at, one) in verdict.violations.iter().enumerate() {
        let who =
            if one.workers.is_empty() { String::new() } else { format!(" · {}", text::format_workers(&one.workers)) };
        let number = at + 1;
        let _ = write!(
            out,
            "<li id=\"violation-{number}\"><a href=\"#violation={number}\" data-violation=\"{number}\"><b class=\"no\">{number}</b><span class=\"kind\">{}</span><b class=\"title\">{}</b></a><p class=\"when\">{}{who}</p><p>{}</p></li>",
            format::guarantee_name(one.guarantee),
            escape_markup(&one.title),
            text::format_span(one),
            escape_markup(&one.details),
        );
    }
    out.push_str("</ol>");
    let more = verdict.violations_in_all.saturating_sub(verdict.violations.len() as u64);
    if more > 0 {
        let _ = write!(out, "<p class=\"more\">and {} more</p>", format::format_count(more));
    }
    out + "</aside>"
}

/// The table of guarantees: for each one whether it held, and what was measured.
pub(super) fn guarantees_table(verdict: &Verdict) -> String {
    let mut out = "<section><h2>Guarantees</h2><table class=\"promises\"><thead><tr><th>guarantee</th><th>state</th><th class=\"n\">checked</th><th>figure</th></tr></thead><tbody>".to_owned();
    for one in &verdict.findings {
        let (class, mark) = match one.state {
            FindingStatus::Kept => ("kept", "✓"),
            FindingStatus::Broken => ("broken", "✕"),
            FindingStatus::Untested | FindingStatus::NotGuaranteed => ("untested", "–"),
            FindingStatus::Undecided => ("broken", "?"),
        };
        let broken = if one.state == FindingStatus::Broken {
            format!("<br>{} broken", format::format_count(one.broken))
        } else {
            String::new()
        };
        let _ = write!(
            out,
            "<tr class=\"{class}\"><th scope=\"row\">{}<small>{}</small></th><td class=\"state\"><i>{mark}</i> {}</td><td class=\"n\">{}{broken}</td><td>{}</td></tr>",
            format::guarantee_name(one.guarantee),
            format::guarantee_description(one.guarantee),
            format::status_name(one.state).to_lowercase(),
            format::format_count(one.checked),
            escape_markup(&one.figure),
        );
    }
    out.push_str("</tbody></table>");
    if let Some(opinion) = format::describe_second_opinion(&verdict.second_opinion) {
        let _ = write!(out, "<p class=\"note\">A second opinion: {opinion}.</p>");
    }
    out + "</section>"
}

/// The faults, and the recovery time after each.
pub(super) fn faults_table(verdict: &Verdict) -> String {
    if verdict.recovered.is_empty() {
        return String::new();
    }
    let ttl = verdict.header.ttl;
    let longest =
        verdict.recovered.iter().map(|one| one.bound.max(one.recovery_time().unwrap_or(0))).max().unwrap_or(1).max(1)
            as f64
            * 1.03;
    let mut out = "<section><h2>Recovery after faults</h2><table class=\"faults\"><thead><tr><th>fault</th><th class=\"n\">at</th><th class=\"n\">lasted</th><th>first grant after it</th></tr></thead><tbody>".to_owned();
    for one in &verdict.recovered {
        let recovery = format::describe_recovery(one, ttl);
        let class = match recovery.is_within_bound {
            Some(true) => "kept",
            Some(false) => "broken",
            None => "untested",
        };
        let lasted = match one.to {
            Some(to) if to > one.from => format::format_duration(to - one.from),
            Some(_) => "–".to_owned(),
            None => "to the end".to_owned(),
        };
        let more = recovery.remark.map(|more| format!("; {more}")).unwrap_or_default();
        let took = one.recovery_time().unwrap_or(if one.late { u64::MAX } else { 0 });
        let width = (took as f64 / longest * 100.0).min(100.0);
        let bound = (one.bound as f64 / longest * 100.0).min(100.0);
        let _ = write!(
            out,
            "<tr class=\"{class}\"><th scope=\"row\">{} {}<small>{}</small></th><td class=\"n\">{}</td><td class=\"n\">{lasted}</td><td class=\"bar\"><span class=\"gauge\"><span class=\"fill\" style=\"width:{width:.1}%\"></span><span class=\"bound\" style=\"left:{bound:.1}%\"></span></span><span>{} <small>of at most {}{more}</small></span></td></tr>",
            one.fault,
            one.kind,
            escape_markup(&one.target),
            format::format_time(one.from),
            recovery.time,
            recovery.bound,
        );
    }
    out.push_str("</tbody></table>");
    if let Some(left_out) = format::describe_missing_faults(verdict) {
        let _ = write!(out, "<p class=\"note\">{left_out}</p>");
    }
    out + "</section>"
}

/// The run's parameters, and the command that repeats it.
pub(super) fn run_parameters(verdict: &Verdict) -> String {
    let header = &verdict.header;
    let faults = header.faults.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(", ");
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let mut all = vec![
        ("engine", header.engine.clone()),
        ("url", header.url.clone()),
        ("servers", if header.versions.is_empty() { "not known".to_owned() } else { header.versions.join(", ") }),
        ("leasehold", header.leasehold.clone()),
        ("workload", format!("{}: {}", header.workload, header.workload.description())),
        ("faults", if faults.is_empty() { "none".to_owned() } else { faults }),
        ("seed", header.seed.to_string()),
        ("TTL", format::format_duration(header.ttl)),
        ("lanes", format::format_count(u64::from(header.lanes))),
        ("serves in queue order", yes(header.fair).to_owned()),
        ("fencing tokens", yes(header.fencing).to_owned()),
        ("started", header.started.clone()),
        ("history", if verdict.complete { "complete".to_owned() } else { "cut short".to_owned() }),
    ];
    if !header.guard {
        all.push(("safeguard", format!("off: {}", header.control.as_deref().unwrap_or("a negative control"))));
    }
    let notes = header.notes.iter().filter(|(name, _)| *name != "command");
    all.extend(notes.map(|(name, note)| (name.as_str(), note.clone())));
    let mut out = "<section class=\"run\"><h2>Run parameters</h2><dl>".to_owned();
    for (name, value) in all {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape_markup(name), escape_markup(&value));
    }
    let _ = write!(
        out,
        "</dl><p>Repeat this run:</p><pre><code>{}</code></pre></section>",
        escape_markup(&format::repeat_command(header))
    );
    out
}
