//! Writes a worker's events to the history as they happen.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};

use crate::history::{self, Call, Event, OpId, Outcome, RunNanos, WorkerId, WorkerState};

/// The process records a stall if it ran this much later than it should have.
const MIN_STALL: Duration = Duration::from_millis(20);
/// How often the process checks whether it was stalled.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Appends events to the history as they happen, and sends them to the conductor.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Clock,
    origin: RunNanos,
    next_op: AtomicU32,
    file: Option<File>,
}

impl Recorder {
    /// Opens the history for appending. `origin` is when the run began, on the machine's clock.
    ///
    /// # Errors
    /// If the history cannot be opened.
    pub(super) fn new(origin: RunNanos, history: Option<&Path>) -> io::Result<Self> {
        let file = history.map(|path| File::options().append(true).open(path)).transpose()?;
        Ok(Self { clock: Clock::system(), origin, next_op: AtomicU32::new(1), file })
    }

    /// The time since the start of the run.
    pub(super) fn now(&self) -> RunNanos {
        self.to_run_time(self.clock.now())
    }

    /// Converts an instant to a time since the start of the run.
    pub(super) fn to_run_time(&self, instant: Instant) -> RunNanos {
        instant.as_nanos().saturating_sub(self.origin)
    }

    /// Records that a call is about to begin, and returns its number. `deadline` is when it should
    /// end.
    pub(super) fn begin(&self, worker: WorkerId, deadline: Option<RunNanos>, call: Call) -> OpId {
        let op = self.next_op_id(worker);
        self.begin_with_id(worker, op, deadline, call);
        op
    }

    /// A new number for a call; its beginning is recorded with
    /// [`begin_with_id`](Self::begin_with_id).
    pub(super) fn next_op_id(&self, worker: WorkerId) -> OpId {
        u64::from(worker) << 32 | u64::from(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    /// Records that the call with this number is about to begin.
    pub(super) fn begin_with_id(&self, worker: WorkerId, op: OpId, deadline: Option<RunNanos>, call: Call) {
        self.write(&Event::Begin { t: self.now(), worker, op, due: deadline, call });
    }

    /// Records the end of a call.
    pub(super) fn end(&self, op: OpId, outcome: Outcome) {
        self.write(&Event::End { t: self.now(), op, outcome });
    }

    /// Records a change of a worker's state.
    pub(super) fn worker_state(&self, worker: WorkerId, state: WorkerState) {
        self.write(&Event::Worker { t: self.now(), worker, state });
    }

    /// Appends an event to the history's file, in one write so that lines of several processes do
    /// not mix, and then sends it to the conductor. Ends the process if either fails.
    pub(super) fn write(&self, event: &Event) {
        let line = history::to_json_line(event);
        if let Some(mut file) = self.file.as_ref()
            && let Err(error) = file.write_all(line.as_bytes())
        {
            // The conductor reports this message.
            let _ = writeln!(io::stderr(), "the history cannot be written: {error}");
            std::process::exit(1);
        }
        let mut out = io::stdout().lock();
        // If the conductor has ended, this write fails, and the worker exits.
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }
}

/// Records in a loop when this process did not run for a while. Never returns.
pub(super) async fn watch_stalls(recorder: Arc<Recorder>, workers: Vec<(WorkerId, u32)>) {
    let mut last = recorder.now();
    loop {
        tokio::time::sleep(STALL_CHECK_INTERVAL).await;
        let now = recorder.now();
        if now - last > (STALL_CHECK_INTERVAL + MIN_STALL).as_nanos() as u64 {
            for (worker, _) in &workers {
                recorder.worker_state(*worker, WorkerState::Stalled { from: last });
            }
        }
        last = now;
    }
}
