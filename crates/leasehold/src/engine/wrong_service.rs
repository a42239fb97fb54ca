//! Finds out why a server does not answer: it is unreachable, or another service listens on its
//! port. Such a service, for example an HTTP server, may wait for the client to send more. Then
//! both sides wait until the client's timeout.

use std::time::Duration;

use futures_util::future::select_ok;
use tokio::net::TcpStream;

use super::EngineUrl;
use super::url::host_and_port;
use crate::clock::Clock;

/// How long to try to connect to any of the servers.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The database product that must answer at the hosts of an engine's URL.
pub(crate) struct Product {
    /// The product's name in messages.
    name: &'static str,
    /// The port of a host without one in the URL.
    default_port: u16,
}

impl Product {
    /// The product that the scheme names. `None` for schemes whose engines detect another service
    /// by themselves.
    pub(crate) fn from_url(url: &EngineUrl) -> Option<Self> {
        let (name, default_port) = match url.scheme.as_str() {
            "mysql" => ("MySQL or MariaDB", 3306),
            "postgres" => ("PostgreSQL", 5432),
            "zookeeper" => ("ZooKeeper", 2181),
            _ => return None,
        };
        Some(Self { name, default_port })
    }

    /// An addition to an error about a server that did not answer in time. It gives the cause and
    /// the remedy if one of the URL's hosts accepts connections; otherwise it is empty.
    pub(crate) async fn explain_timeout(&self, url: &EngineUrl, clock: &Clock) -> String {
        let hosts = url.hosts.iter().filter_map(|host| host_and_port(host, self.default_port, "host").ok());
        let connections: Vec<_> = hosts.map(|at| Box::pin(TcpStream::connect(at))).collect();
        if connections.is_empty() {
            return String::new();
        }
        match clock.timeout(CONNECT_TIMEOUT, select_ok(connections)).await {
            Ok(Ok(_)) => {
                format!(
                    ": it accepts connections, but does not answer as {} does; {}",
                    self.name,
                    wrong_service_hint(self.name)
                )
            }
            _ => String::new(),
        }
    }
}

/// What to check if a server accepts connections and does not answer as `product` does.
pub(super) fn wrong_service_hint(product: &str) -> String {
    format!("is it another service than {product}, or does it hang? Check host and port")
}
