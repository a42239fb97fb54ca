//! Converts errors of system calls, and damage in lock files, to the library's errors.

use std::io;
use std::path::Path;

use crate::types::{Error, ErrorKind};

/// Converts the error of a system call on `path`. The message is `cannot {action} {path}`, and what
/// to do about it.
pub(super) fn io_error_at(path: &Path, action: &str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let path = path.display();
    let (kind, advice) = match error.kind() {
        // Made by `dir::permission_denied`: its text has the reason and the advice.
        io::ErrorKind::PermissionDenied if error.get_ref().is_some() => (ErrorKind::Denied, ""),
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            (ErrorKind::Denied, "; it is a link that leasehold did not create and does not follow: remove it")
        }
        io::ErrorKind::PermissionDenied => (ErrorKind::Denied, "; its folder must belong to this user and be writable"),
        io::ErrorKind::ReadOnlyFilesystem => (ErrorKind::Denied, "; name a folder that can be written: file:///dir"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (ErrorKind::Full, "; make room and try again"),
        io::ErrorKind::NotADirectory => (ErrorKind::InvalidUrl, "; name a folder"),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("cannot {action} {path}{advice}")).caused_by(error)
}

/// The error for a lock file that is damaged; `reason` says how, as in "it is too short".
pub(super) fn damaged_file_error(path: &Path, reason: &str) -> Error {
    let message = format!(
        "{} is damaged ({reason}); the lock cannot be acquired, and the file is unchanged. Restore the file from a copy, or move it away to \
         start over: then also reset the resources that compare this lock's tokens, which start low again",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
