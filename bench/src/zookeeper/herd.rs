//! Counts the clients that a release notifies while many wait.
//!
//! One release at a time: before each, all clients are back in the queue, and no messages are under
//! way. What the server then sends unrequested to any client are events of this release, and a
//! client that gets one is woken. A leasehold client watches its own node while it waits, so the
//! releasing client also gets an event. This event counts, but the releasing client does not count
//! as woken.
//!
//! Requests are those of the releasing client and of the notified clients, until the former is in
//! the queue again. All other clients are uninvolved, and only send pings.
//!
//! Then the same at full speed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::contest::{Clients, Held, Kind, One, stretch};
use super::server::{Bench, Traffic};
use crate::floor::now;
use crate::redis::Oops;
use crate::report::Report;

/// How many clients wait while another one holds.
const WAITERS: [usize; 3] = [8, 64, 256];
/// The metrics of triggered watches, by kind.
const WATCHES: [&str; 4] = [
    "zk_sum_node_created_watch_count",
    "zk_sum_node_deleted_watch_count",
    "zk_sum_node_changed_watch_count",
    "zk_sum_node_children_watch_count",
];
/// The server is quiet after this time without an event.
const QUIET: Duration = Duration::from_millis(10);
const BOUND: Duration = Duration::from_secs(20);

/// The totals of releases, one at a time.
#[derive(Default)]
struct Told {
    /// The events, by the server's count of packets.
    events: i64,
    /// The same by its count of triggered watches.
    watches: u64,
    /// The notified clients, without the releasing one.
    woken: u64,
    /// How often a waiter woke up, by the clients' own count.
    woke_up: u64,
    requests: u64,
}

/// Waits until this many clients wait, and no event is under way.
async fn quiet(bench: &Bench, clients: &Clients, waiting: usize) -> Result<Traffic, Oops> {
    let (end, nothing) = (now() + BOUND, Traffic::default());
    let mut last = Vec::new();
    while now() < end {
        let traffic = bench.traffic().await?;
        let told: Vec<i64> = clients.sessions.iter().map(|one| traffic.of(one, &nothing).events()).collect();
        if told == last && clients.waiting().await? == waiting {
            return Ok(traffic);
        }
        last = told;
        tokio::time::sleep(QUIET).await;
    }
    Err(format!("after {BOUND:?} there are still not {waiting} who wait in peace").into())
}

type Taken = (usize, Result<Held, Oops>);

fn want(tasks: &mut JoinSet<()>, index: usize, one: &One, tell: &UnboundedSender<Taken>) {
    let (one, tell) = (one.clone(), tell.clone());
    tasks.spawn(async move {
        let taken = one.take().await;
        // The receiver is gone when the measurement is complete.
        let _ = tell.send((index, taken));
    });
}

/// One release at a time.
async fn told(bench: &Bench, kind: Kind, waiters: usize, releases: u32) -> Result<Told, Oops> {
    let clients = Clients::open(bench, kind, waiters + 1).await?;
    let (tell, mut hear) = unbounded_channel();
    let mut tasks = JoinSet::new();
    for (index, one) in clients.all.iter().enumerate() {
        want(&mut tasks, index, one, &tell);
    }
    let (mut holder, held) = hear.recv().await.ok_or("nobody took it")?;
    let mut held = held?;
    let mut before = quiet(bench, &clients, waiters).await?;
    let mut sum = Told::default();
    // The first holder has not waited: the first release differs from all others, and does not
    // count.
    for release in 0..=releases {
        let watches = bench.sum(&WATCHES).await?;
        let woken = clients.counts.woken.load(Ordering::Relaxed);
        held.give().await?;
        let (next, taken) = hear.recv().await.ok_or("nobody took it")?;
        held = taken?;
        let after = quiet(bench, &clients, waiters - 1).await?;
        let watches = bench.sum(&WATCHES).await? - watches;
        let woken = clients.counts.woken.load(Ordering::Relaxed) - woken;
        want(&mut tasks, holder, &clients.all[holder], &tell);
        let settled = quiet(bench, &clients, waiters).await?;
        if release > 0 {
            for (index, session) in clients.sessions.iter().enumerate() {
                let told = after.of(session, &before).events();
                sum.events += told;
                sum.woken += u64::from(told > 0 && index != holder);
                if told > 0 || index == holder {
                    sum.requests += settled.of(session, &before).requests();
                }
            }
            sum.watches += watches;
            sum.woke_up += woken;
        }
        (holder, before) = (next, settled);
    }
    tasks.shutdown().await;
    held.give().await?;
    clients.close().await?;
    Ok(sum)
}

/// Leasehold beside the simple lock.
pub(crate) async fn herd(report: &mut Report, bench: &Bench) -> Result<(), Oops> {
    let quick = bench.scale > 1;
    let (releases, time) = (if quick { 5 } else { 30 }, Duration::from_millis(if quick { 500 } else { 3_000 }));
    let head = ["events", "to the giver", "watches", "woken", "by own count", "requests", "hand-offs/s"];
    let row = |name: &str, cells: &[String]| {
        cells.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>12}"))
    };
    let mut lines = vec![row("zookeeper: for each release", &head.map(str::to_owned))];
    for waiters in WAITERS {
        for (kind, name) in [(Kind::Ours, "leasehold"), (Kind::Simple, "one node that all watch")] {
            let told = told(bench, kind, waiters, releases).await?;
            let rate = stretch(bench, kind, waiters + 1, time).await?.hand_offs_per_second;
            let each = |sum: u64| sum as f64 / f64::from(releases);
            let (events, watches, woken) =
                (told.events as f64 / f64::from(releases), each(told.watches), each(told.woken));
            let (own, requests) = ((kind == Kind::Simple).then(|| each(told.woke_up)), each(told.requests));
            let mut cells = [events, events - woken, watches, woken].map(|value| format!("{value:.2}")).to_vec();
            cells.push(own.map_or_else(|| "-".to_owned(), |own| format!("{own:.2}")));
            cells.extend([format!("{requests:.2}"), format!("{rate:.0}")]);
            lines.push(row(&format!("{waiters} waiters, {name}"), &cells));
            report.add(json!({
                "what": "zookeeper: given back while others wait", "lock": name, "waiters": waiters, "events": events,
                "events_to_who_gave_back": events - woken, "watches_set_off": watches, "woken": woken,
                "woke_up_by_own_count": own, "requests": requests, "releases": releases, "hand_offs_per_second": rate,
            }));
            if kind == Kind::Ours {
                let what = format!("zookeeper: given back while {waiters} wait");
                report.figure(&what, woken, "others woken", 1.0);
            }
        }
    }
    for line in lines {
        report.say(&line);
    }
    Ok(())
}
