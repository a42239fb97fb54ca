//! Medians, ratios and the table.

use std::time::Duration;

use serde_json::{Value, json};

/// All lines of a run.
pub(crate) struct Report {
    json: bool,
    lines: Vec<Value>,
    missed_targets: Vec<String>,
}

/// A comparison of times: those of leasehold and of the baseline in each round, and the target: the
/// maximum ratio of their medians, infinite for none.
pub(crate) struct Comparison<'a> {
    pub(crate) name: &'a str,
    pub(crate) baseline_name: &'a str,
    pub(crate) leasehold: &'a mut [Duration],
    pub(crate) baseline: &'a mut [Duration],
    pub(crate) max_ratio: f64,
}

/// A comparison of rates: those of leasehold and of the baseline in each round, and the target: the
/// minimum ratio of their medians, 0 for none.
pub(crate) struct RateComparison<'a> {
    pub(crate) name: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) baseline_name: &'a str,
    pub(crate) leasehold: &'a mut [f64],
    pub(crate) baseline: &'a mut [f64],
    pub(crate) min_ratio: f64,
}

/// The median of these times; sorts them.
pub(crate) fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, lines: Vec::new(), missed_targets: Vec::new() }
    }

    /// Adds a comparison.
    pub(crate) fn add_comparison(&mut self, line: Comparison<'_>) {
        let rounds = line.leasehold.len();
        let (ours, floor) = (median(line.leasehold), median(line.baseline));
        let ratio = ours.as_secs_f64() / floor.as_secs_f64();
        self.print_line(&format!(
            "{:<44} {ours:>12.2?}   {:<34} {floor:>12.2?}   {ratio:>6.2} x ({})",
            line.name,
            line.baseline_name,
            if line.max_ratio.is_finite() {
                format!("aim: at most {}", line.max_ratio)
            } else {
                "for comparison".to_owned()
            }
        ));
        self.record_target(line.name, ratio <= line.max_ratio);
        self.lines.push(json!({
            "what": line.name, "ours_ns": ours.as_nanos() as u64, "floor": line.baseline_name,
            "floor_ns": floor.as_nanos() as u64, "ratio": ratio, "aim": line.max_ratio.is_finite().then_some(line.max_ratio), "rounds": rounds,
        }));
    }

    /// Adds a comparison of rates; without a target if `min_ratio` is 0.
    pub(crate) fn add_rates(&mut self, line: RateComparison<'_>) {
        let rounds = line.leasehold.len();
        let middle = |values: &mut [f64]| {
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let (ours, floor) = (middle(line.leasehold), middle(line.baseline));
        let ratio = ours / floor;
        let aim = (line.min_ratio > 0.0).then_some(line.min_ratio);
        self.print_line(&format!(
            "{:<44} {ours:>12.0}   {:<34} {floor:>12.0}   {ratio:>6.2} x ({}) {}",
            line.name,
            line.baseline_name,
            aim.map_or_else(|| "for comparison".to_owned(), |least| format!("aim: at least {least}")),
            line.unit
        ));
        self.record_target(line.name, ratio >= line.min_ratio);
        self.lines.push(json!({
            "what": line.name, "ours": ours, "floor": line.baseline_name, "floor_value": floor, "unit": line.unit, "ratio": ratio,
            "aim": aim, "rounds": rounds,
        }));
    }

    /// Adds a figure with the target that it is at most `max`; no target if `max` is infinite.
    pub(crate) fn add_figure(&mut self, name: &str, value: f64, unit: &str, max: f64) {
        let aim = max.is_finite().then_some(max);
        let target = aim.map_or_else(|| "for comparison".to_owned(), |most| format!("aim: at most {most}"));
        self.print_line(&format!("{name:<44} {value:>12.2} {unit} ({target})"));
        self.record_target(name, value <= max);
        self.lines.push(json!({ "what": name, "value": value, "unit": unit, "aim": aim }));
    }

    /// Adds a line to the JSON output.
    pub(crate) fn add_json(&mut self, line: Value) {
        self.lines.push(line);
    }

    fn record_target(&mut self, name: &str, is_met: bool) {
        if !is_met {
            self.missed_targets.push(name.to_owned());
        }
    }

    #[allow(clippy::print_stdout, reason = "a bench prints")]
    pub(crate) fn print_line(&self, line: &str) {
        if !self.json {
            println!("{line}");
        }
    }

    /// Ends the run: exit code 1 if a target was missed.
    #[allow(clippy::print_stdout, reason = "a bench prints")]
    pub(crate) fn finish(self) -> Result<(), Box<dyn std::error::Error>> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(&self.lines)?);
        }
        if self.missed_targets.is_empty() {
            Ok(())
        } else {
            Err(format!("missed: {}", self.missed_targets.join(", ")).into())
        }
    }
}
