//! Runs the scheduled job of the workload `ticks`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold_schedule::{Crash, Job, Missed, StopHandle, run_until};

use super::recorder::Recorder;
use crate::history::{Call, Outcome, WorkerId};

/// The pause before the job is started again after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Runs a job that is due every second, and whose work takes `hold`, until `stop`. With
/// `is_at_most_once` each tick is started at most once; otherwise a lost attempt is repeated.
pub(super) async fn run_job(
    locks: &Locks,
    names: &[String],
    hold: Duration,
    worker: WorkerId,
    recorder: &Arc<Recorder>,
    stop: &StopHandle,
    is_at_most_once: bool,
) {
    let crash = if is_at_most_once { Crash::AtMostOnce } else { Crash::Retry { attempts: 3 } };
    let name = names.first().cloned().unwrap_or_default();
    while !stop.is_stopped() {
        let job = Job::new(&name, "* * * * * *").map(|job| job.crash(crash).missed(Missed::Once));
        let Ok(job) = job else { return };
        let work = |run: leasehold_schedule::Run| {
            let (recorder, name) = (Arc::clone(recorder), name.clone());
            async move {
                let (tick, attempt, token) = (run.tick().unix(), run.attempt(), run.token().0);
                let call = Call::Tick { job: name, tick, attempt, token, once: is_at_most_once };
                let op = recorder.begin(worker, None, call);
                tokio::time::sleep(hold).await;
                recorder.end(op, Outcome::Done);
                Ok::<(), Infallible>(())
            }
        };
        // It returns at `stop`, or with an error if the engine fails for too long.
        if run_until(locks, job, stop, work).await.is_err() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}
