//! Runs a lock's requests once, with a name that no client uses. All nodes are removed.

use std::time::{Duration, UNIX_EPOCH};

use leasehold_zookeeper::{Client, CreateMode, Error as Cause, MultiWriteResult};

use super::facts::{ClockOffset, Fact, ProbeResult, RoundTrips, UnknownReason};
use leasehold::clock::Clock;
use leasehold::{ClaimId, Holder, Mode};
use leasehold_internals::zookeeper::config::Config;
use leasehold_internals::zookeeper::{error, wire};

/// The timeout of a small request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How many reads or writes to measure.
const SAMPLES: usize = 10;
/// How long all samples may take in total.
const MAX_DURATION: Duration = Duration::from_secs(3);

/// Waits for a reply, with a timeout.
pub(super) async fn with_timeout<T>(request: impl Future<Output = Result<T, Cause>>) -> Fact<T> {
    match Clock::system().timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(UnknownReason::RequestFailed),
        Err(_) => Err(UnknownReason::Unreachable(format!("no answer within {REQUEST_TIMEOUT:?}"))),
    }
}

/// A lock with a name that no other client uses, which this examination creates and deletes.
#[derive(Debug)]
pub(super) struct Probe {
    /// The path of the lock's folder.
    pub(super) folder: String,
    /// The path of its only claim.
    pub(super) claim: String,
    /// The transaction that created it.
    pub(super) czxid: i64,
    /// The content of the claim's node.
    holder_data: String,
    /// Parents that were created for it, the outermost first.
    created_parents: Vec<String>,
}

impl Probe {
    /// Creates the lock as the engine does: its folder and a claim in it, in one transaction.
    pub(super) async fn create(client: &Client, config: &Config) -> Fact<Self> {
        let made = match create_parents(client, config).await {
            Ok(made) => made,
            Err((made, reason)) => {
                remove_nodes(client, &made).await;
                return Err(reason);
            }
        };
        let name = format!("leasehold-doctor-{:032x}", leasehold_internals::random::random_bits());
        let folder = format!("{}/{}", config.base, wire::escape_name(&name));
        let record = wire::holder_data(&Holder::this_process().with_description("leasehold doctor"), Duration::ZERO);
        match create_claim(client, config, &folder, &name, &record).await {
            Ok((claim, czxid)) => Ok(Self { folder, claim, czxid, holder_data: record, created_parents: made }),
            Err(reason) => {
                remove_nodes(client, &made).await;
                Err(reason)
            }
        }
    }

    /// Whether the node under which all locks are was created for the probe.
    pub(super) fn has_created_base(&self) -> bool {
        !self.created_parents.is_empty()
    }

    /// Writes to the claim a few times; measures the durations, and the leader's time.
    pub(super) async fn measure_writes(&self, client: &Client) -> Fact<ProbeResult> {
        let clock = Clock::system();
        let start = clock.now();
        let mut times = Vec::with_capacity(SAMPLES);
        let mut best: Option<ClockOffset> = None;
        while times.len() < SAMPLES && (times.len() < 3 || clock.now().duration_since(start) < MAX_DURATION) {
            let (local, before) = (wall_clock_micros(), clock.now());
            let stat = with_timeout(client.set_data(&self.claim, self.holder_data.as_bytes(), None)).await?;
            let took = clock.now().duration_since(before);
            times.push(took);
            let gap = compute_clock_offset(stat.mtime, local, took);
            if best.is_none_or(|best| gap.error < best.error) {
                best = Some(gap);
            }
        }
        let writes =
            RoundTrips::from_samples(times).ok_or_else(|| UnknownReason::not_reported("the duration of a write"))?;
        let clock = best.ok_or_else(|| UnknownReason::not_reported("the time"))?;
        Ok(ProbeResult { writes, clock })
    }

    /// Deletes the lock, and the parents that were created for it unless another client uses them
    /// by now.
    pub(super) async fn remove(self, client: &Client) {
        remove_nodes(client, &[self.folder, self.claim]).await;
        remove_nodes(client, &self.created_parents).await;
    }
}

