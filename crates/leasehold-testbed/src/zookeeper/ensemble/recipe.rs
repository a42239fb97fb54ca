//! How one member of an ensemble is started.

use std::time::Duration;

use crate::{
    Result,
    process::{Binary, Place, Probe, Recipe},
    zookeeper::{
        ZooKeeper, ask,
        recipe::{MY_ID_FILE, write},
    },
};

/// How long a new follower may take to copy what the leader has before the members elect again. It
/// ends no test, and must be shorter than the bound that does.
const ELECTS_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A member to be started.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) zookeeper: ZooKeeper,
    pub(super) index: usize,
    /// Where each member listens for the others: lines of the configuration.
    pub(super) entries: Vec<(String, String)>,
    /// The port through which it reaches the others.
    pub(super) router: u16,
}

impl Recipe for Member {
    fn binary(&self) -> Binary {
        self.zookeeper.binary()
    }

    fn arguments(&self, _place: &Place) -> Vec<String> {
        let router = self.router.to_string();
        self.zookeeper.java_arguments(&[
            ("socksProxyHost", "127.0.0.1"),
            ("socksProxyPort", &router),
            // Java would leave the way to this machine itself alone.
            ("socksNonProxyHosts", ""),
        ])
    }

    fn url(&self, place: &Place) -> String {
        self.zookeeper.url(place)
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        write(&place.dir().join(MY_ID_FILE), &(self.index + 1).to_string())?;
        let mut settings = vec![
            ("initLimit".to_owned(), self.zookeeper.ticks(ELECTS_AGAIN_AFTER)),
            ("syncLimit".to_owned(), self.zookeeper.ticks(self.zookeeper.peer_silence)),
        ];
        settings.extend_from_slice(&self.entries);
        self.zookeeper.write_files(place.port(), place.dir(), &settings)
    }

    /// It answers this one also without a leader.
    fn probe<'a>(&'a self, place: &'a Place) -> Probe<'a> {
        Box::pin(async move {
            match ask(place.addr(), "ruok").await {
                Ok(answer) if answer == "imok" => Ok(()),
                Ok(answer) => Err(format!("it says {answer:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
