//! One leader at a time: of three candidates, the first leader is killed and the next one steps
//! down.
//!
//! ```text
//! cargo run -p leasehold-examples --bin leader
//! cargo run -p leasehold-examples --bin leader -- --engine redis://127.0.0.1/
//! ```
//! Each candidate is a process. The first leader gets SIGKILL, so it cannot notify the others. On
//! `file:` the kernel does, and the others learn of the death at once. On engines for many machines
//! its lease must expire first, after about the TTL of five seconds.
#![allow(clippy::disallowed_methods, reason = "an example waits by the clock of the runtime")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it shows what happens")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/hosts.rs"]
#[allow(dead_code, reason = "not every example needs all of it")]
mod hosts;

use std::process::ExitCode;
use std::time::Duration;

use common::{EngineLocation, Failure};
use hosts::HostProcesses;
use leasehold::clock::{Clock, Instant};
use leasehold::engine::Expiry;
use leasehold::{Election, Locks};

const USAGE: &str = "leader [--engine URL]

Three candidates, one leader: it is killed, another takes over and steps down, the third leads. Prints the times.
  --engine URL   where the election is kept (file:///folder, redis://host, zookeeper://host, …); if not
                 given, file: in a temporary folder";

const CANDIDATES: u32 = 3;
/// The TTL: short enough to watch, long enough for a busy machine.
const TTL: Duration = Duration::from_secs(5);
/// The TTL on `file:`, where the kernel reports a death and no candidate waits for the expiry.
const FILE_TTL: Duration = Duration::from_secs(30);

fn election(locks: &Locks) -> Election {
    let ttl = if locks.capabilities().expiry == Expiry::LeaseOrProcessDeath { FILE_TTL } else { TTL };
    locks.election("example: leader").ttl(ttl)
}

/// A candidate: waits until elected, and leads until it gets an order.
async fn candidate(url: &str, number: u32) -> Result<bool, Failure> {
    let (locks, mut orders) = (Locks::open(url).await?, hosts::read_commands());
    let election = election(&locks).describe(format!("candidate {number}"));
    println!("stands");
    let elected = tokio::select! {
        elected = election.campaign() => Some(elected?),
        _ = orders.recv() => None,
    };
    if let Some(leadership) = elected {
        println!("leads {}", leadership.token());
        tokio::select! {
            _ = orders.recv() => drop(leadership.resign().await?),
            reason = leadership.lost() => println!("lost {reason}"),
        }
    }
    locks.close().await?;
    Ok(true)
}

/// One term of a leader.
struct Term {
    leader: u32,
    token: u64,
    /// How long there was no leader.
    gap: Option<Duration>,
}

/// Waits for the next leader. `former`: the numbers of the earlier leaders; `since`: when the last
/// of them was killed or stepped down.
async fn wait_for_leader(
    fleet: &mut HostProcesses,
    seen: &Election,
    former: &[u32],
    since: Option<Instant>,
) -> Result<Term, Failure> {
    let clock = Clock::system();
    loop {
        let (number, report) = fleet.next().await?;
        if let Some(token) = report.strip_prefix("leads ") {
            let gap = since.map(|since| clock.now().duration_since(since));
            let token = token.parse()?;
            let known = seen.leader().await?.ok_or("the leader is not visible to others")?;
            println!("candidate {number} leads with token {token}; the others see: {}", known.holder.description);
            if *known.holder.description != format!("candidate {number}") || known.token.0 != token {
                return Err("the others see another leader".into());
            }
            return Ok(Term { leader: number, token, gap });
        }
        // Only deposed leaders may end.
        if report != "stands" && !former.contains(&number) {
            return Err(format!("candidate {number}: {report}").into());
        }
    }
}

async fn run_example(place: &EngineLocation) -> Result<bool, Failure> {
    println!("three candidates, each in its own process, on {place}");
    let locks = Locks::open(&place.url).await?;
    let seen = election(&locks);
    let mut fleet = HostProcesses::start(CANDIDATES, &place.url)?;
    let clock = Clock::system();

    let first = wait_for_leader(&mut fleet, &seen, &[], None).await?;
    println!("candidate {} is killed (SIGKILL)", first.leader);
    let since = clock.now();
    fleet.kill(first.leader)?;

    let second = wait_for_leader(&mut fleet, &seen, &[first.leader], Some(since)).await?;
    println!("candidate {} steps down", second.leader);
    let since = clock.now();
    fleet.send_command(second.leader, "resign")?;

    let third = wait_for_leader(&mut fleet, &seen, &[first.leader, second.leader], Some(since)).await?;
    fleet.close_inputs();
    while fleet.next().await? != (third.leader, hosts::ENDED_LINE.to_owned()) {}
    drop(fleet);
    locks.close().await?;

    println!("\nterm  leader             token  the one before was  taking over took");
    let terms = [("", &first), ("killed", &second), ("stepping down", &third)];
    for (index, (why, Term { leader, token, gap })) in terms.iter().enumerate() {
        let gap = gap.map(|gap| format!("{:.1} ms", gap.as_secs_f64() * 1e3)).unwrap_or_default();
        println!("{:>4}  {leader:>6}  {token:>16}  {why:<18}  {gap:>16}", index + 1);
    }
    let rise = first.token < second.token && second.token < third.token;
    println!("tokens rise with every leader: {rise}");
    Ok(rise)
}

async fn run() -> Result<bool, Failure> {
    let (place, host) = hosts::options(USAGE)?;
    match host {
        Some(number) => candidate(&place.url, number).await,
        None => run_example(&place).await,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run().await)
}
