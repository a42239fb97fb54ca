//! `leasehold doctor`: checks whether a deployment is fit for locks, and advises what to set.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use clap::Args;
use leasehold_doctor::{self as doctor, Finding, Level, Options, Report};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};
use serde::Serialize;

use crate::args::{EngineArg, JsonArg};
use crate::duration::parse_positive;
use crate::exit::Failure;
use crate::output::{self, Colour, escape_control_chars};

/// The worst finding is a warning or unknown.
const EXIT_WARNINGS: u8 = 1;
/// At least one finding is a failure.
const EXIT_FAILURES: u8 = 2;

/// The delay before the first progress line.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// The text after the options in `leasehold doctor --help`.
// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_HELP: &str = "\
Examples:
  leasehold doctor --engine redis://db1:6379
  leasehold doctor --engine redis+sentinel://s1,s2,s3/mymaster --ttl 10s
  leasehold doctor --engine redis+cluster://n1,n2,n3 --json
  leasehold doctor --engine 'redlock://h1,h2,h3,h4,h5?strict=30s'
  leasehold doctor --engine zookeeper://zk1,zk2,zk3
  leasehold doctor --engine 'mysql://app@db1/shop?password-file=/etc/db1.pw'
  leasehold doctor --engine-file /etc/leasehold/engine   # with a password
  leasehold doctor || mail -s 'locks are not safe' ops@example.org

Levels:
  fail      locks do not work, or two clients may hold one lock
  warn      locks work, but another fault can lose or delay them
  unknown   the server does not report it, for example because it denies
            CONFIG, or because 4lw.commands.whitelist lacks mntr; unknown
            never counts as ok
  ok        no problem found

Exit codes:
    0   everything is ok
    1   warnings, or unknown findings
    2   failures, or an unreachable deployment
   64   wrong usage, or an invalid URL or duration
   74   the output cannot be written

Effects on the deployment:
  doctor reads settings and metrics, sends 100 pings, and inspects up to 2000
  of leasehold's keys. It runs the steps of a lock once (scripts, keys and a
  message) under an unused name, and deletes the keys at once.
  ZooKeeper: a session with each server, and a lock under an unused name that
  is deleted at the end; it inspects up to 1000 locks.
  Databases: two connections to each server, 50 queries of the time, and a
  lock under an unused name, in a transaction that is rolled back. It creates
  no table. It counts up to 100000 rows, and inspects up to 500.";

/// Check whether a deployment is fit for locks
///
/// Examines the engine's servers, or its folder, for settings with which locks could be lost,
/// blocked or held twice. Each finding gives the observation, what it means for locks, and what to
/// set.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "`leasehold doctor --help` has examples and the exit codes.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// The TTL of your locks: round trips, clocks and failovers are compared with it
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_positive)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

/// The output of `doctor --json`.
#[derive(Debug, Serialize)]
struct ReportJson<'a> {
    url: &'a str,
    ttl_seconds: f64,
    /// The worst level of all findings.
    verdict: &'static str,
    findings: Vec<FindingJson<'a>>,
}

/// One finding of `doctor --json`.
#[derive(Debug, Serialize)]
struct FindingJson<'a> {
    check: &'static str,
    /// The server or folder; empty if the finding is about all of them.
    subject: &'a str,
    level: &'static str,
    found: &'a str,
    /// The effect on locks.
    means: &'a str,
    fix: &'a str,
}

/// Examines the engine and prints the findings; returns the exit code.
pub(crate) async fn run_doctor(args: DoctorArgs) -> Result<u8, Failure> {
    let options = Options::default().ttl(args.ttl);
    let examining = doctor::examine(args.engine.url(), &options);
    let report = if args.output.json { examining.await? } else { with_progress(examining).await? };
    let text = if args.output.json { output::to_json_line(&to_json(&report)) } else { format_report(&report) };
    output::write_stdout(&text)?;
    Ok(exit_code(report.worst()))
}

/// The exit code for the worst level of all findings.
fn exit_code(worst: Level) -> u8 {
    match worst {
        Level::Ok => 0,
        Level::Unknown | Level::Warn => EXIT_WARNINGS,
        _ => EXIT_FAILURES,
    }
}

/// Waits for `work`; after a second, shows on a terminal how long it has taken.
async fn with_progress<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut shown = false;
    for seconds in 1u32.. {
        match tokio::time::timeout(PROGRESS_AFTER, &mut work).await {
            Ok(done) => {
                if shown {
                    output::write_stderr("\r\x1b[2K");
                }
                return done;
            }
            Err(_) if in_foreground() => {
                output::write_stderr(&format!("\r\x1b[2Kexamining the engine: {seconds}s"));
                shown = true;
            }
            Err(_) => {}
        }
    }
    work.await
}

/// Whether standard error is a terminal with this process group in the foreground.
fn in_foreground() -> bool {
    let stderr = io::stderr();
    isatty(&stderr) && tcgetpgrp(&stderr).map_or(true, |foreground| foreground == getpgrp())
}

fn to_json(report: &Report) -> ReportJson<'_> {
    let findings = report.findings.iter().map(|finding| FindingJson {
        check: finding.check,
        subject: &finding.subject,
        level: finding.level.as_str(),
        found: &finding.found,
        means: &finding.impact,
        fix: &finding.fix,
    });
    ReportJson {
        url: &report.engine,
        ttl_seconds: report.ttl.as_secs_f64(),
        verdict: report.worst().as_str(),
        findings: findings.collect(),
    }
}

