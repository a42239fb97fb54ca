//! How one member of an ensemble is started.

use std::time::Duration;

use crate::{
    Result,
    process::{Binary, Probe, ServerSpec, Workspace},
    zookeeper::{
        ZooKeeper, send_word,
        server_spec::{MY_ID_FILE, write_file},
    },
};

/// The time limit for a new follower to copy the leader's data; then the members elect again.
/// Shorter than [`TEST_TIMEOUT`](crate::TEST_TIMEOUT), so that a test survives a failed attempt.
const ELECTS_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A member of an ensemble to start.
#[derive(Clone, Debug)]
pub(super) struct EnsembleMember {
    pub(super) zookeeper: ZooKeeper,
    pub(super) index: usize,
    /// The addresses of all members for each other, as lines of the configuration.
    pub(super) server_entries: Vec<(String, String)>,
    /// The port of the SOCKS router through which it reaches the other members.
    pub(super) router_port: u16,
}

impl ServerSpec for EnsembleMember {
    fn binary(&self) -> Binary {
        self.zookeeper.binary()
    }

    fn arguments(&self, _workspace: &Workspace) -> Vec<String> {
        let router = self.router_port.to_string();
        self.zookeeper.java_arguments(&[
            ("socksProxyHost", "127.0.0.1"),
            ("socksProxyPort", &router),
            // By default, Java uses no SOCKS proxy for addresses of this machine.
            ("socksNonProxyHosts", ""),
        ])
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.zookeeper.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        write_file(&workspace.dir().join(MY_ID_FILE), &(self.index + 1).to_string())?;
        let mut settings = vec![
            ("initLimit".to_owned(), self.zookeeper.ticks(ELECTS_AGAIN_AFTER)),
            ("syncLimit".to_owned(), self.zookeeper.ticks(self.zookeeper.peer_timeout)),
        ];
        settings.extend_from_slice(&self.server_entries);
        self.zookeeper.write_files(workspace.port(), workspace.dir(), &settings)
    }

    /// Sends the word `ruok`, to which a member replies even without a leader.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            match send_word(workspace.addr(), "ruok").await {
                Ok(answer) if answer == "imok" => Ok(()),
                Ok(answer) => Err(format!("unexpected reply {answer:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
