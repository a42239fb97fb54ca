//! The commands that a server receives, in order.

use leasehold_testbed::redis::{Reply, RespClient};

use crate::redis_faults::fixture::Fixture;

/// The commands that a server receives, in order.
pub(crate) struct Monitor(RespClient);

/// A command.
#[derive(Debug)]
pub(crate) struct MonitoredCommand {
    /// The client's address, or `lua`.
    pub(crate) source: String,
    pub(crate) command: String,
}

impl Monitor {
    pub(crate) async fn start(fixture: &Fixture) -> Self {
        let mut raw = fixture.raw_connection().await;
        assert_eq!(raw.command(&["MONITOR"]).await.expect("an answer"), Reply::Simple("OK".to_owned()));
        Self(raw)
    }

    /// Commands that clients sent since the last call, without those inside scripts.
    pub(crate) async fn client_commands(&mut self, fixture: &Fixture) -> Vec<String> {
        let mut commands = self.all_commands(fixture).await;
        commands.retain(|command| command.source != "lua");
        commands.into_iter().map(|command| command.command).collect()
    }

    pub(crate) async fn all_commands(&mut self, fixture: &Fixture) -> Vec<MonitoredCommand> {
        let mark = format!("mark-{:032x}", leasehold::ClaimId::random().bits());
        fixture.command_text(&["ECHO", &mark]).await;
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
