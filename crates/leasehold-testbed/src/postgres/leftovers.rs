//! A killed PostgreSQL leaves a small System V shared memory segment, of which a system allows only
//! some thousand. Its next start would remove it; without a next start, this module does.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// The file that PostgreSQL writes at its start and removes at a clean exit.
const PID_FILE: &str = "postmaster.pid";
/// The index of the line of [`PID_FILE`] that has the segment's key and id; the first line has the
/// process id.
const MEMORY_LINE: usize = 6;
const SHARED_MEMORY_TABLE: &str = "/proc/sysvipc/shm";

/// Removes the segment that the server in `dir` has left, if it certainly belongs to that server.
pub(super) fn remove_shared_memory(dir: &Path) {
    let Ok(note) = fs::read_to_string(dir.join(PID_FILE)) else {
        return;
    };
    let Ok(table) = fs::read_to_string(SHARED_MEMORY_TABLE) else {
        return;
    };
    if let Some(id) = unused_memory_id(&note, &table) {
        // Errors are ignored: only a table entry remains.
        let _ = Command::new("ipcrm").args(["-m", id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The id of the segment that the process of this `pid_file` created; `None` if it is in use or
/// gone.
///
/// Columns of the table: key, id, permissions, size, creating process, last process, number of
/// users, …
fn unused_memory_id<'a>(pid_file: &'a str, table: &str) -> Option<&'a str> {
    let process = pid_file.lines().next()?.trim();
    let (key, id) = pid_file.lines().nth(MEMORY_LINE)?.trim().split_once(char::is_whitespace)?;
    let id = id.trim();
    // The file has the key as an unsigned number, the table as a signed one.
    let key = key.parse::<u32>().ok()?.cast_signed().to_string();
    let ours = |row: &&str| {
        let columns: Vec<&str> = row.split_whitespace().collect();
        let column = |n: usize| columns.get(n).copied();
        column(0) == Some(key.as_str()) && column(1) == Some(id) && column(4) == Some(process) && column(6) == Some("0")
    };
    table.lines().skip(1).find(ours).map(|_| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID_FILE_TEXT: &str = "4711\n/tmp/data\n1790000000\n5432\n\n127.0.0.1\n  1234567         9\nready   \n";

    fn table(row: &str) -> String {
        format!("key shmid perms size cpid lpid nattch uid\n{row}\n")
    }

    #[test]
    fn only_unused_memory_of_that_process_is_removed() {
        assert_eq!(unused_memory_id(PID_FILE_TEXT, &table("1234567 9 600 56 4711 4712 0 101")), Some("9"));
        assert_eq!(unused_memory_id(PID_FILE_TEXT, &table("1234567 9 600 56 4711 4712 1 101")), None, "it is in use");
        assert_eq!(
            unused_memory_id(PID_FILE_TEXT, &table("1234567 9 600 56 4700 4712 0 101")),
            None,
            "another process created it"
        );
        assert_eq!(unused_memory_id(PID_FILE_TEXT, &table("1234568 9 600 56 4711 4712 0 101")), None, "another key");
        assert_eq!(unused_memory_id(PID_FILE_TEXT, &table("1234567 8 600 56 4711 4712 0 101")), None, "another id");
    }
}
