//! The outcome of a cell of the matrix, over all its histories.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Cell;
use crate::checker::{self, CheckOptions};
use crate::history::{self, Event, Workload};
use crate::report;
use crate::runner::{RunError, RunLength, RunOptions};
use crate::verdict::{FindingStatus, Guarantee, Recovery, SecondOpinion, Verdict};

/// The outcome of a cell of the matrix, over all its histories. A soak stores it as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellOutcome {
    /// The name of the engine.
    pub engine: String,
    /// The servers' versions in the last history.
    pub versions: Vec<String>,
    /// The cell's fault and URL option, such as `clock+strict`; empty: no fault.
    pub fault: String,
    /// The TTL, in seconds.
    pub ttl: f64,
    /// How many histories completed.
    pub histories: u64,
    /// How many calls all histories have.
    pub calls: u64,
    /// How often a lock was granted.
    pub grants: u64,
    /// How often a holder was notified of a loss.
    pub losses: u64,
    /// Those of `losses` whose holder ran all the time, so that the time of its notification could
    /// be checked.
    #[serde(default)]
    pub losses_while_running: u64,
    /// How many writes a register refused because of a stale token.
    pub refused: u64,
    /// How many faults were caused.
    pub faults: u64,
    /// The times from each fault's end until a lock was granted again, as multiples of the TTL;
    /// sorted. For a kill or stop of a worker they count from the fault's beginning.
    pub recovered: Vec<f64>,
    /// The times from a fault's beginning until servers that it did not hit granted a lock, as
    /// multiples of the TTL; sorted.
    #[serde(default)]
    pub granted_during_fault: Vec<f64>,
    /// How many histories reached their time limit with fewer calls than requested.
    #[serde(default)]
    pub cut_short: u64,
    /// How many histories have a violation, or did not pass for another reason.
    pub broken: u64,
    /// A line for each of those histories, with its first violation.
    pub violations: Vec<String>,
    /// How many holds overlapped another holder's, where exclusion is not guaranteed.
    pub overlaps: u64,
    /// How many histories of registers porcupine did not confirm: it disagreed or reached its
    /// limit.
    pub unconfirmed: u64,
    /// The guarantees that at least one history tested.
    pub tested: Vec<Guarantee>,
    /// For each guarantee that holds under this fault: how many items were checked, and how many
    /// violations were found.
    #[serde(default)]
    pub checked: BTreeMap<Guarantee, (u64, u64)>,
    /// For each guarantee that does not hold under this fault: how many items were checked, and how
    /// many violations were counted.
    #[serde(default)]
    pub counted: BTreeMap<Guarantee, (u64, u64)>,
    /// A line for each exceeded time bound that is only reported.
    #[serde(default)]
    pub late: Vec<String>,
    /// The errors because of which a history could not be completed.
    pub run_errors: Vec<String>,
    /// The errors after which a history, or the start of the servers, was retried.
    #[serde(default)]
    pub retries: Vec<String>,
}

impl CellOutcome {
    pub(super) fn new(cell: Cell) -> Self {
        Self {
            engine: cell.engine.to_string(),
            versions: Vec::new(),
            fault: cell.fault.map(|_| cell.name()).unwrap_or_default(),
            ttl: 0.0,
            histories: 0,
            calls: 0,
            grants: 0,
            losses: 0,
            losses_while_running: 0,
            refused: 0,
            faults: 0,
            recovered: Vec::new(),
            granted_during_fault: Vec::new(),
            cut_short: 0,
            broken: 0,
            violations: Vec::new(),
            overlaps: 0,
            unconfirmed: 0,
            tested: Vec::new(),
            checked: BTreeMap::new(),
            counted: BTreeMap::new(),
            late: Vec::new(),
            run_errors: Vec::new(),
            retries: Vec::new(),
        }
    }

    /// The beginning of the names of this cell's files, such as `redis-clock+strict`.
    pub(super) fn file_stem(&self) -> String {
        format!("{}-{}", self.engine, if self.fault.is_empty() { "none" } else { &self.fault })
    }

