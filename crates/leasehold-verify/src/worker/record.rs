//! Records events as they happen.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};

use crate::history::{self, Call, Event, Nanos, OpId, Outcome, State, Worker};

/// A pause of the process at least this long is recorded.
const STALL: Duration = Duration::from_millis(20);
const BEAT: Duration = Duration::from_millis(20);

/// Appends events to the history as they happen, and sends them to the conductor.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Clock,
    origin: Nanos,
    next: AtomicU32,
    file: Option<File>,
}

impl Recorder {
    /// # Errors
    /// If the history cannot be opened.
    pub(super) fn new(origin: Nanos, history: Option<&Path>) -> io::Result<Self> {
        let file = history.map(|path| File::options().append(true).open(path)).transpose()?;
        Ok(Self { clock: Clock::system(), origin, next: AtomicU32::new(1), file })
    }

    /// The current time.
    pub(super) fn now(&self) -> Nanos {
        self.at(self.clock.now())
    }

    /// An instant in the history's time.
    pub(super) fn at(&self, moment: Moment) -> Nanos {
        moment.as_nanos().saturating_sub(self.origin)
    }

    /// Records the beginning of a call, before it starts.
    pub(super) fn begin(&self, worker: Worker, due: Option<Nanos>, call: Call) -> OpId {
        let op = self.number(worker);
        self.begin_as(worker, op, due, call);
        op
    }

    /// A number for a call that is about to begin.
    pub(super) fn number(&self, worker: Worker) -> OpId {
        u64::from(worker) << 32 | u64::from(self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn begin_as(&self, worker: Worker, op: OpId, due: Option<Nanos>, call: Call) {
        self.put(&Event::Begin { t: self.now(), worker, op, due, call });
    }

    /// Records the end of a call.
    pub(super) fn end(&self, op: OpId, outcome: Outcome) {
        self.put(&Event::End { t: self.now(), op, outcome });
    }

    pub(super) fn worker(&self, worker: Worker, state: State) {
        self.put(&Event::Worker { t: self.now(), worker, state });
    }

    /// Each line is one write: it does not mix with other writers' lines, and is complete when this
    /// returns. It is in the file before any other process knows of it, so it survives the
    /// conductor.
    pub(super) fn put(&self, event: &Event) {
        let line = history::line(event);
        if let Some(mut file) = self.file.as_ref()
            && let Err(error) = file.write_all(line.as_bytes())
        {
            // The conductor reports it.
            let _ = writeln!(io::stderr(), "the history cannot be written: {error}");
            std::process::exit(1);
        }
        let mut out = io::stdout().lock();
        // If the conductor is gone, there is nothing left to do.
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }
}

/// Records when this process did not run for a while.
pub(super) async fn watch_stalls(recorder: Arc<Recorder>, workers: Vec<(Worker, u32)>) {
    let mut last = recorder.now();
    loop {
        tokio::time::sleep(BEAT).await;
        let now = recorder.now();
        if now - last > (BEAT + STALL).as_nanos() as u64 {
            for (worker, _) in &workers {
                recorder.worker(*worker, State::Stalled { from: last });
            }
        }
        last = now;
    }
}