/// Measures the durations of a few reads.
pub(super) async fn measure_reads(client: &Client) -> Fact<RoundTrips> {
    let clock = Clock::system();
    let start = clock.now();
    let mut times = Vec::with_capacity(SAMPLES);
    while times.len() < SAMPLES && (times.len() < 3 || clock.now().duration_since(start) < MAX_DURATION) {
        let before = clock.now();
        with_timeout(client.check_stat("/")).await?;
        times.push(clock.now().duration_since(before));
    }
    RoundTrips::from_samples(times).ok_or_else(|| UnknownReason::not_reported("the duration of a read"))
}

/// The server's time `remote` (in ms) compared with `local` (in µs) at the start of a request that
/// took `took`. The server read its clock at some time during the round trip.
fn compute_clock_offset(remote: i64, local: i64, took: Duration) -> ClockOffset {
    let half = took / 2;
    let middle = local.saturating_add(i64::try_from(half.as_micros()).unwrap_or(i64::MAX)) / 1000;
    ClockOffset { ahead: remote.saturating_sub(middle), error: half + Duration::from_millis(1) }
}

/// This host's wall clock, in microseconds since 1970. No lock relies on it; it is only compared.
#[allow(clippy::disallowed_methods, reason = "it is what the leader's clock is compared with")]
fn wall_clock_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Creates the node under which all locks are, and its parents. Returns the paths that did not
/// exist; the error has those that were created before it.
async fn create_parents(client: &Client, config: &Config) -> Result<Vec<String>, (Vec<String>, UnknownReason)> {
    let mut made = Vec::new();
    let options = CreateMode::Persistent.with_acls(config.access.acls());
    let ends = config.base.match_indices('/').skip(1).map(|(at, _)| at).chain([config.base.len()]);
    for path in ends.map(|end| &config.base[..end]).filter(|path| !path.is_empty()) {
        match with_timeout(client.check_stat(path)).await {
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(reason) => return Err((made, reason)),
        }
        match with_timeout(client.create(path, b"", &options)).await {
            Ok(_) => made.push(path.to_owned()),
            Err(UnknownReason::RequestFailed(Cause::NodeExists)) => {}
            Err(reason) => return Err((made, reason)),
        }
    }
    Ok(made)
}

/// Creates the lock's folder and a claim in it; returns the claim's path, and the transaction's id.
async fn create_claim(client: &Client, config: &Config, folder: &str, name: &str, record: &str) -> Fact<(String, i64)> {
    let acls = config.access.acls();
    let prefix = wire::node_prefix(ClaimId::random(), Mode::Exclusive, None, None);
    let mut all = client.new_multi_writer();
    let added = all
        .add_create(folder, name.as_bytes(), &CreateMode::Container.with_acls(acls))
        .and_then(|()| {
            let ephemeral = CreateMode::EphemeralSequential.with_acls(acls);
            all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral)
        })
        .and_then(|()| all.add_set_data(folder, name.as_bytes(), None));
    added.map_err(UnknownReason::RequestFailed)?;
    let done = with_timeout(async { all.commit().await.map_err(error::into_cause) }).await?;
    match &done[..] {
        [_, MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] => {
            Ok(((*path).to_owned(), stat.mzxid))
        }
        _ => Err(UnknownReason::not_reported("the created nodes")),
    }
}

/// Deletes these nodes, the last first. A node that another client uses by now stays.
async fn remove_nodes(client: &Client, paths: &[String]) {
    for path in paths.iter().rev() {
        if let Err(reason) = with_timeout(client.delete(path, None)).await {
            tracing::debug!(path, %reason, "a probe's node was not deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_offset_is_taken_at_the_middle_of_the_round_trip() {
        let gap = |remote, local, took| super::compute_clock_offset(remote, local, Duration::from_millis(took));
        assert_eq!(gap(1_005, 1_000_000, 10), ClockOffset { ahead: 0, error: Duration::from_millis(6) });
        assert_eq!(gap(61_001, 1_000_000, 2).ahead, 60_000);
        assert_eq!(gap(1, 60_000_000, 2).ahead, -60_000);
    }
}
