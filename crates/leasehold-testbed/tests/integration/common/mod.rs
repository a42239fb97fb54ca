//! Helpers of several tests: whether a process is alive, and which data templates exist.

use std::fs;

/// Whether the process runs or is stopped; `false` for one that has ended and was not reaped yet.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').map(|(_, fields)| fields.trim_start());
        !state.is_some_and(|state| state.starts_with(['Z', 'X']))
    })
}

/// The data templates of one kind of server on this machine, each with its inode number.
pub(crate) fn data_templates(kind: &str) -> Vec<(std::path::PathBuf, u64)> {
    let start = format!("leasehold-template-{kind}-");
    let files = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let mut found: Vec<_> = files
        .filter(|file| file.file_name().to_string_lossy().starts_with(&start))
        .map(|file| (file.path(), std::os::unix::fs::DirEntryExt::ino(&file)))
        .collect();
    found.sort();
    found
}