    /// Checks a completed history and adds the result. A history that does not pass is saved in
    /// `violations_dir`, with its report.
    pub(super) fn add_history(
        &mut self,
        events: &[Event],
        run: &RunOptions,
        violations_dir: &Path,
        options: CheckOptions,
    ) {
        let verdict = checker::check_with(events, options);
        self.late.extend(verdict.late.iter().map(|one| one.title.clone()));
        let (header, counts) = (&verdict.header, &verdict.counts);
        self.versions.clone_from(&header.versions);
        self.ttl = Duration::from_nanos(header.ttl).as_secs_f64();
        self.histories += 1;
        self.calls += counts.calls;
        self.grants += counts.grants;
        self.losses += counts.losses;
        self.losses_while_running += counts.losses_while_running;
        self.refused += counts.refused;
        self.faults += counts.faults;
        self.cut_short += u64::from(
            run.workload != Workload::Ticks && matches!(run.length, RunLength::Calls(calls) if counts.calls < calls),
        );
        let in_ttls = |took: u64| took as f64 / header.ttl.max(1) as f64;
        let was_requested = || verdict.recovered.iter().filter(|fault| fault.was_requested);
        self.recovered.extend(was_requested().filter_map(Recovery::recovery_time).map(in_ttls));
        self.recovered.sort_by(f64::total_cmp);
        self.granted_during_fault.extend(was_requested().filter_map(Recovery::time_to_grant_elsewhere).map(in_ttls));
        self.granted_during_fault.sort_by(f64::total_cmp);
        for finding in &verdict.findings {
            match finding.state {
                FindingStatus::Untested => {}
                FindingStatus::NotGuaranteed => {
                    add_pair(self.counted.entry(finding.guarantee).or_default(), (finding.checked, finding.broken));
                }
                _ => self.add_checked(finding.guarantee, (finding.checked, finding.broken)),
            }
            match (finding.guarantee, finding.state) {
                (Guarantee::Exclusion, FindingStatus::NotGuaranteed) => self.overlaps += finding.broken,
                (_, FindingStatus::Untested | FindingStatus::NotGuaranteed) => {}
                (guarantee, _) if !self.tested.contains(&guarantee) => self.tested.push(guarantee),
                _ => {}
            }
        }
        let fenced = matches!(header.workload, Workload::Fenced | Workload::Counter);
        self.unconfirmed += u64::from(fenced && verdict.second_opinion != SecondOpinion::Agrees);
        if verdict.is_as_expected() {
            return;
        }
        self.broken += 1;
        let stem = format!("{}-{}-{}", self.file_stem(), header.workload, header.seed);
        self.violations.push(format!("{stem}: {}", failure_summary(&verdict)));
        if let Err(error) = save_history_and_report(events, &verdict, violations_dir, &stem) {
            self.run_errors.push(format!("{} cannot be written: {error}", violations_dir.display()));
        }
    }

    /// Adds numbers of checked items and violations of a guarantee.
    fn add_checked(&mut self, guarantee: Guarantee, counts: (u64, u64)) {
        add_pair(self.checked.entry(guarantee).or_default(), counts);
    }

    /// Records a history that did not complete because of `error`. Returns whether to run it again:
    /// only once, only if the machine was the cause, and only if what was written has no violation.
    pub(super) fn add_incomplete_history(
        &mut self,
        error: &RunError,
        is_first_attempt: bool,
        run: &RunOptions,
        path: &Path,
    ) -> bool {
        let events = history::load(path).ok().and_then(|text| history::parse(&text).ok());
        let verdict = events.as_deref().filter(|events| !events.is_empty()).map(checker::check);
        let broken = verdict
            .iter()
            .flat_map(|verdict| &verdict.violations)
            .find(|one| is_checkable_when_truncated(one.guarantee));
        if let Some(violation) = broken {
            self.broken += 1;
            self.violations.push(format!("{}: {}", path.display(), violation.title));
        }
        let retry = is_first_attempt && broken.is_none() && error.is_transient();
        match retry {
            true => self.retries.push(format!("{}, seed {}: {error}", run.workload, run.seed)),
            false => self.run_errors.push(format!("{}: {error}", path.display())),
        }
        retry
    }

