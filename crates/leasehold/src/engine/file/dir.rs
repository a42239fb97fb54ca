//! A handle to an open directory. It opens, creates and removes entries relative to the handle, and
//! follows no symbolic link. So a member of the group that shares the folder, who may replace any
//! entry, cannot make this process read, write or share files elsewhere.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fchown, fstat, fsync, linkat, mkdirat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::error;
use super::permissions::Permissions;
use crate::types::{Error, ErrorKind, Result};

/// Flags that open a directory so that it can be listed, locked and synced.
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags that refuse to follow a link, and do not block if there is a pipe in place of a file.
const SAFE_OPEN_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// How many milliseconds a new file may have two names, its temporary and its final one.
const NAMING_TIMEOUT_MS: u32 = 10;

/// An open directory.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    /// The path at which the directory was opened, for messages and comparisons.
    path: PathBuf,
    /// Who may use the files that are created in it.
    permissions: Permissions,
}

impl Dir {
    /// Opens a directory by its path, in which the caller has resolved all links. An error if a
    /// link has replaced the directory since.
    pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
        Ok(openat(CWD, path, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())?)
    }

    /// Wraps an open directory; `permissions` applies to the files that are created in it.
    pub(super) fn new(fd: OwnedFd, path: PathBuf, permissions: Permissions) -> Self {
        Self { fd, path, permissions }
    }

    /// Opens the directory `name` in this one; creates it if it does not exist. A private one must
    /// belong to this user.
    pub(super) fn open_subfolder(&self, name: &str) -> Result<Self> {
        let path = self.path(name);
        let fd = match open_folder(&self.fd, name) {
            // Synced, so that the new directory survives a loss of power, and with it the tokens in
            // it.
            Err(Errno::NOENT) => {
                create_folder(&self.fd, name, &self.permissions).and_then(|fd| self.sync().map(|()| fd))
            }
            other => other.map_err(Into::into),
        };
        let fd = fd.map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOTDIR | Errno::LOOP) => not_a_folder_error(&path),
            Some(Errno::ACCESS) => self.permissions.access_denied_error(&path, e),
            _ => error::io_error_at(&path, "open", e),
        })?;
        self.permissions.check_owner(&fstat(&fd).map_err(|e| error::io_error_at(&path, "look at", e))?, &path)?;
        Ok(Self { fd, path, permissions: self.permissions })
    }

    /// The directory's path, for messages.
    pub(super) fn as_path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, to show and compare. It is not used to open the entry.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A path to an entry by way of the open handle, for system calls that accept no handles. It is
    /// short enough to be a socket's path.
    pub(super) fn path_by_handle(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Whether other users may use the folder, as `mode=` in the URL says.
    pub(super) fn is_shared(&self) -> bool {
        self.permissions.mode.is_some()
    }

    /// Opens an existing file. Refuses anything but a regular file with a single name, which no
    /// link replaced; in a private folder it must belong to this user.
    pub(super) fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = File::from(openat(&self.fd, name, flags | SAFE_OPEN_FLAGS, Mode::empty())?);
        let mut found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(permission_denied("it is not a file, and leasehold did not create it: remove it"));
        }
        // On a file system without an atomic rename that replaces nothing, a new file has two names
        // for a moment.
        for _ in 0..NAMING_TIMEOUT_MS {
            if found.st_nlink > 1 {
                std::thread::sleep(Duration::from_millis(1));
                found = fstat(&file)?;
            }
        }
        if found.st_nlink > 1 {
            let reason = format!(
                "it has {} names, so another program may use it under another name: remove this name",
                found.st_nlink
            );
            return Err(permission_denied(reason));
        }
        if self.permissions.mode.is_none() && found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(permission_denied(format!("it belongs to user {}, and the folder is private", found.st_uid)));
        }
        Ok(file)
    }

    /// Creates a file that must not exist yet, with the folder's group and permissions.
    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | SAFE_OPEN_FLAGS;
        let file = File::from(openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.permissions.share_file(&file)?;
        Ok(file)
    }

    /// Creates a file, after removing a file with that name that a dead process may have left. Only
    /// one process at a time may use the name.
    pub(super) fn recreate(&self, name: &str) -> io::Result<File> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.create(name)
    }

    /// The content of a file; `None` if it does not exist. An error if it has more than `max_bytes`
    /// bytes.
    pub(super) fn read(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open(name, OFlags::RDONLY) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(max_bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {max_bytes} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Whether there is an entry with this name, of any kind.
    pub(super) fn exists(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// The metadata of an entry; for a link, that of the link itself.
    pub(super) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes a file, socket or link.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames a file, and replaces an existing file with the new name.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Replaces the content of a file, durably: writes it to a temporary file, and renames that. In
    /// a sticky folder only the file's owner may do so. Other users overwrite the content in place
    /// with one write, which a loss of power does not split, because it is short.
    pub(super) fn replace(&self, temporary_name: &str, name: &str, content: &str) -> io::Result<()> {
        let replaced = self.recreate(temporary_name).and_then(|mut file| {
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
            self.rename(temporary_name, name)
        });
        match replaced {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.exists(name) => {
                // This process created the temporary file, if it exists at all.
                let _ = self.remove(temporary_name);
                let file = self.open(name, OFlags::WRONLY)?;
                file.write_all_at(content.as_bytes(), 0)?;
                file.set_len(content.len() as u64)?;
                file.sync_all()
            }
            other => other,
        }
    }

    /// Renames a file, unless the new name is in use: that is an `AlreadyExists` error. The file
    /// has two names at no time, if the file system allows, because a file with two names is
    /// refused.
    pub(super) fn rename_to_free_name(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // The file system has no such rename, so the file has two names for a moment. A
                // process that opens it then waits.
                linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                self.remove(from)
            }
            other => Ok(other?),
        }
    }

    /// Opens a handle to a socket entry, through which it can be shared and reached even if the
    /// entry is replaced later. Refuses anything that is not a socket.
    pub(super) fn open_socket(&self, name: &str) -> io::Result<OwnedFd> {
        let fd = openat(&self.fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&fd)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket if found.st_nlink <= 1 => Ok(fd),
            _ => Err(permission_denied("it is not the socket that leasehold created: remove it")),
        }
    }

    /// Gives a socket that this process created the folder's group and permissions.
    pub(super) fn share_socket(&self, name: &str) -> io::Result<()> {
        let socket = self.open_socket(name)?;
        if fstat(&socket)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(permission_denied("it is not the socket that leasehold created"));
        }
        self.permissions.share_socket(&socket)
    }

    /// The names of at most `limit` entries, in no particular order.
    pub(super) fn entry_names(&self, limit: usize) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
        names.take(limit).map(|name| Ok(OsString::from_vec(name?))).collect()
    }

    /// Opens the directory once more. `flock` on the new handle also excludes other tasks of this
    /// process.
    pub(super) fn reopen(&self) -> io::Result<File> {
        Ok(File::from(openat(&self.fd, ".", DIR_FLAGS, Mode::empty())?))
    }

    /// Waits until all entries that were created, renamed or removed are on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the directory `name` in `parent`; an error if it is a link.
