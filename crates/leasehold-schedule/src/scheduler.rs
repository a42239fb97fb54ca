//! Many jobs on one node.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::job::Job;
use super::run::Run;
use super::runner::run_until;
use super::stop_handle::StopHandle;
use leasehold::Locks;
use leasehold::{Error, ErrorKind, Result};

type JobFuture = Pin<Box<dyn Future<Output = (Arc<str>, Result<()>)> + Send>>;

/// Many jobs on one node; each of their ticks runs once in the fleet.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold::Locks;
/// use leasehold_schedule::{Job, Scheduler};
///
/// let mut scheduler = Scheduler::new(&Locks::open("memory:").await?);
/// scheduler.add(Job::new("report", "0 3 * * *")?.zone("Europe/Berlin")?, |run| async move {
///     println!("the report of {}", run.tick());
///     Ok::<(), std::io::Error>(())
/// })?;
/// scheduler.add(Job::new("mail", "@every 5m")?, |_| async { Ok::<(), std::io::Error>(()) })?;
/// let stop = scheduler.stop_handle();
/// # stop.stop();
/// scheduler.run(|job, error| eprintln!("{job}: {error}")).await;     // until stop.stop(); runs in progress then complete
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub struct Scheduler {
    locks: Locks,
    stop: StopHandle,
    names: Vec<Arc<str>>,
    jobs: FuturesUnordered<JobFuture>,
}

impl Scheduler {
    /// A scheduler without jobs.
    pub fn new(locks: &Locks) -> Self {
        Self { locks: locks.clone(), stop: StopHandle::new(), names: Vec::new(), jobs: FuturesUnordered::new() }
    }

    /// Adds a job. All jobs share one task, so long computations should run on another.
    ///
    /// # Errors
    /// `InvalidOption` if there already is a job with this name.
    pub fn add<F, Fut, E>(&mut self, job: Job, work: F) -> Result<()>
    where
        F: Fn(Run) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let name: Arc<str> = job.name().into();
        if self.names.contains(&name) {
            return Err(Error::new(ErrorKind::InvalidOption, format!("there are two jobs named {name:?}")));
        }
        job.check_options(&self.locks)?;
        self.names.push(Arc::clone(&name));
        let (locks, stop) = (self.locks.clone(), self.stop.clone());
        self.jobs.push(Box::pin(async move { (name, run_until(&locks, job, &stop, work).await) }));
        Ok(())
    }

    /// The handle that stops the scheduler.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Runs the jobs until the scheduler is stopped, and then completes the runs in progress. If a
    /// job cannot continue, `on_failure` gets its error, and the other jobs continue.
    ///
    /// # Cancellation safety
    /// As [`run_until`].
    pub async fn run(mut self, mut on_failure: impl FnMut(&str, Error)) {
        while let Some((name, result)) = self.jobs.next().await {
            if let Err(error) = result {
                on_failure(&name, error);
            }
        }
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("jobs", &self.names).finish_non_exhaustive()
    }
}
