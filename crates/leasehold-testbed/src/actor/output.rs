//! The output of an actor, line by line.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{Error, Result};

/// How many lines of each stream are stored for error messages.
const MAX_KEPT_LINES: usize = 200;
/// The maximum length of a line; a longer line is split.
const MAX_LINE_BYTES: u64 = 1024 * 1024;

/// Calls `on_line` for each line of `stream` until it returns `false`. Reads in a thread of its
/// own, so that the actor never waits for a busy runtime.
pub(super) fn read_lines(
    stream: impl Read + Send + 'static,
    on_line: impl Fn(String) -> bool + Send + 'static,
) -> Result<()> {
    let reading = move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if !text.is_empty() && !on_line(text) {
                return;
            }
        }
    };
    let starting = Error::io("starting a thread that reads from the actor");
    let thread = thread::Builder::new().name("testbed-actor".to_owned());
    thread.spawn(reading).map(drop).map_err(starting)
}

/// The last [`MAX_KEPT_LINES`] lines of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct LineLog(Arc<Mutex<VecDeque<String>>>);

impl LineLog {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, line: String) {
        let mut lines = self.lock();
        if lines.len() == MAX_KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines, each indented and ended.
    pub(super) fn text(&self) -> String {
        self.lock().iter().map(|line| format!("  {line}\n")).collect()
    }
}
