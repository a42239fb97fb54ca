//! The user's own servers: which faults are allowed there, and their addresses.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::engine_url::EngineUrl;
use super::local_engine::{FaultDomain, LocalEngine, fault_domain};
use super::{DeploymentOptions, RunError};
use crate::history::FaultKind;

/// How long the resolution of a name, or the first connection to a server, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of the servers that get a proxy; none if no network fault may happen. Fails if one
/// of the faults cannot be caused at this URL.
pub(super) async fn resolve_servers(
    address: &EngineUrl,
    options: &DeploymentOptions,
) -> Result<Vec<SocketAddr>, RunError> {
    if let Some(fault) = options.faults_in(FaultDomain::Server).next() {
        let local = local_option(&address.scheme);
        return Err(RunError::usage(format!(
            "{fault} is a server fault, and the servers of this URL were not started here. Use {local} instead of the URL"
        )));
    }
    let Some(fault) = options.faults_in(FaultDomain::Network).next() else { return Ok(Vec::new()) };
    if let Some(why) = address.proxy_obstacle() {
        return Err(RunError::usage(format!("{fault} cannot be caused at this URL: {}: {why}", address.scheme)));
    }
    let mut found = Vec::new();
    for (host, port) in &address.hosts {
        found.push(resolve(host, *port).await?);
    }
    Ok(found)
}

/// All faults that can be caused with the user's own servers: those of the workers and, where
/// proxies in front of the servers are possible, those of the network.
///
/// # Errors
/// If it is not a URL.
pub fn supported_faults(url: &str) -> Result<Vec<FaultKind>, RunError> {
    let can_proxy = EngineUrl::parse(url)?.proxy_obstacle().is_none();
    let can = |fault: &FaultKind| match fault_domain(*fault) {
        FaultDomain::Worker => true,
        FaultDomain::Network => can_proxy,
        FaultDomain::Server => false,
    };
    Ok(FaultKind::ALL.iter().copied().filter(can).collect())
}

/// The command-line option that starts servers of this URL scheme, for an error message.
fn local_option(scheme: &str) -> String {
    let kind = match scheme {
        "rediss" => "redis",
        "redis+sentinel" => "redis-sentinel",
        "redis+cluster" => "redis-cluster",
        other => other,
    };
    kind.parse::<LocalEngine>().map_or_else(|_| "`--local`".to_owned(), |local| format!("`--local {local}`"))
}

/// Resolves a host's name to its first address that accepts a connection.
async fn resolve(host: &str, port: u16) -> Result<SocketAddr, RunError> {
    let failed = |why: String| RunError::new(format!("{host}:{port} cannot be reached: {why}"));
    let addrs = timeout(CONNECT_TIMEOUT, lookup_host((host, port)))
        .await
        .map_err(|_| failed("its name could not be resolved".to_owned()))?;
    let mut why = "its name has no address".to_owned();
    for addr in addrs.map_err(|error| failed(error.to_string()))? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await {
            Ok(Ok(_)) => return Ok(addr),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = "it did not respond".to_owned(),
        }
    }
    Err(failed(why))
}
