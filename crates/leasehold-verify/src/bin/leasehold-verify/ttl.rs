//! Finds a TTL that the user's engine accepts, before the run starts. Servers may have a minimum,
//! such as ZooKeeper's shortest session of 4 s.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_command::exit::Failure;
use leasehold_verify::runner::{EngineTarget, REMOTE_TTL};

/// The name of the lock that is acquired to try a TTL.
const PROBE_LOCK: &str = "leasehold-verify-ttl";

/// TTLs are doubled up to this one until the engine accepts one.
const MAX_TTL: Duration = Duration::from_secs(120);

/// The TTL of the run: the requested one or, if the default is too short for the engine, a longer
/// one that it accepts. `None`: the default.
///
/// # Errors
/// A usage error if the engine refuses the requested TTL, or every TTL that was tried.
pub(crate) async fn accepted_ttl(
    target: &EngineTarget,
    requested: Option<Duration>,
) -> Result<Option<Duration>, Failure> {
    let EngineTarget::Remote(url) = target else { return Ok(requested) };
    // An engine that cannot be opened is reported when the run starts.
    let Ok(locks) = Locks::open(url).await else { return Ok(requested) };
    let mut ttl = requested.unwrap_or(REMOTE_TTL);
    let result = loop {
        match locks.mutex(PROBE_LOCK).ttl(ttl).try_lock().await {
            Err(error) if error.kind() == ErrorKind::InvalidOption => {
                let longer = ttl * 2;
                if requested.is_some() || longer > MAX_TTL {
                    break Err(Failure::from(error));
                }
                ttl = longer;
            }
            // Granted, held by another, or any other error: the TTL was not refused.
            Ok(Some(guard)) => {
                let _ = guard.release().await;
                break Ok(());
            }
            _ => break Ok(()),
        }
    };
    let _ = locks.close().await;
    result.map(|()| requested.or((ttl != REMOTE_TTL).then_some(ttl)))
}
