//! What an actor prints, line by line.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{Error, Result};

/// How many lines of each stream are kept for error messages.
const LINES_KEPT: usize = 200;
/// The longest line that is read; a longer one comes in pieces.
const LONGEST_LINE: u64 = 1024 * 1024;

/// Hands each line to `take` until that says no, on a thread of its own: the actor then never waits
/// for a busy runtime.
pub(super) fn read_lines(
    stream: impl Read + Send + 'static,
    take: impl Fn(String) -> bool + Send + 'static,
) -> Result<()> {
    let reading = move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if !text.is_empty() && !take(text) {
                return;
            }
        }
    };
    let starting = Error::io("starting a thread that reads from the actor");
    let thread = thread::Builder::new().name("testbed-actor".to_owned());
    thread.spawn(reading).map(drop).map_err(starting)
}

/// The last lines of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Arc<Mutex<VecDeque<String>>>);

impl Lines {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, line: String) {
        let mut lines = self.lock();
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(super) fn text(&self) -> String {
        self.lock().iter().map(|line| format!("  {line}\n")).collect()
    }
}
