//! One task acquires and releases an uncontended lock over a network: round trips count, and the
//! machine's cores do not.
//!
//! A proxy before each server delays every message. The figures compare the number of round trips:
//! two for a lock on one server and for a lock on a majority; three with a second round.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use leasehold_testbed::Proxy;

use super::cycle::run_cycle;
use super::nodes::BenchNodes;
use crate::redis::baseline::p50;
use crate::redis::{BoxError, TTL};
use crate::report::{Comparison, Report};

const ROUNDS: u32 = 7;
/// The delay of each message, one way; the timer adds up to a millisecond.
const ONE_WAY_DELAY: Duration = Duration::from_millis(1);

struct LockVariant {
    locks: Locks,
    mutex: Mutex,
    p50: Vec<Duration>,
}

impl LockVariant {
    async fn open(url: &str) -> leasehold::Result<Self> {
        let locks = Locks::builder().ttl(TTL).open(url).await?;
        let mutex = locks.mutex("far");
        Ok(Self { locks, mutex, p50: Vec::new() })
    }
}

/// One task acquires and releases one lock while every message is delayed.
pub(crate) async fn bench_delayed(report: &mut Report, nodes: &BenchNodes) -> Result<(), BoxError> {
    let mut proxies = Vec::new();
    for server in nodes.servers.servers() {
        let proxy = Proxy::start(server.addr()).await?;
        proxy.delay(ONE_WAY_DELAY);
        proxies.push(proxy);
    }
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let all = format!("redlock://{}", addresses.join(","));
    let mut ways = [
        LockVariant::open(&format!("redis://{}", addresses[0])).await?,
        LockVariant::open(&all).await?,
        LockVariant::open(&format!("{all}?second-round=always")).await?,
    ];
    let count = 300 / nodes.scale;
    for round in 0..=ROUNDS {
        for way in &mut ways {
            let taken = p50(count, async || run_cycle(&way.mutex).await).await?;
            if round > 0 {
                way.p50.push(taken);
            }
        }
    }
    let [mut single, mut needed, mut always] = ways;
    for (what, way) in [
        ("redlock: messages delayed by 1 ms, p50", &mut needed),
        ("redlock: the same, second-round=always", &mut always),
    ] {
        let (floor_is, floor) = ("redis:// on one of the nodes", &mut single.p50);
        report.add_comparison(Comparison {
            name: what,
            baseline_name: floor_is,
            leasehold: &mut way.p50,
            baseline: floor,
            max_ratio: f64::INFINITY,
        });
    }
    for way in [single, needed, always] {
        way.locks.close().await?;
    }
    Ok(())
}
