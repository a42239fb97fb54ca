//! The outcome of a cell, over all its histories.

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

/// The outcome of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellOutcome {
    /// The engine.
    pub engine: String,
    /// The servers' versions.
    pub versions: Vec<String>,
    /// The fault; empty: none.
    pub fault: String,
    /// The TTL, in seconds.
    pub ttl: f64,
    /// Histories.
    pub histories: u64,
    /// Calls in all of them.
    pub calls: u64,
    /// Grants.
    pub grants: u64,
    /// Losses that holders learned of.
    pub losses: u64,
    /// Losses of holders that ran, so the time of the notification was checked.
    #[serde(default)]
    pub told: u64,
    /// Writes that the register refused.
    pub refused: u64,
    /// Faults that were caused.
    pub faults: u64,
    /// The recovery times, as multiples of the TTL, sorted.
    pub recovered: Vec<f64>,
    /// For faults during which other servers served, the times from the fault's beginning until the
    /// first grant, likewise.
    #[serde(default)]
    pub meanwhile: Vec<f64>,
    /// Histories that reached their time limit with fewer calls than planned.
    #[serde(default)]
    pub short: u64,
    /// Histories with a violation.
    pub broken: u64,
    /// Their violations, a line each.
    pub violations: Vec<String>,
    /// Holds that overlapped another, where exclusion is not guaranteed.
    pub at_once: u64,
    /// Histories of a register on which porcupine disagreed.
    pub unconfirmed: u64,
    /// The guarantees that were tested.
    pub tested: Vec<Guarantee>,
    /// How many items were checked for each of them, and how many were violations.
    #[serde(default)]
    pub checked: BTreeMap<Guarantee, (u64, u64)>,
    /// The same for what is not guaranteed there.
    #[serde(default)]
    pub counted: BTreeMap<Guarantee, (u64, u64)>,
    /// Exceeded time bounds, if they are only reported, a line each.
    #[serde(default)]
    pub late: Vec<String>,
    /// Errors because of which a history did not run.
    pub troubles: Vec<String>,
    /// Errors after which a history was retried.
    #[serde(default)]
    pub again: Vec<String>,
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
            told: 0,
            refused: 0,
            faults: 0,
            recovered: Vec::new(),
            meanwhile: Vec::new(),
            short: 0,
            broken: 0,
            violations: Vec::new(),
            at_once: 0,
            unconfirmed: 0,
            tested: Vec::new(),
            checked: BTreeMap::new(),
            counted: BTreeMap::new(),
            late: Vec::new(),
            troubles: Vec::new(),
            again: Vec::new(),
        }
    }

    pub(super) fn file_stem(&self) -> String {
        format!("{}-{}", self.engine, if self.fault.is_empty() { "none" } else { &self.fault })
    }

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
        self.told += counts.told;
        self.refused += counts.refused;
        self.faults += counts.faults;
        self.short += u64::from(
            run.workload != Workload::Ticks && matches!(run.length, RunLength::Calls(calls) if counts.calls < calls),
        );
        let in_ttls = |took: u64| took as f64 / header.ttl.max(1) as f64;
        let asked = || verdict.recovered.iter().filter(|fault| fault.asked);
        self.recovered.extend(asked().filter_map(Recovery::recovery_time).map(in_ttls));
        self.recovered.sort_by(f64::total_cmp);
        self.meanwhile.extend(asked().filter_map(Recovery::time_to_grant_elsewhere).map(in_ttls));
        self.meanwhile.sort_by(f64::total_cmp);
        for finding in &verdict.findings {
            match finding.state {
                FindingStatus::Untested => {}
                FindingStatus::Unpromised => {
                    add_pair(self.counted.entry(finding.promise).or_default(), (finding.checked, finding.broken));
                }
                _ => self.add_checked(finding.promise, (finding.checked, finding.broken)),
            }
            match (finding.promise, finding.state) {
                (Guarantee::Exclusion, FindingStatus::Unpromised) => self.at_once += finding.broken,
                (_, FindingStatus::Untested | FindingStatus::Unpromised) => {}
                (promise, _) if !self.tested.contains(&promise) => self.tested.push(promise),
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
            self.troubles.push(format!("{} cannot be written: {error}", violations_dir.display()));
        }
    }

    fn add_checked(&mut self, guarantee: Guarantee, counts: (u64, u64)) {
        add_pair(self.checked.entry(guarantee).or_default(), counts);
    }

    /// Records a history that did not complete. Returns whether to run it again: not if it has a
    /// violation already, and not a second time.
    pub(super) fn add_incomplete_history(
        &mut self,
        trouble: &RunError,
        is_first_attempt: bool,
        run: &RunOptions,
        path: &Path,
    ) -> bool {
        let events = history::load(path).ok().and_then(|text| history::parse(&text).ok());
        let verdict = events.as_deref().filter(|events| !events.is_empty()).map(checker::check);
        let broken =
            verdict.iter().flat_map(|verdict| &verdict.violations).find(|one| is_checkable_when_truncated(one.promise));
        if let Some(violation) = broken {
            self.broken += 1;
            self.violations.push(format!("{}: {}", path.display(), violation.title));
        }
        let again = is_first_attempt && broken.is_none() && trouble.is_transient();
        match again {
            true => self.again.push(format!("{}, seed {}: {trouble}", run.workload, run.seed)),
            false => self.troubles.push(format!("{}: {trouble}", path.display())),
        }
        again
    }

    /// Adds a later outcome of the same cell, with other seeds.
    pub fn add(&mut self, later: Self) {
        self.versions = later.versions;
        self.ttl = later.ttl;
        self.histories += later.histories;
        self.calls += later.calls;
        self.grants += later.grants;
        self.losses += later.losses;
        self.told += later.told;
        self.refused += later.refused;
        self.faults += later.faults;
        self.short += later.short;
        self.broken += later.broken;
        self.at_once += later.at_once;
        self.unconfirmed += later.unconfirmed;
        self.recovered.extend(later.recovered);
        self.recovered.sort_by(f64::total_cmp);
        self.meanwhile.extend(later.meanwhile);
        self.meanwhile.sort_by(f64::total_cmp);
        self.violations.extend(later.violations);
        self.troubles.extend(later.troubles);
        later.checked.into_iter().for_each(|(promise, sums)| self.add_checked(promise, sums));
        later.counted.into_iter().for_each(|(promise, sums)| add_pair(self.counted.entry(promise).or_default(), sums));
        self.late.extend(later.late);
        self.again.extend(later.again);
        self.tested.extend(later.tested);
        self.tested.sort_unstable();
        self.tested.dedup();
    }

    /// Whether all histories ran without a violation.
    pub fn has_no_violations(&self) -> bool {
        self.broken == 0 && self.troubles.is_empty() && self.histories > 0
    }

    /// One line about the outcome.
    pub fn summary_line(&self) -> String {
        let worst = self.recovered.last().map(|worst| format!(", recovery {worst:.2} TTL at most")).unwrap_or_default();
        let meanwhile =
            self.meanwhile.last().map(|worst| format!(", from a fault's beginning {worst:.2}")).unwrap_or_default();
        let short = match self.short {
            0 => String::new(),
            n => format!(", {n} ended by the time limit"),
        };
        let words = self.violations.iter().chain(&self.troubles);
        let words: String = words.map(|problem| format!("\n    {problem}")).collect();
        let again: String = self.again.iter().map(|problem| format!("\n    retried: {problem}")).collect();
        let at_once = match self.at_once {
            0 => String::new(),
            n => format!(", {n} at once with another, which is possible here"),
        };
        let late: String = self.late.iter().map(|title| format!("\n    late, only reported: {title}")).collect();
        let unconfirmed = match self.unconfirmed {
            0 => String::new(),
            n => format!(", {n} registers that porcupine did not confirm"),
        };
        format!(
            "{} histories, {} calls, {} grants, {} faults, {} lost ({} while they ran), {} refused, {} broken{worst}{meanwhile}{short}{at_once}{unconfirmed}{again}{late}{words}",
            self.histories, self.calls, self.grants, self.faults, self.losses, self.told, self.refused, self.broken
        )
    }
}

fn add_pair(sum: &mut (u64, u64), addend: (u64, u64)) {
    *sum = (sum.0 + addend.0, sum.1 + addend.1);
}

/// Guarantees that a truncated history can violate. The others depend on all faults, and on when
/// the run ended.
fn is_checkable_when_truncated(guarantee: Guarantee) -> bool {
    !matches!(guarantee, Guarantee::Order | Guarantee::Recovery | Guarantee::Ticks)
}

fn failure_summary(verdict: &Verdict) -> String {
    match verdict.violations.first() {
        Some(violation) => {
            format!("{} ({})", violation.title, verdict.header.notes.get("command").map_or("", String::as_str))
        }
        None if !verdict.complete => "the history is incomplete".to_owned(),
        None => "a control was not detected".to_owned(),
    }
}

fn save_history_and_report(events: &[Event], verdict: &Verdict, folder: &Path, stem: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let text: String = events.iter().map(history::to_json_line).collect();
    std::fs::write(folder.join(format!("{stem}.jsonl")), text)?;
    std::fs::write(folder.join(format!("{stem}.html")), report::html::page(events, verdict))
}
