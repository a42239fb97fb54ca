//! The cost of leasehold, beside a baseline that is measured in the same run.
//!
//! `cargo run --release -p leasehold-bench` prints a table; `--json` prints JSON; `--quick` runs a
//! tenth of the rounds. Baseline and leasehold alternate round by round, and their medians are
//! compared, because machines are noisy.
//!
//! `redis` measures locks in a Redis server that it starts, instead of those in memory and in
//! files. The loads to run may follow (`one`, `many`, `turns`, `handover`, `held`; all by default),
//! and `--peers`, which adds other libraries' locks.
//!
//! `redlock` measures locks on a majority of five Redis servers; its loads are `one`, `far`,
//! `contended` and `down`.
//!
//! `zookeeper` measures locks in a ZooKeeper server; its loads are `cycle`, `handoff` and `herd`.
//!
//! `sql` measures locks in MariaDB and in PostgreSQL; its loads are `cycle`, `handoff`, `waiters`
//! and `leases`. With `mysql` or `postgres` it measures that database only.
//!
//! `cache` counts, for each strategy, how often a cache in Redis returns a value that its database,
//! a MariaDB, has already replaced.

mod baseline;
mod cache;
mod cycle;
mod handoff;
mod held_leases;
mod redis;
mod redlock;
mod report;
mod sql;
mod zookeeper;

use report::Report;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, loads): (&str, &[&str]) = match arguments.first().map(String::as_str) {
        Some("redis") => ("redis", &redis::LOADS),
        Some("redlock") => ("redlock", &redlock::LOADS),
        Some("zookeeper") => ("zookeeper", &zookeeper::LOADS),
        Some("sql") => ("sql", &sql::DATABASES_AND_LOADS),
        Some("cache") => ("cache", &[]),
        _ => ("", &[]),
    };
    let known = match what {
        "" => vec!["redis", "redlock", "zookeeper", "sql", "cache", "--json", "--quick"],
        "cache" => vec!["cache", "--json", "--quick"],
        what => [&[what, "--json", "--quick", "--peers"][..], loads].concat(),
    };
    if let Some(unknown) = arguments.iter().find(|argument| !known.contains(&argument.as_str())) {
        return Err(format!("unknown argument {unknown}; possible: {}", known.join(", ")).into());
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let scale = if has("--quick") { 10 } else { 1 };
    let mut report = Report::new(has("--json"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if !what.is_empty() {
        let chosen: Vec<&str> = loads.iter().copied().filter(|load| has(load)).collect();
        let peers = has("--peers");
        let run = match what {
            "redis" => runtime.block_on(redis::run(&mut report, scale, &chosen, peers)),
            "sql" => runtime.block_on(sql::run(&mut report, scale, &chosen, peers)),
            "cache" => runtime.block_on(cache::run(&mut report, scale)),
            "redlock" => runtime.block_on(redlock::run(&mut report, scale, &chosen, peers)),
            _ => runtime.block_on(zookeeper::run(&mut report, scale, &chosen, peers)),
        };
        run.map_err(|error| error as Box<dyn std::error::Error>)?;
        return report.finish();
    }
    runtime.block_on(cycle::bench_memory(&mut report, scale))?;
    runtime.block_on(cycle::bench_file(&mut report, scale))?;
    runtime.block_on(handoff::bench_memory(&mut report, scale))?;
    runtime.block_on(handoff::bench_file(&mut report, scale))?;
    runtime.block_on(held_leases::bench_memory(&mut report, scale))?;
    report.finish()
}
