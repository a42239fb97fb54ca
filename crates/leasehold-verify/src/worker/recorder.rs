//! Records events as they happen.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};

use crate::history::{self, Call, Event, OpId, Outcome, RunNanos, WorkerId, WorkerState};

/// A pause of the process at least this long is recorded.
const MIN_STALL: Duration = Duration::from_millis(20);
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
    /// # Errors
    /// If the history cannot be opened.
    pub(super) fn new(origin: RunNanos, history: Option<&Path>) -> io::Result<Self> {
        let file = history.map(|path| File::options().append(true).open(path)).transpose()?;
        Ok(Self { clock: Clock::system(), origin, next_op: AtomicU32::new(1), file })
    }

    /// The current time.
    pub(super) fn now(&self) -> RunNanos {
        self.to_run_time(self.clock.now())
    }

    /// An instant in the history's time.
    pub(super) fn to_run_time(&self, instant: Instant) -> RunNanos {
        instant.as_nanos().saturating_sub(self.origin)
    }

    /// Records the beginning of a call, before it starts.
    pub(super) fn begin(&self, worker: WorkerId, deadline: Option<RunNanos>, call: Call) -> OpId {
        let op = self.next_op_id(worker);
        self.begin_with_id(worker, op, deadline, call);
        op
    }

    /// A number for a call that is about to begin.
    pub(super) fn next_op_id(&self, worker: WorkerId) -> OpId {
        u64::from(worker) << 32 | u64::from(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn begin_with_id(&self, worker: WorkerId, op: OpId, deadline: Option<RunNanos>, call: Call) {
        self.write(&Event::Begin { t: self.now(), worker, op, due: deadline, call });
    }

    /// Records the end of a call.
    pub(super) fn end(&self, op: OpId, outcome: Outcome) {
        self.write(&Event::End { t: self.now(), op, outcome });
    }

    pub(super) fn worker_state(&self, worker: WorkerId, state: WorkerState) {
        self.write(&Event::Worker { t: self.now(), worker, state });
    }

    /// Each line is one write: it does not mix with other writers' lines, and is complete when this
    /// returns. It is in the file before any other process knows of it, so it survives the
    /// conductor.
    pub(super) fn write(&self, event: &Event) {
        let line = history::to_json_line(event);
        if let Some(mut file) = self.file.as_ref()
            && let Err(error) = file.write_all(line.as_bytes())
        {
            // The conductor reports this line.
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

/// Records when this process did not run for a while.
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
