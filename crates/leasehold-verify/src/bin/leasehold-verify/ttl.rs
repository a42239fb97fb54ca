//! Finds a TTL that the engine under test accepts, before the run starts: servers bound it
//! (ZooKeeper's shortest session is 4 s by default).

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_command::exit::Failure;
use leasehold_verify::runner::{EngineTarget, REMOTE_TTL};

/// The lock that the probe acquires.
const PROBE_LOCK: &str = "leasehold-verify-ttl";

/// The longest TTL to try.
const MAX_TTL: Duration = Duration::from_secs(120);

/// The TTL of the run: the user's, or, if the default is too short, one that the engine accepts.
///
/// # Errors
/// `usage` if the engine refuses the user's TTL.
pub(crate) async fn accepted_ttl(
    target: &EngineTarget,
    requested: Option<Duration>,
) -> Result<Option<Duration>, Failure> {
    let EngineTarget::Remote(url) = target else { return Ok(requested) };
    // An engine that cannot be opened is reported when the run starts.
    let Ok(locks) = Locks::open(url).await else { return Ok(requested) };
    let mut ttl = requested.unwrap_or(REMOTE_TTL);
    let fits = loop {
        match locks.mutex(PROBE_LOCK).ttl(ttl).try_lock().await {
            Err(error) if error.kind() == ErrorKind::InvalidOption => {
                let longer = ttl * 2;
                if requested.is_some() || longer > MAX_TTL {
                    break Err(Failure::from(error));
                }
                ttl = longer;
            }
            // Held, or any other outcome: the TTL is not refused.
            Ok(Some(guard)) => {
                let _ = guard.release().await;
                break Ok(());
            }
            _ => break Ok(()),
        }
    };
    let _ = locks.close().await;
    fits.map(|()| requested.or((ttl != REMOTE_TTL).then_some(ttl)))
}
