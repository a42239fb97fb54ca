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

/// How long a new follower may take to copy what the leader has before the members elect again. It
/// ends no test, and must be shorter than the bound that does.
const ELECTS_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A member to be started.
#[derive(Clone, Debug)]
pub(super) struct EnsembleMember {
    pub(super) zookeeper: ZooKeeper,
    pub(super) index: usize,
    /// Where each member listens for the others: lines of the configuration.
    pub(super) server_entries: Vec<(String, String)>,
    /// The port through which it reaches the others.
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
            // Java would leave the way to this machine itself alone.
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

    /// It answers this one also without a leader.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            match send_word(workspace.addr(), "ruok").await {
                Ok(answer) if answer == "imok" => Ok(()),
                Ok(answer) => Err(format!("it says {answer:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
