//! The loads of leasehold's Redis bench on the Rust crates rslock and distributed-lock.
//!
//! `leasehold-bench-peers URL PEER LOAD SECONDS` prints one line of JSON; the bench starts it, once for each load, and counts what
//! the server was asked meanwhile.

mod loads;
mod peer;

use serde_json::Value;

use peer::{DistributedLock, Peer, Rslock};

/// Whatever went wrong, on any thread.
pub(crate) type Oops = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Oops> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, peer, load, seconds] = &arguments[..] else {
        return Err("wanted: URL PEER LOAD SECONDS".into());
    };
    let seconds: f64 = seconds.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(async {
        match peer.as_str() {
            "rslock" => run::<Rslock>(url, load, seconds).await,
            "distributed-lock" => run::<DistributedLock>(url, load, seconds).await,
            _ => Err(format!("{peer} is not known").into()),
        }
    })?;
    println!("{figures}");
    Ok(())
}

async fn run<P: Peer>(url: &str, load: &str, seconds: f64) -> Result<Value, Oops> {
    if matches!(load, "turns" | "handover")
        && let Some(no) = loads::cannot_wait::<P>(url).await?
    {
        return Ok(no);
    }
    match load {
        "one" => loads::one::<P>(url, seconds).await,
        "many" => loads::many::<P>(url, seconds).await,
        "turns" => loads::turns::<P>(url, seconds).await,
        "handover" => loads::handover::<P>(url, seconds).await,
        _ => Err(format!("{load} is no load").into()),
    }
}
