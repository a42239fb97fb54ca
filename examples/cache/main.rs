//! A shop that keeps its prices in a cache. With each strategy, how often does a customer see an
//! outdated price?
//!
//! ```text
//! cargo run --release -p leasehold-examples --bin cache
//! cargo run --release -p leasehold-examples --bin cache -- --engine redis://127.0.0.1/
//! ```
//! Without `--engine` the cache is in this process, and no server is needed. `--seconds N` sets the
//! time for each strategy; `--json` prints JSON. The database is a table in memory whose reads have
//! a delay, as queries do.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

mod shop;

use std::process::ExitCode;
use std::time::Duration;

use shop::{NAMES, Observed, Shop, is_strong};

const USAGE: &str = "cache [--engine URL] [--seconds N] [--json]

A shop keeps its prices in a cache, with each strategy in turn: how often does a customer see a wrong one?
  --engine URL   where the cache is kept (redis://host, redis+cluster://host, …); if not given, memory:, in this process
  --seconds N    how long each strategy runs; 2 if not given
  --json         print JSON";

fn options() -> Result<(Shop, bool), String> {
    let (mut url, mut seconds, mut json) = ("memory:".to_owned(), 2.0, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--engine" => url = value()?,
            "--seconds" => {
                let text = value()?;
                seconds = text
                    .parse::<f64>()
                    .ok()
                    .filter(|seconds| (0.01..1e6).contains(seconds))
                    .ok_or(format!("{text:?} is not a duration"))?;
            }
            "--json" => json = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(format!("{word:?} is no option\n{USAGE}")),
        }
    }
    Ok((Shop { url, time: Duration::from_secs_f64(seconds) }, json))
}

fn print_results(all: &[(&str, Observed)], crowd: u64, json: bool) {
    if json {
        let line = |(name, Observed { reads, stale, writes, loads }): &(&str, Observed)| {
            format!(r#"{{"strategy":"{name}","reads":{reads},"stale":{stale},"writes":{writes},"loads":{loads}}}"#)
        };
        let lines: Vec<String> = all.iter().map(line).collect();
        println!(r#"{{"strategies":[{}],"loads_of_a_crowd":{crowd}}}"#, lines.join(","));
        return;
    }
    println!(
        "{:<34} {:>10} {:>20} {:>8} {:>22}",
        "strategy", "reads", "wrong in a million", "writes", "loads for each write"
    );
    for (name, shown) in all {
        let wrong = shown.stale as f64 * 1e6 / shown.reads.max(1) as f64;
        let loads = shown.loads as f64 / shown.writes.max(1) as f64;
        println!("{name:<34} {:>10} {wrong:>20.1} {:>8} {loads:>22.2}", shown.reads, shown.writes);
    }
    println!("\n1,000 customers at once ask for a price that is not in the cache: {crowd} load");
}

#[tokio::main]
async fn main() -> ExitCode {
    let (shop, json) = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(64);
        }
    };
    let mut all = Vec::new();
    for name in NAMES {
        match shop.run_strategy(name).await {
            Ok(shown) => all.push((name, shown)),
            Err(why) => {
                eprintln!("{name}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    let crowd = match shop.count_loads_of_crowd(1000).await {
        Ok(loads) => loads,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    print_results(&all, crowd, json);
    let right = all.iter().filter(|(name, _)| is_strong(name)).all(|(_, shown)| shown.stale == 0);
    if right && crowd == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
