//! Shows which hosts run `leasehold cron` on an engine: each holds its own lock, which ends with
//! the host.

use std::time::Duration;

use leasehold::engine::ContenderView;
use leasehold::{Error, Holder, Locks};
use tokio::task::JoinHandle;

use crate::duration::format_duration;
use crate::output;
use crate::view;

/// The prefix of the locks' names; the host and its process id follow.
const HOST_LOCK_PREFIX: &str = "cron-host:";

/// How long to wait after the engine refused the lock. No job depends on this lock.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// This host's presence lock.
pub(super) struct HostPresence {
    task: Option<JoinHandle<()>>,
}

impl HostPresence {
    /// Shows this host, its file and its number of jobs, until `withdraw`. Needs a `LocalSet`.
    pub(super) fn announce(locks: &Locks, file: &str, jobs: usize) -> Self {
        if !locks.capabilities().inspection {
            return Self { task: None };
        }
        let me = Holder::this_process();
        let (locks, name) = (locks.clone(), format!("{HOST_LOCK_PREFIX}{}:{}", me.host, me.pid));
        let text = output::shorten(file, 200).into_owned() + ", " + &output::format_count(jobs, "job");
        let task = tokio::task::spawn_local(async move {
            loop {
                match locks.mutex(&name).describe(&text).lock().await {
                    Ok(guard) => drop(guard.lost().await),
                    Err(error) => {
                        tracing::debug!(%error, "this host is not shown to others");
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
            }
        });
        Self { task: Some(task) }
    }

    /// Releases the lock.
    pub(super) async fn withdraw(self) {
        if let Some(task) = self.task {
            task.abort();
            let _ = task.await;
        }
    }
}

/// The live hosts; `None` if the engine cannot list locks.
pub(super) async fn list_hosts(locks: &Locks) -> Result<Option<Vec<ContenderView>>, Error> {
    if !locks.capabilities().inspection {
        return Ok(None);
    }
    Ok(Some(locks.list(HOST_LOCK_PREFIX).await?.into_iter().flat_map(|view| view.holders).collect()))
}

/// The hosts as text, for people.
pub(super) fn format_hosts(hosts: Option<&[ContenderView]>, url: &str) -> String {
    match hosts {
        None => format!("{url} cannot list the hosts that run `leasehold cron`\n"),
        Some([]) => format!("no host runs `leasehold cron` on {url}\n"),
        Some(hosts) => {
            let line = |host: &ContenderView| {
                format!(
                    "  {}  {}  for {}\n",
                    view::format_process(host),
                    view::format_activity(host),
                    format_duration(host.age)
                )
            };
            let lines: String = hosts.iter().map(line).collect();
            format!("{} on {url}:\n{lines}", output::format_count(hosts.len(), "live host"))
        }
    }
}
