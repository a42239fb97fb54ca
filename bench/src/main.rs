//! What leasehold costs, beside a floor that is measured in the same run.
//!
//! `cargo run --release -p leasehold-bench` prints a table; `--json` prints the same for programs; `--quick` takes a tenth of
//! the rounds. `redis` measures locks in a Redis server that is started for it, instead of those in memory and in files; with `--peers`
//! other people's locks, too. Floor and ours are interleaved round by round, and the medians compared, because machines are noisy.

mod cycle;
mod floor;
mod handoff;
mod held;
mod redis;
mod report;

use report::Report;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known = ["redis", "--json", "--quick", "--peers"];
    if let Some(unknown) = arguments.iter().find(|argument| !known.contains(&argument.as_str())) {
        return Err(format!("{unknown} is not known; there are {}", known.join(", ")).into());
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let scale = if has("--quick") { 10 } else { 1 };
    let mut report = Report::new(has("--json"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if has("redis") {
        runtime
            .block_on(redis::run(&mut report, scale, has("--peers")))
            .map_err(|error| -> Box<dyn std::error::Error> { error })?;
        return report.finish();
    }
    runtime.block_on(cycle::memory(&mut report, scale))?;
    runtime.block_on(cycle::file(&mut report, scale))?;
    runtime.block_on(handoff::memory(&mut report, scale))?;
    runtime.block_on(handoff::file(&mut report, scale))?;
    runtime.block_on(held::memory(&mut report, scale))?;
    report.finish()
}
