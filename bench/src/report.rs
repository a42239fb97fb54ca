//! Medians, ratios and the table.

use std::time::Duration;

use serde_json::{Value, json};

/// All lines of a run.
pub(crate) struct Report {
    json: bool,
    lines: Vec<Value>,
    missed: Vec<String>,
}

/// A comparison: its name, leasehold's cost and the floor's, and the target ratio.
pub(crate) struct Line<'a> {
    pub(crate) what: &'a str,
    pub(crate) floor_is: &'a str,
    pub(crate) ours: &'a mut [Duration],
    pub(crate) floor: &'a mut [Duration],
    pub(crate) most: f64,
}

/// A comparison of rates: leasehold's and the floor's per second, and the target share of the
/// floor's.
pub(crate) struct Rates<'a> {
    pub(crate) what: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) floor_is: &'a str,
    pub(crate) ours: &'a mut [f64],
    pub(crate) floor: &'a mut [f64],
    pub(crate) least: f64,
}

/// The median.
pub(crate) fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, lines: Vec::new(), missed: Vec::new() }
    }

    /// Adds a comparison.
    pub(crate) fn compare(&mut self, line: Line<'_>) {
        let rounds = line.ours.len();
        let (ours, floor) = (median(line.ours), median(line.floor));
        let ratio = ours.as_secs_f64() / floor.as_secs_f64();
        self.say(&format!(
            "{:<44} {ours:>12.2?}   {:<34} {floor:>12.2?}   {ratio:>6.2} x ({})",
            line.what,
            line.floor_is,
            if line.most.is_finite() { format!("aim: at most {}", line.most) } else { "for comparison".to_owned() }
        ));
        self.judge(line.what, ratio <= line.most);
        self.lines.push(json!({
            "what": line.what, "ours_ns": ours.as_nanos() as u64, "floor": line.floor_is,
            "floor_ns": floor.as_nanos() as u64, "ratio": ratio, "aim": line.most.is_finite().then_some(line.most), "rounds": rounds,
        }));
    }

    /// Adds a comparison of rates; without a target if `least` is 0.
    pub(crate) fn rates(&mut self, line: Rates<'_>) {
        let rounds = line.ours.len();
        let middle = |values: &mut [f64]| {
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let (ours, floor) = (middle(line.ours), middle(line.floor));
        let ratio = ours / floor;
        let aim = (line.least > 0.0).then_some(line.least);
        self.say(&format!(
            "{:<44} {ours:>12.0}   {:<34} {floor:>12.0}   {ratio:>6.2} x ({}) {}",
            line.what,
            line.floor_is,
            aim.map_or_else(|| "for comparison".to_owned(), |least| format!("aim: at least {least}")),
            line.unit
        ));
        self.judge(line.what, ratio >= line.least);
        self.lines.push(json!({
            "what": line.what, "ours": ours, "floor": line.floor_is, "floor_value": floor, "unit": line.unit, "ratio": ratio,
            "aim": aim, "rounds": rounds,
        }));
    }

    /// Adds a figure with a bound; without one if it is infinite.
    pub(crate) fn figure(&mut self, what: &str, value: f64, unit: &str, most: f64) {
        let aim = most.is_finite().then_some(most);
        let told = aim.map_or_else(|| "for comparison".to_owned(), |most| format!("aim: at most {most}"));
        self.say(&format!("{what:<44} {value:>12.2} {unit} ({told})"));
        self.judge(what, value <= most);
        self.lines.push(json!({ "what": what, "value": value, "unit": unit, "aim": aim }));
    }

    /// Adds a line to the JSON output.
    pub(crate) fn add(&mut self, line: Value) {
        self.lines.push(line);
    }

    fn judge(&mut self, what: &str, reached: bool) {
        if !reached {
            self.missed.push(what.to_owned());
        }
    }

    #[allow(clippy::print_stdout, reason = "a bench prints")]
    pub(crate) fn say(&self, line: &str) {
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
        if self.missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", self.missed.join(", ")).into()) }
    }
}