fn open_folder(parent: &impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
}

/// Creates a directory under a temporary name, and renames it once its group and mode are set, so
/// that no process finds it incomplete. If another process has created it meanwhile, opens that
/// one.
pub(super) fn create_folder(parent: &impl AsFd, name: &str, sharing: &Permissions) -> io::Result<OwnedFd> {
    let temp_name = format!(".new-{:032x}", crate::random::random_bits());
    mkdirat(parent, &*temp_name, Mode::RWXU)?;
    let created = || -> io::Result<OwnedFd> {
        let fd = open_folder(parent, &temp_name)?;
        set_folder_permissions(&fd, sharing)?;
        match renameat_with(parent, &*temp_name, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(fd),
            Err(Errno::EXIST) => Ok(open_folder(parent, name)?),
            // The file system has no rename that replaces nothing.
            Err(Errno::INVAL | Errno::NOSYS) => create_folder_in_place(parent, name, sharing),
            Err(other) => Err(other.into()),
        }
    };
    let created = created();
    // Fails if it was renamed, which is fine.
    let _ = unlinkat(parent, &*temp_name, AtFlags::REMOVEDIR);
    created
}

/// Creates a directory under its final name: until its group and mode are set, other processes may
/// find it incomplete. If it exists, opens it.
fn create_folder_in_place(parent: &impl AsFd, name: &str, sharing: &Permissions) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => {
            let fd = open_folder(parent, name)?;
            set_folder_permissions(&fd, sharing)?;
            Ok(fd)
        }
        Err(Errno::EXIST) => Ok(open_folder(parent, name)?),
        Err(other) => Err(other.into()),
    }
}

/// Sets the group and mode of a directory that this process has just created. An error if it
/// belongs to another user or is not empty, because then another one has replaced it.
fn set_folder_permissions(fd: &OwnedFd, sharing: &Permissions) -> io::Result<()> {
    let Some(mode) = sharing.folder_mode() else { return Ok(()) };
    let found = fstat(fd)?;
    let entries = rustix::fs::Dir::read_from(fd)?.take(3).count();
    if found.st_uid != rustix::process::geteuid().as_raw() || entries > 2 {
        return Err(permission_denied("it is not the folder that leasehold created"));
    }
    if let Some(group) = sharing.group_to_set(found.st_gid) {
        fchown(fd, None, Some(group))?;
    }
    Ok(fchmod(fd, mode)?)
}

/// An error as of a system call, with leasehold's own reason, which [`error::io_error_at`] shows.
pub(super) fn permission_denied(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason.into())
}

/// The error if there is a link or a file in the place of one of leasehold's own directories.
fn not_a_folder_error(path: &Path) -> Error {
    let message = format!(
        "{} is a link or a file, where leasehold needs its own folder; it is not followed. Remove it, and find out who put it there",
        path.display()
    );
    Error::new(ErrorKind::Denied, message)
}
