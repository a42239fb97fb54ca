//! Shows which hosts run `leasehold cron` on an engine: each holds its own lock, which ends with
//! the host.

use std::time::Duration;

use leasehold::engine::PartyView;
use leasehold::{Error, Holder, Locks};
use tokio::task::JoinHandle;

use crate::duration::human;
use crate::output;
use crate::view;

/// The prefix of the locks' names; the host and its process id follow.
const PREFIX: &str = "cron-host:";

/// How long to wait after the engine refused the lock. No job depends on this lock.
const PAUSE: Duration = Duration::from_secs(30);

/// This host's presence lock.
pub(super) struct Presence {
    task: Option<JoinHandle<()>>,
}

impl Presence {
    /// Shows this host, its file and its number of jobs, until `hide`. Needs a `LocalSet`.
    pub(super) fn show(locks: &Locks, file: &str, jobs: usize) -> Self {
        if !locks.capabilities().inspection {
            return Self { task: None };
        }
        let me = Holder::this_process();
        let (locks, name) = (locks.clone(), format!("{PREFIX}{}:{}", me.host, me.pid));
        let text = output::shorten(file, 200).into_owned() + ", " + &output::count(jobs, "job");
        let task = tokio::task::spawn_local(async move {
            loop {
                match locks.mutex(&name).describe(&text).lock().await {
                    Ok(guard) => drop(guard.lost().await),
                    Err(error) => {
                        tracing::debug!(%error, "this host is not shown to others");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
        Self { task: Some(task) }
    }

    /// Releases the lock.
    pub(super) async fn hide(self) {
        if let Some(task) = self.task {
            task.abort();
            let _ = task.await;
        }
    }
}

/// The live hosts; `None` if the engine cannot list locks.
pub(super) async fn hosts(locks: &Locks) -> Result<Option<Vec<PartyView>>, Error> {
    if !locks.capabilities().inspection {
        return Ok(None);
    }
    Ok(Some(locks.list(PREFIX).await?.into_iter().flat_map(|view| view.holders).collect()))
}

/// The hosts as text, for people.
pub(super) fn text(hosts: Option<&[PartyView]>, url: &str) -> String {
    match hosts {
        None => format!("{url} cannot say which hosts run a timetable\n"),
        Some([]) => format!("no host runs a timetable on {url}\n"),
        Some(hosts) => {
            let line = |host: &PartyView| {
                format!("  {}  {}  for {}\n", view::process(host), view::doing(host), human(host.age))
            };
            let lines: String = hosts.iter().map(line).collect();
            format!("{} on {url}:\n{lines}", output::count(hosts.len(), "live host"))
        }
    }
}
