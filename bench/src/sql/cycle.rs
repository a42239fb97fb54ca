//! One task acquires and releases an uncontended lock.

use std::time::Duration;

use leasehold::{Locks, Mutex};

use super::baseline::{Baseline, create_table};
use super::exact_statements::ExactStatements;
use super::server::{BenchServer, DatabaseKind};
use crate::held_leases::cpu_time;
use crate::redis::BoxError;
use crate::redis::baseline::p50;
use crate::report::{Comparison, Report};

/// How many rounds each comparison has; baseline and leasehold run in turn in each.
const ROUNDS: u32 = 11;
/// The maximum cost of an acquire and a release, relative to the two statements of which they
/// consist.
const MAX_RATIO: f64 = 1.2;
const LOCK_NAME: &str = "cycle";
const EXACT_ROW_NAME: &str = "exact";

async fn run_cycle(mutex: &Mutex) -> Result<(), BoxError> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// The results of the rounds.
#[derive(Default)]
struct RoundTimes {
    p50: Vec<Duration>,
    /// This process's CPU time per cycle, for each round.
    client_cpu: Vec<Duration>,
    /// The server's CPU time in all cycles of all rounds.
    server_cpu: Duration,
}

impl RoundTimes {
    async fn run_round(
        &mut self,
        bench: &BenchServer,
        cycles: u32,
        cycle: impl AsyncFnMut() -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let (server, client) = (bench.cpu_time()?, cpu_time());
        self.p50.push(p50(cycles, cycle).await?);
        self.client_cpu.push((cpu_time() - client) / cycles);
        self.server_cpu += bench.cpu_time()?.saturating_sub(server);
        Ok(())
    }
}

/// The state that leasehold stores in a lock's row: while the lock is held, and after its release.
/// The baselines write the same. The third is the first as the client sends it, with `\u{1}` in
/// place of the token.
async fn row_states(bench: &BenchServer, locks: &Locks) -> Result<[String; 3], BoxError> {
    let query = format!("SELECT state FROM leasehold WHERE name = '{LOCK_NAME}'");
    let guard = locks.mutex(LOCK_NAME).lock().await?;
    let taken = bench.query_value(&query).await?;
    let sent = taken.replace(&guard.token().0.to_string(), "\u{1}");
    let _ = guard.release().await?;
    Ok([taken, bench.query_value(&query).await?, sent])
}

/// One task acquires and releases one lock, compared with bare statements.
pub(crate) async fn bench_cycle(report: &mut Report, bench: &BenchServer) -> Result<(), BoxError> {
    create_table(bench).await?;
    let locks = bench.open_locks("").await?;
    let [taken, given, sent] = row_states(bench, &locks).await?;
    let mutex = locks.mutex(LOCK_NAME);
    let (mut bare, mut exact) = (Baseline::open(bench).await?, ExactStatements::open(bench).await?);
    // With as many digits as our own tokens have.
    let mut at = 1_700_000_000_000_000;
    let mut floor_cycle = async || {
        at += 1;
        bare.run_cycle(LOCK_NAME, at, [&taken, &given]).await
    };
    let mut exact_cycle = async || exact.run_cycle(EXACT_ROW_NAME, [&sent, &given]).await;
    let cycles = if bench.is_durable { 300 } else { 1_000 } / bench.scale;
    p50(cycles, async || run_cycle(&mutex).await).await?;
    p50(cycles, &mut floor_cycle).await?;
    p50(cycles, &mut exact_cycle).await?;
    let (mut mine, mut floor, mut same) = (RoundTimes::default(), RoundTimes::default(), RoundTimes::default());
    for round in 0..ROUNDS {
        // No variant is always first, or always follows the same one.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => mine.run_round(bench, cycles, async || run_cycle(&mutex).await).await?,
                1 => same.run_round(bench, cycles, &mut exact_cycle).await?,
                _ => floor.run_round(bench, cycles, &mut floor_cycle).await?,
            }
        }
    }
    locks.close().await?;
    let exact_name = "its two statements, bare";
    // The bare upsert and update check neither whether the lock is free or ours, nor the clock.
    let floor_name =
        if bench.database == DatabaseKind::MySql { "bare upsert, update" } else { "bare upsert RETURNING, update" };
    let mut compare = |what: &str, baseline_name, leasehold: &mut [Duration], baseline: &mut [Duration], max_ratio| {
        let name = &format!("{}: {what}", bench.label());
        report.add_comparison(Comparison { name, baseline_name, leasehold, baseline, max_ratio });
    };
    compare("acquire and release, p50", exact_name, &mut mine.p50, &mut same.p50, MAX_RATIO);
    compare("acquire and release, p50", floor_name, &mut mine.p50, &mut floor.p50, f64::INFINITY);
    compare("our CPU time in one", exact_name, &mut mine.client_cpu, &mut same.client_cpu, f64::INFINITY);
    compare("our CPU time in one", floor_name, &mut mine.client_cpu, &mut floor.client_cpu, f64::INFINITY);
    // The resolution of the server's clock is too low for a single round.
    let (mut ours, mut bare) = ([mine.server_cpu / (ROUNDS * cycles)], [floor.server_cpu / (ROUNDS * cycles)]);
    compare("the server's CPU time in one", floor_name, &mut ours, &mut bare, f64::INFINITY);
    bench_statement_count(report, bench, cycles).await
}

/// Counts the statements that the server receives for one cycle.
async fn bench_statement_count(report: &mut Report, bench: &BenchServer, cycles: u32) -> Result<(), BoxError> {
    bench.start_counting_statements().await?;
    let locks = bench.open_locks("").await?;
    let mutex = locks.mutex(LOCK_NAME);
    run_cycle(&mutex).await?;
    let before = bench.statement_count().await?;
    for _ in 0..cycles {
        run_cycle(&mutex).await?;
    }
    let statements = bench.statement_count().await?.since(before) / f64::from(cycles);
    let what = format!("{}: acquire and release", bench.label());
    report.add_figure(&what, statements, "statements", f64::INFINITY);
    locks.close().await?;
    Ok(())
}
