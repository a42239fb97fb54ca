//! What a server is asked, as it is asked it.

use leasehold_testbed::redis::{Reply, RespClient};

use crate::redis_faults::fixture::Fixture;

/// What a server is asked, as it is asked it.
pub(crate) struct Monitor(RespClient);

/// One command.
#[derive(Debug)]
pub(crate) struct MonitoredCommand {
    /// Who asked: an address, or `lua`.
    pub(crate) source: String,
    pub(crate) command: String,
}

impl Monitor {
    pub(crate) async fn start(site: &Fixture) -> Self {
        let mut hand = site.raw_connection().await;
        assert_eq!(hand.command(&["MONITOR"]).await.expect("an answer"), Reply::Simple("OK".to_owned()));
        Self(hand)
    }

    /// What clients have asked since the last call, scripts and us left out.
    pub(crate) async fn client_commands(&mut self, site: &Fixture) -> Vec<String> {
        let mut asked = self.all_commands(site).await;
        asked.retain(|asked| asked.source != "lua");
        asked.into_iter().map(|asked| asked.command).collect()
    }

    pub(crate) async fn all_commands(&mut self, site: &Fixture) -> Vec<MonitoredCommand> {
        let mark = format!("mark-{:032x}", leasehold::ClaimId::random().bits());
        site.command_text(&["ECHO", &mark]).await;
        let mut seen = Vec::new();
        loop {
            let Reply::Simple(line) = self.0.reply().await.expect("a line") else { panic!("no line") };
            // 1700000000.123456 [0 127.0.0.1:5000] "evalsha" "…"
            let (_, rest) = line.split_once('[').expect("a client");
            let (who, rest) = rest.split_once("] \"").expect("a command");
            if rest.contains(&mark) {
                return seen;
            }
            let (_, by) = who.split_once(' ').expect("a database and an address");
            let command = rest.split('"').next().unwrap_or_default().to_lowercase();
            seen.push(MonitoredCommand { source: by.to_owned(), command });
        }
    }
}