    /// Adds a later outcome of the same cell, whose histories have other seeds.
    pub fn add(&mut self, later: Self) {
        self.versions = later.versions;
        self.ttl = later.ttl;
        self.histories += later.histories;
        self.calls += later.calls;
        self.grants += later.grants;
        self.losses += later.losses;
        self.losses_while_running += later.losses_while_running;
        self.refused += later.refused;
        self.faults += later.faults;
        self.cut_short += later.cut_short;
        self.broken += later.broken;
        self.overlaps += later.overlaps;
        self.unconfirmed += later.unconfirmed;
        self.recovered.extend(later.recovered);
        self.recovered.sort_by(f64::total_cmp);
        self.granted_during_fault.extend(later.granted_during_fault);
        self.granted_during_fault.sort_by(f64::total_cmp);
        self.violations.extend(later.violations);
        self.run_errors.extend(later.run_errors);
        later.checked.into_iter().for_each(|(guarantee, sums)| self.add_checked(guarantee, sums));
        later
            .counted
            .into_iter()
            .for_each(|(guarantee, sums)| add_pair(self.counted.entry(guarantee).or_default(), sums));
        self.late.extend(later.late);
        self.retries.extend(later.retries);
        self.tested.extend(later.tested);
        self.tested.sort_unstable();
        self.tested.dedup();
    }

    /// Whether at least one history ran, and all completed without a violation.
    pub fn has_no_violations(&self) -> bool {
        self.broken == 0 && self.run_errors.is_empty() && self.histories > 0
    }

    /// The outcome in one line, followed by a line for each violation, error and retry.
    pub fn summary_line(&self) -> String {
        let worst = self.recovered.last().map(|worst| format!(", recovery {worst:.2} TTL at most")).unwrap_or_default();
        let granted_during_fault = self
            .granted_during_fault
            .last()
            .map(|worst| format!(", from a fault's beginning {worst:.2}"))
            .unwrap_or_default();
        let short = match self.cut_short {
            0 => String::new(),
            n => format!(", {n} ended by the time limit"),
        };
        let words = self.violations.iter().chain(&self.run_errors);
        let words: String = words.map(|problem| format!("\n    {problem}")).collect();
        let retries: String = self.retries.iter().map(|problem| format!("\n    retried: {problem}")).collect();
        let overlaps = match self.overlaps {
            0 => String::new(),
            n => format!(", {n} holds overlapped another (exclusion is not guaranteed here)"),
        };
        let late: String = self.late.iter().map(|title| format!("\n    late, only reported: {title}")).collect();
        let unconfirmed = match self.unconfirmed {
            0 => String::new(),
            n => format!(", {n} registers that porcupine did not confirm"),
        };
        format!(
            "{} histories, {} calls, {} grants, {} faults, {} lost ({} while they ran), {} refused, {} broken{worst}{granted_during_fault}{short}{overlaps}{unconfirmed}{retries}{late}{words}",
            self.histories,
            self.calls,
            self.grants,
            self.faults,
            self.losses,
            self.losses_while_running,
            self.refused,
            self.broken
        )
    }
}

/// Adds both numbers of `addend` to `sum`.
fn add_pair(sum: &mut (u64, u64), addend: (u64, u64)) {
    *sum = (sum.0 + addend.0, sum.1 + addend.1);
}

/// Whether a truncated history can show a violation of this guarantee. The others can be judged
/// only with all faults and the end of the run.
fn is_checkable_when_truncated(guarantee: Guarantee) -> bool {
    !matches!(guarantee, Guarantee::Order | Guarantee::Recovery | Guarantee::Ticks)
}

/// Why a history did not pass, in one line.
fn failure_summary(verdict: &Verdict) -> String {
    match verdict.violations.first() {
        Some(violation) => {
            format!("{} ({})", violation.title, verdict.header.notes.get("command").map_or("", String::as_str))
        }
        None if !verdict.complete => "the history is incomplete".to_owned(),
        None => "a control was not detected".to_owned(),
    }
}

/// Writes the history and its HTML report to files in `folder` with this stem.
fn save_history_and_report(events: &[Event], verdict: &Verdict, folder: &Path, stem: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let text: String = events.iter().map(history::to_json_line).collect();
    std::fs::write(folder.join(format!("{stem}.jsonl")), text)?;
    std::fs::write(folder.join(format!("{stem}.html")), report::html::page(events, verdict))
}