/// The table of findings, and the verdict below it.
fn format_report(report: &Report) -> String {
    let mut table = output::new_table(&["LEVEL", "CHECK", "WHAT"]);
    let servers: BTreeSet<_> = report.findings.iter().map(|finding| finding.subject.as_str()).collect();
    let servers = servers.len() - usize::from(servers.contains(""));
    for (finding, subjects) in merge_equal_findings(&report.findings) {
        table.add_row([
            finding.level.as_str().to_owned(),
            finding.check.to_owned(),
            format_finding(finding, &subjects, servers),
        ]);
    }
    format!("{}\n{}\n", colour_levels(&output::format_table(&table)), format_verdict(report))
}

/// Colours the levels. A line that begins with no level continues the row above.
fn colour_levels(table: &str) -> String {
    let line = |line: &str| {
        let word = line.split(' ').next().unwrap_or_default();
        let colour = match word {
            "ok" => Colour::Green,
            "warn" => Colour::Yellow,
            "fail" => Colour::Red,
            "unknown" => Colour::Yellow,
            "LEVEL" => return format!("{}\n", output::paint(line, Colour::Bold)),
            _ => return format!("{line}\n"),
        };
        format!("{}{}\n", output::paint(word, colour), &line[word.len()..])
    };
    table.lines().map(line).collect()
}

/// Merges equal findings about several servers into one row: the finding, and its servers.
fn merge_equal_findings(findings: &[Finding]) -> Vec<(&Finding, Vec<&str>)> {
    let mut rows: Vec<(&Finding, Vec<&str>)> = Vec::new();
    let same = |a: &Finding, b: &Finding| {
        (a.level, a.check, &a.found, &a.impact, &a.fix) == (b.level, b.check, &b.found, &b.impact, &b.fix)
    };
    for finding in findings {
        match rows.iter_mut().find(|(first, _)| same(first, finding)) {
            Some((_, subjects)) => subjects.push(&finding.subject),
            None => rows.push((finding, vec![&finding.subject])),
        }
    }
    rows
}

/// `where: what was found`; below it, unless the level is ok, what it means and what to set. With
/// more than two `servers`, a finding about all of them does not list their names.
fn format_finding(finding: &Finding, subjects: &[&str], servers: usize) -> String {
    let place = match subjects.len() {
        count if servers > 2 && count == servers => vec![format!("all {servers}")],
        // Healthy servers need no names.
        count if count > 2 && finding.level == Level::Ok => vec![format!("{count} of {servers}")],
        _ => escaped_names(subjects),
    };
    let place = if place.is_empty() { String::new() } else { format!("{}: ", place.join(", ")) };
    let mut text = format!("{place}{}", escape_control_chars(&finding.found));
    if finding.level != Level::Ok {
        text.push_str(&format!("\nmeans: {}", escape_control_chars(&finding.impact)));
        if !finding.fix.is_empty() {
            text.push_str(&format!("\nfix:   {}", escape_control_chars(&finding.fix)));
        }
    }
    text
}

/// The servers' names, without empty ones, and with control characters escaped.
fn escaped_names(subjects: &[&str]) -> Vec<String> {
    subjects
        .iter()
        .filter(|subject| !subject.is_empty())
        .map(|subject| escape_control_chars(subject).into_owned())
        .collect()
}

/// `2 failures, 1 warning, 3 unknown, 9 ok: locks are not safe here`
fn format_verdict(report: &Report) -> String {
    let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let counts = [
        (Level::Fail, plural(report.count(Level::Fail), "failure")),
        (Level::Warn, plural(report.count(Level::Warn), "warning")),
        (Level::Unknown, format!("{} unknown", report.count(Level::Unknown))),
        (Level::Ok, format!("{} ok", report.count(Level::Ok))),
    ];
    let counts: Vec<_> =
        counts.into_iter().filter(|(level, _)| report.count(*level) > 0).map(|(_, text)| text).collect();
    let conclusion = match report.worst() {
        Level::Ok => "fit for locks",
        Level::Unknown => "fit for locks, as far as the servers report",
        Level::Warn => "locks work; see the warnings for what could lose or delay them",
        _ => "not fit for locks as it is",
    };
    format!("{}  {}: {conclusion}", escape_control_chars(&report.engine), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_help_line_exceeds_80_columns() {
        for line in AFTER_HELP.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }

    #[test]
    fn unknown_findings_have_the_exit_code_of_warnings() {
        let codes = [Level::Ok, Level::Unknown, Level::Warn, Level::Fail].map(exit_code);
        assert_eq!(codes, [0, 1, 1, 2]);
    }

    #[test]
    fn servers_with_equal_findings_share_a_row() {
        let finding_about =
            |subject: &str, found: &str| Finding::new(Level::Warn, "x", subject, found).impact("m\u{1b}").fix("f");
        let findings = [finding_about("a", "1"), finding_about("b", "1"), finding_about("c", "2")];
        let rows = merge_equal_findings(&findings);
        assert_eq!(rows.len(), 2);
        assert_eq!(format_finding(rows[0].0, &rows[0].1, 3), "a, b: 1\nmeans: m\\u{1b}\nfix:   f");
        let findings = ["a", "b", "c"].map(|subject| finding_about(subject, "1"));
        let rows = merge_equal_findings(&findings);
        assert!(format_finding(rows[0].0, &rows[0].1, 3).starts_with("all 3: 1\n"));
        assert!(format_finding(rows[0].0, &rows[0].1, 4).starts_with("a, b, c: 1\n"));
        let ok_finding = Finding::new(Level::Ok, "x", "a", "1");
        assert_eq!(format_finding(&ok_finding, &["a", "b", "c"], 4), "3 of 4: 1");
    }
}
