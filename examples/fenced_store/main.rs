//! Why a lock needs a token: a holder that is paused for too long, and still writes when it
//! resumes.
//!
//! ```text
//! cargo run -p leasehold-examples --bin fenced_store
//! cargo run -p leasehold-examples --bin fenced_store -- --engine postgres://user:password@host/database
//! ```
//! The slow holder is a process that is stopped (SIGSTOP) between its read and its write, as by a
//! long pause of its machine. No lock can keep it from writing then; a store that checks the token
//! can. There are two kinds of store. One is like S3, where a write can only depend on what was
//! read ([`objects`]). The other is a table, which checks the token in the transaction that writes:
//! in the database itself with `mysql:` and `postgres:`, else in this process. Each is shown beside
//! one without a token check.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/hosts.rs"]
#[allow(dead_code, reason = "not every example needs all of it")]
mod hosts;
mod objects;
mod sql;
mod store;

use std::process::ExitCode;
use std::time::Duration;

use common::{EngineLocation, Failure};
use hosts::HostProcesses;
use leasehold::{Locks, Mutex, Token};
use objects::StoredObject;
use rustix::process::{Pid, Signal, kill_process};
use store::{ReadValue, Store, Table, WriteResult};

const USAGE: &str = "fenced_store [--engine URL]

