//! The result as a table, as bars, as JSON and as a picture.

use std::fmt::Write;

use super::sale::{Sale, SaleResult};
use super::stock::Technique;

type Results = [(Technique, SaleResult)];

/// The width of the longest bar.
const WIDTH: f64 = 60.0;

fn sales_per_second(sold: &SaleResult) -> f64 {
    f64::from(sold.units) / sold.time.as_secs_f64().max(1e-9)
}

pub(crate) fn table(all: &Results) -> String {
    let mut text = String::from("technique   units sold   stock left   retries     time   sold/s\n");
    for (technique, sold) in all {
        let (name, time) = (technique.name, format!("{:.2} s", sold.time.as_secs_f64()));
        let _ = writeln!(
            text,
            "{name:<10} {:>11} {:>12} {:>9} {time:>8} {:>8.0}",
            sold.units,
            sold.units_left,
            sold.retries,
            sales_per_second(sold)
        );
    }
    text
}

/// A bar in eighths of a character.
fn bar(length: f64) -> String {
    let eighths = (length * 8.0).round() as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

pub(crate) fn chart(sale: &Sale, all: &Results) -> String {
    let mut text = format!("\nunits sold (there were {})\n", sale.items);
    let most = all.iter().map(|(_, sold)| sold.units).max().unwrap_or(0).max(sale.items).max(1);
    for (technique, sold) in all {
        let drawn = bar(f64::from(sold.units) / f64::from(most) * WIDTH);
        let over = sold.units.saturating_sub(sale.items);
        let over = if over > 0 { format!(", {over} too many") } else { String::new() };
        let _ = writeln!(text, "{:<10} {drawn} {}{over}", technique.name, sold.units);
    }
    text += "\ntime for all buyers\n";
    let most = all.iter().map(|(_, sold)| sold.time.as_secs_f64()).fold(1e-9, f64::max);
    for (technique, sold) in all {
        let time = sold.time.as_secs_f64();
        let _ = writeln!(text, "{:<10} {} {time:.2} s", technique.name, bar(time / most * WIDTH));
    }
    text
}

pub(crate) fn json(sale: &Sale, all: &Results) -> serde_json::Value {
    let rows = all.iter().map(|(technique, sold)| {
        serde_json::json!({
            "technique": technique.name,
            "sold": sold.units,
            "left": sold.units_left,
            "retries": sold.retries,
            "seconds": sold.time.as_secs_f64(),
            "sold_per_second": sales_per_second(sold),
        })
    });
    serde_json::json!({ "buyers": sale.buyers, "items": sale.items, "techniques": rows.collect::<Vec<_>>() })
}

/// Bars of units sold, with a line where the stock ends.
pub(crate) fn svg(sale: &Sale, all: &Results) -> String {
    let most = all.iter().map(|(_, sold)| sold.units).max().unwrap_or(0).max(sale.items).max(1);
    let at = |units: u32| 110.0 + f64::from(units) / f64::from(most) * 420.0;
    let height = 60 + all.len() * 32;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"640\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"22\">{} buyers, {} items: units sold</text>\n",
        sale.buyers, sale.items
    );
    for (index, (technique, sold)) in all.iter().enumerate() {
        let (y, end) = (40 + index * 32, at(sold.units));
        let color = if sold.units > sale.items { "#c0392b" } else { "#2e7d5b" };
        let _ = writeln!(
            text,
            "<text x=\"10\" y=\"{}\">{}</text><rect x=\"110\" y=\"{y}\" width=\"{:.1}\" height=\"22\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{0}\">{} in {:.2} s</text>",
            y + 16,
            technique.name,
            end - 110.0,
            end + 6.0,
            sold.units,
            sold.time.as_secs_f64()
        );
    }
    let x = at(sale.items);
    let _ = writeln!(
        text,
        "<line x1=\"{x:.1}\" y1=\"32\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\n</svg>",
        height - 16
    );
    text
}
