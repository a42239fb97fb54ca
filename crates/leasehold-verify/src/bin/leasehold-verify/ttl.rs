//! Finds a TTL that the engine under test accepts, before the run starts: servers bound it
//! (ZooKeeper's shortest session is 4 s by default).

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use leasehold_command::exit::Failure;
use leasehold_verify::conduct::{REMOTE_TTL, Target};

/// The lock that the probe acquires.
const NAME: &str = "leasehold-verify-ttl";

/// The longest TTL to try.
const LONGEST: Duration = Duration::from_secs(120);

/// The TTL of the run: the user's, or, if the default is too short, one that the engine accepts.
///
/// # Errors
/// `usage` if the engine refuses the user's TTL.
pub(crate) async fn fitting(target: &Target, asked: Option<Duration>) -> Result<Option<Duration>, Failure> {
    let Target::Engine(url) = target else { return Ok(asked) };
    // An engine that cannot be opened is reported when the run starts.
    let Ok(locks) = Locks::open(url).await else { return Ok(asked) };
    let mut ttl = asked.unwrap_or(REMOTE_TTL);
    let fits = loop {
        match locks.mutex(NAME).ttl(ttl).try_lock().await {
            Err(error) if error.kind() == ErrorKind::InvalidOption => {
                let longer = ttl * 2;
                if asked.is_some() || longer > LONGEST {
                    break Err(Failure::from(error));
                }
                ttl = longer;
            }
            // Held, or any other outcome: it does not concern the TTL.
            Ok(Some(guard)) => {
                let _ = guard.release().await;
                break Ok(());
            }
            _ => break Ok(()),
        }
    };
    let _ = locks.close().await;
    fits.map(|()| asked.or((ttl != REMOTE_TTL).then_some(ttl)))
}
