//! Medians, ratios and the table.

use std::time::Duration;

use serde_json::{Value, json};

/// All lines of one run.
pub(crate) struct Report {
    json: bool,
    lines: Vec<Value>,
    missed: Vec<String>,
}

/// One comparison: what it is, our cost and the floor's, and the ratio that we aim at.
pub(crate) struct Line<'a> {
    pub(crate) what: &'a str,
    pub(crate) floor_is: &'a str,
    pub(crate) ours: &'a mut [Duration],
    pub(crate) floor: &'a mut [Duration],
    pub(crate) most: f64,
}

/// The middle value.
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

    /// Adds a figure with a bound.
    pub(crate) fn figure(&mut self, what: &str, value: f64, unit: &str, most: f64) {
        self.say(&format!("{what:<44} {value:>12.2} {unit} (aim: at most {most})"));
        self.judge(what, value <= most);
        self.lines.push(json!({ "what": what, "value": value, "unit": unit, "aim": most }));
    }

    fn judge(&mut self, what: &str, reached: bool) {
        if !reached {
            self.missed.push(what.to_owned());
        }
    }

    #[allow(clippy::print_stdout, reason = "a bench prints")]
    fn say(&self, line: &str) {
        if !self.json {
            println!("{line}");
        }
    }

    /// Ends the run: exit 1 if an aim was missed.
    #[allow(clippy::print_stdout, reason = "a bench prints")]
    pub(crate) fn finish(self) -> Result<(), Box<dyn std::error::Error>> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(&self.lines)?);
        }
        if self.missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", self.missed.join(", ")).into()) }
    }
}
