//! What several tests need to know about processes.

use std::fs;

/// Whether the process runs, or could: one that is dead and not yet waited for does not count.
pub(crate) fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').map(|(_, fields)| fields.trim_start());
        !state.is_some_and(|state| state.starts_with(['Z', 'X']))
    })
}