A holder is stopped past its lease, another one writes, then the first one writes, too. A store that checks tokens
refuses it; one that does not loses an update.
  --engine URL   where the lock is kept (file:///folder, redis://host, zookeeper://host, …); with mysql://… and
                 postgres://… the table is there, too; if not given, file: in a temporary folder";

/// The shortest TTL that every engine accepts.
const TTL: Duration = Duration::from_secs(2);
const SLOW_HOST: u32 = 1;

fn mutex(locks: &Locks) -> Mutex {
    locks.mutex("example: stock").ttl(TTL)
}

/// The slow holder. It writes on order, without checking its guard, and reports the state of the
/// guard.
async fn slow_holder(url: &str) -> Result<bool, Failure> {
    let (locks, mut orders) = (Locks::open(url).await?, hosts::read_commands());
    for _ in 0..2 {
        let guard = mutex(&locks).lock().await?;
        println!("holds {}", guard.token());
        if orders.recv().await.is_none() {
            break;
        }
        println!("writes {} {}", guard.token(), guard.is_held());
        orders.recv().await;
        drop(guard);
    }
    locks.close().await?;
    Ok(true)
}

/// The words after `what` in the slow holder's next report.
async fn next_report(fleet: &mut HostProcesses, what: &str) -> Result<Vec<String>, Failure> {
    let (_, report) = fleet.next().await?;
    let rest = report.strip_prefix(what).ok_or_else(|| format!("the slow holder: {report}"))?;
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

async fn next_token(fleet: &mut HostProcesses, what: &str) -> Result<Token, Failure> {
    let words = next_report(fleet, what).await?;
    Ok(Token(words.first().ok_or("no token")?.parse()?))
}

/// Two stores of one kind: one checks tokens, the other does not.
struct StorePair {
    fenced: Box<dyn Store>,
    unfenced: Box<dyn Store>,
}

/// What a holder has read from the fenced and from the unfenced store.
type ReadState = (ReadValue, ReadValue);

impl StorePair {
    async fn read(&mut self) -> Result<ReadState, Failure> {
        Ok((self.fenced.read().await?, self.unfenced.read().await?))
    }

    /// Subtracts `sold` from the units that were read, and writes the result to both stores.
    /// Returns the result of the fenced one.
    async fn sell(
        &mut self,
        who: &str,
        sold: i64,
        (seen, unfenced): ReadState,
        token: Token,
    ) -> Result<WriteResult, Failure> {
        let units = unfenced.units - sold;
        self.unfenced.write(units, unfenced, None).await??;
        println!("  {who} writes {units} to {} without a token: written", self.unfenced.name());
        self.sell_fenced(who, sold, seen, token).await
    }

    async fn sell_fenced(
        &mut self,
        who: &str,
        sold: i64,
        seen: ReadValue,
        token: Token,
    ) -> Result<WriteResult, Failure> {
        let units = seen.units - sold;
        let written = self.fenced.write(units, seen, Some(token)).await?;
        let verdict = written.map_or_else(|stale| format!("REFUSED, {stale}"), |()| "written".to_owned());
        println!("  {who} writes {units} to {} with token {token}: {verdict}", self.fenced.name());
        Ok(written)
    }
}

async fn open_stores(url: &str) -> Result<[StorePair; 2], Failure> {
    let buckets = StorePair { fenced: Box::<StoredObject>::default(), unfenced: Box::<StoredObject>::default() };
    let mut pairs = [buckets, open_tables(url).await?];
    for store in pairs.iter_mut().flat_map(|pair| [&mut pair.fenced, &mut pair.unfenced]) {
        store.write(10, ReadValue::default(), None).await??;
    }
    Ok(pairs)
}

/// The final content of the stores, and whether it is correct.
async fn check_result(pairs: &mut [StorePair]) -> Result<bool, Failure> {
    let mut right = true;
    println!("\n{:<12} {:>12} {:>8}", "at the end", "with tokens", "without");
    for pair in pairs {
        let (fenced, unfenced) = pair.read().await?;
        println!("{:<12} {:>12} {:>8}", pair.fenced.name(), fenced.units, unfenced.units);
        right &= (fenced.units, unfenced.units) == (6, 9);
    }
    println!("6 is right. 9 is a lost update: three units that are sold are in stock again.");
    Ok(right)
}

async fn open_tables(url: &str) -> Result<StorePair, Failure> {
    if url.starts_with("mysql:") || url.starts_with("postgres") {
        let fenced = sql::Database::open(url, "leasehold_example_fenced").await?;
        let unfenced = sql::Database::open(url, "leasehold_example_unfenced").await?;
        return Ok(StorePair { fenced: Box::new(fenced), unfenced: Box::new(unfenced) });
    }
    Ok(StorePair { fenced: Box::<Table>::default(), unfenced: Box::<Table>::default() })
}

/// Ten units; the quick holder sells three and the slow one sells one, so six must be left.
async fn run_scenario(pairs: &mut [StorePair], place: &EngineLocation) -> Result<bool, Failure> {
    let locks = Locks::open(&place.url).await?;
    let mut fleet = HostProcesses::start(1, &place.url)?;
    println!("10 units in every store; the lock is on {place}\n");

    let old = next_token(&mut fleet, "holds").await?;
    let mut reads = Vec::new();
    for pair in pairs.iter_mut() {
        reads.push(pair.read().await?);
    }
    println!(
        "slow holds the lock with token {old}, reads, and is stopped (SIGSTOP) for longer than its lease of {TTL:?}"
    );
    let pid = i32::try_from(fleet.pid(SLOW_HOST)?).ok().and_then(Pid::from_raw).ok_or("no such process")?;
    kill_process(pid, Signal::STOP)?;

    let guard = mutex(&locks).lock().await?;
    println!("quick acquires the lock when that expires, with token {}, reads and sells 3", guard.token());
    let mut right = true;
    for pair in pairs.iter_mut() {
        let read = pair.read().await?;
        right &= pair.sell("quick", 3, read, guard.token()).await?.is_ok();
    }
    let _ = guard.release().await?;

    kill_process(pid, Signal::CONT)?;
    fleet.send_command(SLOW_HOST, "write")?;
    let words = next_report(&mut fleet, "writes").await?;
    let held = words.last().map_or("", String::as_str);
    right &= held == "false";
    println!(
        "slow continues (SIGCONT), sells 1 of the units that it read, and does not check its guard, whose is_held() is {held}"
    );
    for (pair, read) in pairs.iter_mut().zip(reads) {
        right &= pair.sell("slow", 1, read, old).await?.is_err_and(|stale| stale.token == old);
    }

    fleet.send_command(SLOW_HOST, "again")?;
    let new = next_token(&mut fleet, "holds").await?;
    println!("where it was refused, slow acquires the lock again, with token {new}, reads and sells 1");
    for pair in pairs.iter_mut() {
        let (seen, _) = pair.read().await?;
        right &= pair.sell_fenced("slow", 1, seen, new).await?.is_ok();
    }
    fleet.close_inputs();
    while fleet.next().await?.1 != hosts::ENDED_LINE {}
    drop(fleet);
    locks.close().await?;
    Ok(check_result(pairs).await? && right)
}

async fn run_example(place: &EngineLocation) -> Result<bool, Failure> {
    let mut pairs = open_stores(&place.url).await?;
    let result = run_scenario(&mut pairs, place).await;
    for store in pairs.iter_mut().flat_map(|pair| [&mut pair.fenced, &mut pair.unfenced]) {
        store.clear().await?;
    }
    result
}

async fn run() -> Result<bool, Failure> {
    let (place, host) = hosts::options(USAGE)?;
    if host.is_some() { slow_holder(&place.url).await } else { run_example(&place).await }
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run().await)
}
