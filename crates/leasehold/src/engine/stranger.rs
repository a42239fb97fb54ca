//! Distinguishes an unreachable server from another service on its port. Some services wait for the
//! client to send more, as HTTP servers do; then both sides wait.

use std::time::Duration;

use futures_util::future::select_ok;
use tokio::net::TcpStream;

use super::EngineUrl;
use super::url::host_and_port;
use crate::clock::Clock;

/// How long to wait for a connection to any of the servers.
const LOOK: Duration = Duration::from_millis(500);

/// The product that an engine's URL names.
pub(crate) struct Product {
    name: &'static str,
    port: u16,
}

impl Product {
    /// The product of these engines; `None` for other engines, which find out by themselves.
    pub(crate) fn of(url: &EngineUrl) -> Option<Self> {
        let (name, port) = match url.scheme.as_str() {
            "mysql" => ("MySQL or MariaDB", 3306),
            "postgres" => ("PostgreSQL", 5432),
            "zookeeper" => ("ZooKeeper", 2181),
            _ => return None,
        };
        Some(Self { name, port })
    }

    /// The cause and what to do, if one of the servers accepts connections; otherwise empty.
    pub(crate) async fn explain(&self, url: &EngineUrl, clock: &Clock) -> String {
        let hosts = url.hosts.iter().filter_map(|host| host_and_port(host, self.port, "host").ok());
        let connections: Vec<_> = hosts.map(|at| Box::pin(TcpStream::connect(at))).collect();
        if connections.is_empty() {
            return String::new();
        }
        match clock.timeout(LOOK, select_ok(connections)).await {
            Ok(Ok(_)) => {
                format!(": it accepts connections, but does not answer as {} does; {}", self.name, hint(self.name))
            }
            _ => String::new(),
        }
    }
}

/// What to do about a server that does not answer.
pub(super) fn hint(product: &str) -> String {
    format!("is it another service than {product}, or does it hang? Check host and port")
}
