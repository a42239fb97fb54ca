//! Several independent servers, as Redlock needs.

use super::Redis;
use crate::{Result, Server};

/// Redis servers that know nothing of each other.
#[derive(Debug)]
pub struct IndependentServers {
    servers: Vec<Server>,
}

impl IndependentServers {
    /// Starts `count` servers without persistence.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(count: usize) -> Result<Self> {
        Self::start_with(count, &Redis::new()).await
    }

    /// Starts `count` servers with the same settings.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start_with(count: usize, template: &Redis) -> Result<Self> {
        let starting = (0..count).map(|_| template.clone().start());
        let servers = futures_util::future::try_join_all(starting).await?;
        Ok(Self { servers })
    }

    /// The `redlock:` URL of all servers, without options.
    pub fn url(&self) -> String {
        let parts: Vec<_> = self.servers.iter().map(|server| server.url().trim_end_matches('/').to_owned()).collect();
        format!("redlock://{}", parts.join(","))
    }

    /// The server with this number, counted from 0.
    pub fn server(&self, at: usize) -> &Server {
        &self.servers[at]
    }

    /// The server with this number, counted from 0: to kill, pause or restart it.
    pub fn server_mut(&mut self, at: usize) -> &mut Server {
        &mut self.servers[at]
    }

    /// All servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }
}
