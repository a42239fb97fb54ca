//! The user's own deployment: the faults that are allowed there, and its servers' addresses.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::address::Address;
use super::local::{Local, Side, side};
use super::{Setup, Trouble};
use crate::history::FaultKind;

/// How long a server may take to accept a first connection.
const BOUND: Duration = Duration::from_secs(5);

/// The servers that get a proxy; none if the network is not disturbed.
pub(super) async fn servers(address: &Address, setup: &Setup) -> Result<Vec<SocketAddr>, Trouble> {
    if let Some(fault) = setup.of(Side::Server).next() {
        let local = local(&address.scheme);
        return Err(Trouble::usage(format!(
            "{fault} is done to servers, and those of this URL were not started here: only servers of our own are hurt. \
             Try {local} instead of the URL"
        )));
    }
    let Some(fault) = setup.of(Side::Network).next() else { return Ok(Vec::new()) };
    if let Some(why) = address.why_no_proxy() {
        return Err(Trouble::usage(format!("{fault} cannot be caused at this URL: {}: {why}", address.scheme)));
    }
    let mut found = Vec::new();
    for (host, port) in &address.hosts {
        found.push(resolve(host, *port).await?);
    }
    Ok(found)
}

/// All faults that can be caused from outside: those of the workers, and those of the connections
/// where a proxy can stand.
///
/// # Errors
/// If it is not a URL.
pub fn faults_at(url: &str) -> Result<Vec<FaultKind>, Trouble> {
    let disturbed = Address::read(url)?.why_no_proxy().is_none();
    let can = |fault: &FaultKind| match side(*fault) {
        Side::Worker => true,
        Side::Network => disturbed,
        Side::Server => false,
    };
    Ok(FaultKind::ALL.iter().copied().filter(can).collect())
}

/// The option that starts servers of that kind here.
fn local(scheme: &str) -> String {
    let kind = match scheme {
        "rediss" => "redis",
        "redis+sentinel" => "redis-sentinel",
        "redis+cluster" => "redis-cluster",
        other => other,
    };
    kind.parse::<Local>().map_or_else(|_| "`--local`".to_owned(), |local| format!("`--local {local}`"))
}

/// The first address of a name that accepts a connection.
async fn resolve(host: &str, port: u16) -> Result<SocketAddr, Trouble> {
    let failed = |why: String| Trouble::new(format!("{host}:{port} cannot be reached: {why}"));
    let addrs =
        timeout(BOUND, lookup_host((host, port))).await.map_err(|_| failed("its name is not answered".to_owned()))?;
    let mut why = "its name has no address".to_owned();
    for addr in addrs.map_err(|error| failed(error.to_string()))? {
        match timeout(BOUND, TcpStream::connect(addr)).await {
            Ok(Ok(_)) => return Ok(addr),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = "silence".to_owned(),
        }
    }
    Err(failed(why))
}
