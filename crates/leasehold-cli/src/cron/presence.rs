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

/// How long to wait before another attempt after this host's lock was refused; no job depends on
/// it.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// The lock that this host holds while it runs `leasehold cron`, so that others can list it.
pub(super) struct HostPresence {
    /// Holds the lock, and acquires it again after a loss; `None` if the engine cannot list locks.
    task: Option<JoinHandle<()>>,
}

impl HostPresence {
    /// Makes this host visible to others, with its schedule file and its number of jobs, until
    /// `withdraw`. Must be called within a `LocalSet`.
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

    /// Releases the lock, so that others no longer list this host.
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
