//! A flash sale: 1,000 buyers, 100 items, and one number for the items left. How many are sold
//! without a lock, and with each technique?
//!
//! ```text
//! cargo run --release -p leasehold-examples --bin flash_sale
//! cargo run --release -p leasehold-examples --bin flash_sale -- --engine redis://127.0.0.1/
//! cargo run --release -p leasehold-examples --bin flash_sale -- --engine postgres://user:password@host/database
//! ```
//! With `mysql:` and `postgres:` the stock is a row in that database, and the sale runs with each
//! of the engine's techniques. (It creates and drops the tables `leasehold_flash_sale` and
//! `leasehold_flash_sale_fence`.) With any other engine the stock is in this process, with a delay
//! of a millisecond. `--buyers N`, `--items N`; `--json` for programs, `--svg FILE` for a picture.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

#[path = "../common/mod.rs"]
mod common;
mod database;
mod memory_stock;
mod output;
mod sale;
mod stock;

use std::process::ExitCode;
use std::sync::Arc;

use common::{Arguments, EngineLocation, Failure};
use sale::Sale;
use stock::Stock;

const USAGE: &str = "flash_sale [--engine URL] [--buyers 1000] [--items 100] [--at-once 64] [--json] [--svg FILE]

Sells 100 items to 1,000 buyers: without a lock, with one, with one and its token, and by version.
  --engine URL   where the locks are kept (file:///folder, memory:, redis://host, …); with mysql://… and postgres://…
                 the stock is there, too; if not given, file: in a temporary folder";

struct Options {
    place: EngineLocation,
    sale: Sale,
    json: bool,
    svg: Option<String>,
}

fn options() -> Result<Options, Failure> {
    let (mut words, mut json, mut svg) = (Arguments::new(USAGE), false, None);
    let (mut buyers, mut items, mut at_once) = (1000, 100, 64);
    while let Some(word) = words.next()? {
        match word.as_str() {
            "--buyers" => buyers = words.number(&word)?,
            "--items" => items = words.number(&word)?,
            "--at-once" => at_once = words.number(&word)?,
            "--svg" => svg = Some(words.value(&word)?),
            "--json" => json = true,
            _ => return Err(words.unknown_option(&word)),
        }
    }
    let place = words.engine_location()?;
    let sale =
        Sale { url: place.url.clone(), stock: open_stock(&place.url)?, buyers, items, concurrency: at_once as usize };
    Ok(Options { place, sale, json, svg })
}

fn open_stock(url: &str) -> Result<Arc<dyn Stock>, Failure> {
    if stock::is_database(url) {
        return Ok(Arc::new(database::DatabaseStock::new(url)));
    }
    Ok(Arc::<memory_stock::MemoryStock>::default())
}

async fn run() -> Result<bool, Failure> {
    let Options { place, sale, json, svg } = options()?;
    if !json {
        println!("{} buyers, {} items, locks from {place}\n", sale.buyers, sale.items);
    }
    let (mut all, mut right) = (Vec::new(), true);
    for technique in stock::techniques(&sale.url).iter().copied() {
        match sale.run(technique).await {
            Ok(sold) => {
                right &= !technique.protects() || sale.is_correct(&sold);
                all.push((technique, sold));
            }
            Err(why) => {
                eprintln!("{}: {why}", technique.name);
                right &= !technique.protects();
            }
        }
    }
    if json {
        println!("{}", output::json(&sale, &all));
    } else {
        print!("{}{}", output::table(&all), output::chart(&sale, &all));
    }
    if let Some(file) = svg {
        std::fs::write(file, output::svg(&sale, &all))?;
    }
    Ok(right)
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run().await)
}
