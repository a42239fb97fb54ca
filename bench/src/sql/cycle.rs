//! One task acquires and releases an uncontended lock.

use std::time::Duration;

use leasehold::{Locks, Mutex};

use super::exact::Exact;
use super::floor::{Bare, make_table};
use super::server::{Base, Bench};
use crate::held::cpu;
use crate::redis::Oops;
use crate::redis::floor::p50;
use crate::report::{Line, Report};

/// How often each comparison runs, floor and leasehold in turn.
const ROUNDS: u32 = 11;
/// The maximum cost of an acquire and a release, relative to the two statements of which they
/// consist.
const MOST: f64 = 1.2;
const NAME: &str = "cycle";
const EXACT: &str = "exact";

async fn ours(mutex: &Mutex) -> Result<(), Oops> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// The results of the rounds.
#[derive(Default)]
struct Rounds {
    p50: Vec<Duration>,
    /// This process's CPU time in one cycle.
    client: Vec<Duration>,
    /// The server's CPU time in all of them.
    server: Duration,
}

impl Rounds {
    async fn round(
        &mut self,
        bench: &Bench,
        cycles: u32,
        cycle: impl AsyncFnMut() -> Result<(), Oops>,
    ) -> Result<(), Oops> {
        let (server, client) = (bench.cpu()?, cpu());
        self.p50.push(p50(cycles, cycle).await?);
        self.client.push((cpu() - client) / cycles);
        self.server += bench.cpu()?.saturating_sub(server);
        Ok(())
    }
}

/// The contents of our row while the lock is held, and after its release: the floors write the
/// same. And the first as it is sent, without the time.
async fn states(bench: &Bench, locks: &Locks) -> Result<[String; 3], Oops> {
    let asked = format!("SELECT state FROM leasehold WHERE name = '{NAME}'");
    let guard = locks.mutex(NAME).lock().await?;
    let taken = bench.value(&asked).await?;
    let sent = taken.replace(&guard.token().0.to_string(), "\u{1}");
    let _ = guard.release().await?;
    Ok([taken, bench.value(&asked).await?, sent])
}

/// One task, one lock.
pub(crate) async fn cycle(report: &mut Report, bench: &Bench) -> Result<(), Oops> {
    make_table(bench).await?;
    let locks = bench.open("").await?;
    let [taken, given, sent] = states(bench, &locks).await?;
    let mutex = locks.mutex(NAME);
    let (mut bare, mut exact) = (Bare::open(bench).await?, Exact::open(bench).await?);
    // With as many digits as our own tokens have.
    let mut at = 1_700_000_000_000_000;
    let mut floor_cycle = async || {
        at += 1;
        bare.cycle(NAME, at, [&taken, &given]).await
    };
    let mut exact_cycle = async || exact.cycle(EXACT, [&sent, &given]).await;
    let cycles = if bench.syncs { 300 } else { 1_000 } / bench.scale;
    p50(cycles, async || ours(&mutex).await).await?;
    p50(cycles, &mut floor_cycle).await?;
    p50(cycles, &mut exact_cycle).await?;
    let (mut mine, mut floor, mut same) = (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..ROUNDS {
        // No variant is always first, or always follows the same one.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => mine.round(bench, cycles, async || ours(&mutex).await).await?,
                1 => same.round(bench, cycles, &mut exact_cycle).await?,
                _ => floor.round(bench, cycles, &mut floor_cycle).await?,
            }
        }
    }
    locks.close().await?;
    let what = format!("{}: take and give back, p50", bench.label());
    let (same_is, most) = ("its two statements, bare", MOST);
    report.compare(Line { what: &what, floor_is: same_is, ours: &mut mine.p50, floor: &mut same.p50, most });
    // These two check nothing: neither whether the lock is free nor whether it is ours, and no
    // clock.
    let floor_is = if bench.base == Base::MySql { "bare upsert, update" } else { "bare upsert RETURNING, update" };
    let most = f64::INFINITY;
    report.compare(Line { what: &what, floor_is, ours: &mut mine.p50, floor: &mut floor.p50, most });
    let what = format!("{}: our CPU time in one", bench.label());
    report.compare(Line { what: &what, floor_is: same_is, ours: &mut mine.client, floor: &mut same.client, most });
    let what = format!("{}: our CPU time in one", bench.label());
    report.compare(Line { what: &what, floor_is, ours: &mut mine.client, floor: &mut floor.client, most });
    let what = format!("{}: the server's CPU time in one", bench.label());
    // The resolution of its clock is too low for a single round.
    let (mut ours, mut bare) = ([mine.server / (ROUNDS * cycles)], [floor.server / (ROUNDS * cycles)]);
    report.compare(Line { what: &what, floor_is, ours: &mut ours, floor: &mut bare, most });
    counted(report, bench, cycles).await
}

/// The same with the statements counted.
async fn counted(report: &mut Report, bench: &Bench, cycles: u32) -> Result<(), Oops> {
    bench.count_statements().await?;
    let locks = bench.open("").await?;
    let mutex = locks.mutex(NAME);
    ours(&mutex).await?;
    let before = bench.statements().await?;
    for _ in 0..cycles {
        ours(&mutex).await?;
    }
    let statements = bench.statements().await?.since(before) / f64::from(cycles);
    let what = format!("{}: take and give back", bench.label());
    report.figure(&what, statements, "statements", f64::INFINITY);
    locks.close().await?;
    Ok(())
}
