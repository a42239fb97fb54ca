//! Counts the clients that a release notifies while many wait.
//!
//! One release at a time: before each, all clients are back in the queue, and no messages are in
//! transit. All unrequested packets of the server are then events of this release, and a client
//! that receives one is woken. A leasehold client watches its own node while it waits, so the
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

use super::contention::{AcquiredLock, ContendingClient, ContendingClients, LockKind, measure_contention};
use super::server::{BenchServer, Traffic};
use crate::baseline::monotonic_now;
use crate::redis::BoxError;
use crate::report::Report;

/// How many clients wait while another one holds.
const WAITER_COUNTS: [usize; 3] = [8, 64, 256];
/// The metrics of triggered watches, by kind.
const WATCH_METRICS: [&str; 4] = [
    "zk_sum_node_created_watch_count",
    "zk_sum_node_deleted_watch_count",
    "zk_sum_node_changed_watch_count",
    "zk_sum_node_children_watch_count",
];
/// After this time without an event, no message counts as being in transit.
const QUIET_TIME: Duration = Duration::from_millis(10);
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The totals of all measured releases.
#[derive(Default)]
struct NotificationCounts {
    /// The number of events, by the server's count of packets.
    events: i64,
    /// The number of events, by the server's count of triggered watches.
    triggered_watches: u64,
    /// The notified clients, without the releasing one.
    notified_clients: u64,
    /// How often a waiter woke up, by the clients' own count.
    wake_ups: u64,
    requests: u64,
}

/// Waits until this many clients wait, and no event is in transit.
async fn wait_until_quiet(
    bench: &BenchServer,
    clients: &ContendingClients,
    waiting: usize,
) -> Result<Traffic, BoxError> {
    let (end, empty) = (monotonic_now() + TIME_LIMIT, Traffic::default());
    let mut last = Vec::new();
    while monotonic_now() < end {
        let traffic = bench.traffic().await?;
        let counts: Vec<i64> =
            clients.sessions.iter().map(|one| traffic.packets_since(one, &empty).event_count()).collect();
        if counts == last && clients.waiter_count().await? == waiting {
            return Ok(traffic);
        }
        last = counts;
        tokio::time::sleep(QUIET_TIME).await;
    }
    Err(format!("fewer than {waiting} idle waiters after {TIME_LIMIT:?}").into())
}

type AcquireResult = (usize, Result<AcquiredLock, BoxError>);

fn spawn_acquire(
    tasks: &mut JoinSet<()>,
    index: usize,
    client: &ContendingClient,
    sender: &UnboundedSender<AcquireResult>,
) {
    let (one, sender) = (client.clone(), sender.clone());
    tasks.spawn(async move {
        let taken = one.acquire().await;
        // The receiver is gone when the measurement is complete.
        let _ = sender.send((index, taken));
    });
}

/// Counts what `releases` releases cause, one at a time, while `waiters` clients wait.
async fn measure_releases(
    bench: &BenchServer,
    kind: LockKind,
    waiters: usize,
    releases: u32,
) -> Result<NotificationCounts, BoxError> {
    let clients = ContendingClients::open(bench, kind, waiters + 1).await?;
    let (sender, mut receiver) = unbounded_channel();
    let mut tasks = JoinSet::new();
    for (index, one) in clients.clients.iter().enumerate() {
        spawn_acquire(&mut tasks, index, one, &sender);
    }
    let (mut holder, held) = receiver.recv().await.ok_or("no client acquired it")?;
    let mut held = held?;
    let mut before = wait_until_quiet(bench, &clients, waiters).await?;
    let mut sum = NotificationCounts::default();
    // The first holder has not waited: the first release differs from all others, and does not
    // count.
    for release in 0..=releases {
        let watches = bench.sum_metrics(&WATCH_METRICS).await?;
        let woken = clients.counts.wake_ups.load(Ordering::Relaxed);
        held.release().await?;
        let (next, taken) = receiver.recv().await.ok_or("no client acquired it")?;
        held = taken?;
        let after = wait_until_quiet(bench, &clients, waiters - 1).await?;
        let watches = bench.sum_metrics(&WATCH_METRICS).await? - watches;
        let woken = clients.counts.wake_ups.load(Ordering::Relaxed) - woken;
        spawn_acquire(&mut tasks, holder, &clients.clients[holder], &sender);
        let settled = wait_until_quiet(bench, &clients, waiters).await?;
        if release > 0 {
            for (index, session) in clients.sessions.iter().enumerate() {
                let events = after.packets_since(session, &before).event_count();
                sum.events += events;
                sum.notified_clients += u64::from(events > 0 && index != holder);
                if events > 0 || index == holder {
                    sum.requests += settled.packets_since(session, &before).request_count();
                }
            }
            sum.triggered_watches += watches;
            sum.wake_ups += woken;
        }
        (holder, before) = (next, settled);
    }
    tasks.shutdown().await;
    held.release().await?;
    clients.close().await?;
    Ok(sum)
}

/// Compares leasehold with the simple lock, whose waiters all watch one node.
pub(crate) async fn bench_herd(report: &mut Report, bench: &BenchServer) -> Result<(), BoxError> {
    let quick = bench.scale > 1;
    let (releases, time) = (if quick { 5 } else { 30 }, Duration::from_millis(if quick { 500 } else { 3_000 }));
    let head = ["events", "to the releaser", "watches", "woken", "by own count", "requests", "hand-offs/s"];
    let row = |name: &str, cells: &[String]| {
        cells.iter().fold(format!("{name:<44}"), |row, cell| format!("{row} {cell:>12}"))
    };
    let mut lines = vec![row("zookeeper: for each release", &head.map(str::to_owned))];
    for waiters in WAITER_COUNTS {
        for (kind, name) in [(LockKind::Leasehold, "leasehold"), (LockKind::Simple, "one node that all watch")] {
            let counts = measure_releases(bench, kind, waiters, releases).await?;
            let rate = measure_contention(bench, kind, waiters + 1, time).await?.hand_offs_per_second;
            let each = |sum: u64| sum as f64 / f64::from(releases);
            let (events, watches, woken) = (
                counts.events as f64 / f64::from(releases),
                each(counts.triggered_watches),
                each(counts.notified_clients),
            );
            let (own, requests) = ((kind == LockKind::Simple).then(|| each(counts.wake_ups)), each(counts.requests));
            let mut cells = [events, events - woken, watches, woken].map(|value| format!("{value:.2}")).to_vec();
            cells.push(own.map_or_else(|| "-".to_owned(), |own| format!("{own:.2}")));
            cells.extend([format!("{requests:.2}"), format!("{rate:.0}")]);
            lines.push(row(&format!("{waiters} waiters, {name}"), &cells));
            report.add_json(json!({
                "what": "zookeeper: release while others wait", "lock": name, "waiters": waiters, "events": events,
                "events_to_who_gave_back": events - woken, "watches_set_off": watches, "woken": woken,
                "woke_up_by_own_count": own, "requests": requests, "releases": releases, "hand_offs_per_second": rate,
            }));
            if kind == LockKind::Leasehold {
                let what = format!("zookeeper: release while {waiters} wait");
                report.add_figure(&what, woken, "others woken", 1.0);
            }
        }
    }
    for line in lines {
        report.print_line(&line);
    }
    Ok(())
}
