//! A flash sale: 1,000 buyers, 100 items, one row of stock. How many are sold without a lock, and with each technique?
//!
//! ```text
//! cargo run --release -p leasehold --features mysql,postgres --example flash_sale -- --engine postgres://user:password@host/database
//! ```
//! `--buyers N`, `--items N`; `--json` for programs, `--svg FILE` for a picture. It makes and drops a table `leasehold_flash_sale`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

mod drawing;
mod sale;
mod stock;

use std::process::ExitCode;

use sale::{Sale, Sold, TECHNIQUES};

const USAGE: &str =
    "flash_sale --engine mysql://… or postgres://… [--buyers 1000] [--items 100] [--at-once 64] [--json] [--svg FILE]";

struct Options {
    sale: Sale,
    json: bool,
    svg: Option<String>,
}

fn options() -> Result<Options, String> {
    let (mut url, mut json, mut svg) = (None, false, None);
    let (mut buyers, mut items, mut at_once) = (1000, 100, 64);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u32>().map_err(|_| format!("{text:?} is no number"));
        match word.as_str() {
            "--engine" => url = Some(value()?),
            "--buyers" => buyers = number(value()?)?,
            "--items" => items = number(value()?)?,
            "--at-once" => at_once = number(value()?)?.max(1),
            "--svg" => svg = Some(value()?),
            "--json" => json = true,
            _ => return Err(format!("{word:?} is no option\n{USAGE}")),
        }
    }
    let url = url.ok_or_else(|| format!("which database?\n{USAGE}"))?;
    Ok(Options { sale: Sale { url, buyers, items, at_once: at_once as usize }, json, svg })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Options { sale, json, svg } = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(64);
        }
    };
    let mut all = Vec::new();
    for technique in TECHNIQUES {
        let ended = sale.hold(technique).await;
        if let Err(why) = &ended {
            eprintln!("{}: {why}", technique.name());
        }
        all.extend(ended.ok().map(|sold| (technique, sold)));
    }
    if json {
        println!("{}", drawing::json(&sale, &all));
    } else {
        print!("{}{}", drawing::table(&all), drawing::chart(&sale, &all));
    }
    if let Some(Err(why)) = svg.map(|file| std::fs::write(file, drawing::svg(&sale, &all))) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let right =
        |sold: &Sold| sold.units == sale.buyers.min(sale.items) && sold.left == i64::from(sale.items - sold.units);
    let ours = || all.iter().filter(|(technique, _)| technique.protects());
    if ours().count() + 1 == TECHNIQUES.len() && ours().all(|(_, sold)| right(sold)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
