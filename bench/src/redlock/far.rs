//! The same cycle over a network: round trips count, and the machine's cores do not.
//!
//! A proxy before each server delays every message. The figures compare the number of round trips:
//! two for a lock on one server and for a lock on a majority; three with a second round.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use leasehold_testbed::Proxy;

use super::cycle::ours;
use super::nodes::Nodes;
use crate::redis::floor::p50;
use crate::redis::{Oops, TTL};
use crate::report::{Line, Report};

const ROUNDS: u32 = 7;
/// The delay of each message, one way; the timer adds up to a millisecond.
const ONE_WAY: Duration = Duration::from_millis(1);

struct Way {
    locks: Locks,
    mutex: Mutex,
    p50: Vec<Duration>,
}

impl Way {
    async fn open(url: &str) -> leasehold::Result<Self> {
        let locks = Locks::builder().ttl(TTL).open(url).await?;
        let mutex = locks.mutex("far");
        Ok(Self { locks, mutex, p50: Vec::new() })
    }
}

/// One task, one lock, every message delayed.
pub(crate) async fn far(report: &mut Report, nodes: &Nodes) -> Result<(), Oops> {
    let mut proxies = Vec::new();
    for server in nodes.set.servers() {
        let proxy = Proxy::start(server.addr()).await?;
        proxy.delay(ONE_WAY);
        proxies.push(proxy);
    }
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let all = format!("redlock://{}", addresses.join(","));
    let mut ways = [
        Way::open(&format!("redis://{}", addresses[0])).await?,
        Way::open(&all).await?,
        Way::open(&format!("{all}?second-round=always")).await?,
    ];
    let count = 300 / nodes.scale;
    for round in 0..=ROUNDS {
        for way in &mut ways {
            let taken = p50(count, async || ours(&way.mutex).await).await?;
            if round > 0 {
                way.p50.push(taken);
            }
        }
    }
    let [mut single, mut needed, mut always] = ways;
    for (what, way) in [
        ("redlock: messages held back 1 ms, p50", &mut needed),
        ("redlock: the same, second-round=always", &mut always),
    ] {
        let (floor_is, floor) = ("redis:// on one of the nodes", &mut single.p50);
        report.compare(Line { what, floor_is, ours: &mut way.p50, floor, most: f64::INFINITY });
    }
    for way in [single, needed, always] {
        way.locks.close().await?;
    }
    Ok(())
}
