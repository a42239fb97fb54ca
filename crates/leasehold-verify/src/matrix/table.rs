//! Formats the measured outcomes of the matrix as Markdown tables.

use std::fmt::Write;

use super::{Cell, CellOutcome};
use crate::deployment::LocalEngine;
use crate::report::format::{format_count, guarantee_description};
use crate::verdict::Guarantee;

/// Formats two Markdown tables with a column per engine: one with a row per fault, one with a row
/// per guarantee. Below them are a legend, the totals, `date`, and the servers' versions.
pub fn guarantee_tables(outcomes: &[CellOutcome], date: &str) -> String {
    let mut text = header_row("fault");
    for (fault, option) in super::table_rows() {
        let with = option.map(|option| format!(", with `{option}`")).unwrap_or_default();
        let _ = write!(text, "| {}{with} |", fault.map_or("none", |fault| fault.description()));
        for &local in LocalEngine::ALL {
            let cell = Cell { engine: local, fault, option };
            let name = fault.map_or(String::new(), |_| cell.name());
            let found = outcomes.iter().find(|outcome| outcome.engine == local.as_str() && outcome.fault == name);
            let can = super::cells().contains(&cell);
            let none = if can { "not run" } else { "–" };
            let _ = write!(text, " {} |", found.map_or(none.to_owned(), cell_text));
        }
        text.push('\n');
    }
    write_guarantee_table(outcomes, &mut text);
    let sum = |of: fn(&CellOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let mut versions: Vec<&str> = outcomes.iter().flat_map(|outcome| &outcome.versions).map(String::as_str).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.insert(0, concat!("leasehold ", env!("CARGO_PKG_VERSION")));
    let _ = write!(
        text,
        "\nIn the first table, each entry: histories with a violation, of all histories · the longest time from a fault's end (of a kill or a stop: from its beginning) until the lock was granted again, in TTLs; in brackets from its beginning, where other servers serve meanwhile · holds that overlapped another holder's, where exclusion is not guaranteed. \
         In the second: how many violations, of how many checks, under all those faults together; in brackets where it is not guaranteed. \
         –: does not apply to this engine, or cannot be tested there. {} histories, {} calls, {} grants, {} faults, {} losses notified ({} to holders that ran all the time, so that the time was checked), {} stale writes refused; \
         {date}, {}.\n",
        sum(|outcome| outcome.histories),
        sum(|outcome| outcome.calls),
        sum(|outcome| outcome.grants),
        sum(|outcome| outcome.faults),
        sum(|outcome| outcome.losses),
        sum(|outcome| outcome.losses_while_running),
        sum(|outcome| outcome.refused),
        versions.join(", ")
    );
    let unconfirmed = sum(|outcome| outcome.unconfirmed);
    if unconfirmed > 0 {
        let _ = writeln!(text, "The second checker, porcupine, did not confirm {unconfirmed} registers' histories.");
    }
    text
}

/// The header of a table, whose first column is named `first_column`; a column per engine follows.
fn header_row(first_column: &str) -> String {
    let engines: String = LocalEngine::ALL.iter().map(|local| format!(" `{local}:` |")).collect();
    format!("| {first_column} |{engines}\n|---|{}\n", "---|".repeat(LocalEngine::ALL.len()))
}

/// Appends the table with a row per guarantee: violations and checks on each engine, over all
/// faults.
fn write_guarantee_table(outcomes: &[CellOutcome], text: &mut String) {
    text.push('\n');
    text.push_str(&header_row("guarantee"));
    for guarantee in Guarantee::ALL {
        let _ = write!(text, "| {} |", guarantee_description(guarantee));
        for local in LocalEngine::ALL {
            let of = outcomes.iter().filter(|outcome| outcome.engine == local.as_str());
            let sums = of.filter_map(|outcome| outcome.checked.get(&guarantee));
            let (checked, broken) = sums.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            let _ = match checked {
                0 => write!(text, " –"),
                _ => write!(text, " {} of {}", format_count(broken), format_count(checked)),
            };
            // Histories in which it is not guaranteed, so that violations are only counted.
            let counted = outcomes.iter().filter(|outcome| outcome.engine == local.as_str());
            let counted = counted.filter_map(|outcome| outcome.counted.get(&guarantee));
            let (seen, wrong) = counted.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            let _ = match seen {
                0 => write!(text, " |"),
                _ => write!(text, " (not guaranteed: {} of {}) |", format_count(wrong), format_count(seen)),
            };
        }
        text.push('\n');
    }
}

/// The text of a cell in the table of faults, such as `0 of 12 · 1.2`: histories with a violation,
/// all histories, the longest recovery time in TTLs.
fn cell_text(outcome: &CellOutcome) -> String {
    if outcome.histories == 0 {
        return "not run".to_owned();
    }
    let mut text = format!("{} of {}", outcome.broken, outcome.histories);
    if let Some(worst) = outcome.recovered.last() {
        let _ = write!(text, " · {worst:.1}");
    }
    if let Some(worst) = outcome.granted_during_fault.last() {
        let _ = write!(text, " ({worst:.1})");
    }
    if outcome.overlaps > 0 {
        let _ = write!(text, " · {} at once", outcome.overlaps);
    }
    if !outcome.run_errors.is_empty() {
        let _ = write!(text, " · {} not run", outcome.run_errors.len());
    }
    text
}
