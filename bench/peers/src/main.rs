//! The loads of leasehold's Redis bench, and one of its SQL bench, on the Rust crates rslock and
//! distributed-lock.
//!
//! `leasehold-bench-peers URL PEER LOAD SECONDS` runs one load and prints one line of JSON. The
//! bench starts it once for each load, and counts the requests that the server receives meanwhile.
//! `leasehold-bench-peers URL,URL,… PEER cycles` is for the Redlock bench: for each line on
//! standard input, a number, it acquires and releases one lock that many times, and prints one line
//! of JSON.

mod loads;
mod peer;

use serde_json::Value;

use peer::{DistributedLock, DistributedLockMySql, DistributedLockPostgres, Peer, Rslock};

/// An error of any peer or load.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, peer, load, seconds) = match &arguments[..] {
        [url, peer, load] if load == "cycles" => (url, peer, load, 0.0),
        [url, peer, load, seconds] => (url, peer, load, seconds.parse()?),
        _ => return Err("usage: leasehold-bench-peers URL PEER LOAD SECONDS, or URL,URL,… PEER cycles".into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(async {
        match peer.as_str() {
            "rslock" => run::<Rslock>(url, load, seconds).await,
            "distributed-lock" => run::<DistributedLock>(url, load, seconds).await,
            "distributed-lock-postgres" => run::<DistributedLockPostgres>(url, load, seconds).await,
            "distributed-lock-mysql" => run::<DistributedLockMySql>(url, load, seconds).await,
            _ => Err(format!("there is no peer {peer:?}").into()),
        }
    })?;
    if let Some(figures) = figures {
        println!("{figures}");
    }
    Ok(())
}

/// Runs one load on a peer. Returns its figures; `None` for `cycles`, which prints its own.
async fn run<P: Peer>(url: &str, load: &str, seconds: f64) -> Result<Option<Value>, BoxError> {
    if load == "cycles" {
        return loads::cycles::<P>(url).await.map(|()| None);
    }

    if matches!(load, "turns" | "handover")
        && let Some(refusal) = loads::refusal_to_wait::<P>(url).await?
    {
        return Ok(Some(refusal));
    }
    match load {
        "one" => loads::one::<P>(url, seconds).await,
        "many" => loads::many::<P>(url, seconds).await,
        "turns" => loads::turns::<P>(url, seconds).await,
        "handover" => loads::handover::<P>(url, seconds).await,
        _ => Err(format!("there is no load {load:?}").into()),
    }
    .map(Some)
}
