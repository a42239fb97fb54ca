//! The table of guarantees, from the measured outcomes.

use std::fmt::Write;

use super::{Cell, CellOutcome};
use crate::deployment::LocalEngine;
use crate::report::format::{format_count, guarantee_description};
use crate::verdict::Guarantee;

/// Two Markdown tables with a column per engine: a row per fault, then a row per guarantee; below
/// them the extent, the date and the servers' versions.
pub fn guarantee_tables(outcomes: &[CellOutcome], date: &str) -> String {
    let mut text = header_row("fault");
    for (fault, option) in super::table_rows() {
        let with = option.map(|option| format!(", with `{option}`")).unwrap_or_default();
        let _ = write!(text, "| {}{with} |", fault.map_or("none", |fault| fault.about()));
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
        "\nIn the first table, each entry: histories with a violation of all histories · the longest time from a fault's end (of a kill or a stop: from its beginning) until the lock was granted again, in TTLs; in brackets from its beginning, where other servers serve on meanwhile · holds that were at once with another, where that is not promised. \
         In the second: how many things were wrong of how many that were checked, under all those faults together; in brackets where that is not promised. \
         –: does not apply there, or is not done there. {} histories, {} calls, {} grants, {} faults, {} locks lost and noticed ({} by holders that ran all the time: of these it was judged when), {} stale writes refused; \
         {date}, {}.\n",
        sum(|outcome| outcome.histories),
        sum(|outcome| outcome.calls),
        sum(|outcome| outcome.grants),
        sum(|outcome| outcome.faults),
        sum(|outcome| outcome.losses),
        sum(|outcome| outcome.told),
        sum(|outcome| outcome.refused),
        versions.join(", ")
    );
    let unconfirmed = sum(|outcome| outcome.unconfirmed);
    if unconfirmed > 0 {
        let _ = writeln!(text, "The second checker, porcupine, did not confirm {unconfirmed} registers' histories.");
    }
    text
}

fn header_row(first_column: &str) -> String {
    let engines: String = LocalEngine::ALL.iter().map(|local| format!(" `{local}:` |")).collect();
    format!("| {first_column} |{engines}\n|---|{}\n", "---|".repeat(LocalEngine::ALL.len()))
}

/// Each guarantee on each engine, over all faults.
fn write_guarantee_table(outcomes: &[CellOutcome], text: &mut String) {
    text.push('\n');
    text.push_str(&header_row("promise"));
    for promise in Guarantee::ALL {
        let _ = write!(text, "| {} |", guarantee_description(promise));
        for local in LocalEngine::ALL {
            let of = outcomes.iter().filter(|outcome| outcome.engine == local.as_str());
            let sums = of.filter_map(|outcome| outcome.checked.get(&promise));
            let (checked, broken) = sums.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            let _ = match checked {
                0 => write!(text, " –"),
                _ => write!(text, " {} of {}", format_count(broken), format_count(checked)),
            };
            // Where the table of guarantees has no guarantee: only counted.
            let counted = outcomes.iter().filter(|outcome| outcome.engine == local.as_str());
            let counted = counted.filter_map(|outcome| outcome.counted.get(&promise));
            let (seen, wrong) = counted.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            let _ = match seen {
                0 => write!(text, " |"),
                _ => write!(text, " (not promised: {} of {}) |", format_count(wrong), format_count(seen)),
            };
        }
        text.push('\n');
    }
}

fn cell_text(outcome: &CellOutcome) -> String {
    if outcome.histories == 0 {
        return "not run".to_owned();
    }
    let mut text = format!("{} of {}", outcome.broken, outcome.histories);
    if let Some(worst) = outcome.recovered.last() {
        let _ = write!(text, " · {worst:.1}");
    }
    if let Some(worst) = outcome.meanwhile.last() {
        let _ = write!(text, " ({worst:.1})");
    }
    if outcome.at_once > 0 {
        let _ = write!(text, " · {} at once", outcome.at_once);
    }
    if !outcome.troubles.is_empty() {
        let _ = write!(text, " · {} not run", outcome.troubles.len());
    }
    text
}
