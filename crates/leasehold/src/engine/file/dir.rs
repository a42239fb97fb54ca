//! A directory handle. Entries are named relative to the handle, and no link is followed. So a
//! member of the group, who may replace any entry, cannot make this process read, write or share
//! files elsewhere.

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

/// The flags of a directory handle: it can be listed, locked and synced.
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Follows no link, and a pipe in place of a file does not block.
const SAFE_OPEN_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// How many milliseconds a file may have its temporary name beside its own.
const NAMING_TIMEOUT_MS: u32 = 10;

/// An open directory.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    permissions: Permissions,
}

impl Dir {
    /// Opens a directory by a path that an administrator chose and the caller has resolved. If a
    /// link has replaced it since then, it is refused.
    pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
        Ok(openat(CWD, path, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())?)
    }

    pub(super) fn new(fd: OwnedFd, path: PathBuf, sharing: Permissions) -> Self {
        Self { fd, path, permissions: sharing }
    }

    /// Opens a directory in this one; creates it if it does not exist.
    pub(super) fn open_subfolder(&self, name: &str) -> Result<Self> {
        let path = self.path(name);
        let fd = match open_folder(&self.fd, name) {
            // Its name must survive a loss of power, or all tokens in it are lost.
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

    pub(super) fn as_path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, to show and compare. It is not used to open the entry.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A path to an entry through our handle, for calls that accept no handles. It is short, as a
    /// socket's path must be.
    pub(super) fn path_by_handle(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    pub(super) fn is_shared(&self) -> bool {
        self.permissions.mode.is_some()
    }

    /// Opens an existing file: a regular file, not a link, and with no second name elsewhere.
    pub(super) fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = File::from(openat(&self.fd, name, flags | SAFE_OPEN_FLAGS, Mode::empty())?);
        let mut found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(permission_denied("it is not a file, and leasehold did not create it: remove it"));
        }
        // If the file system has no atomic rename to a free name, a new file has two names for a
        // moment.
        for _ in 0..NAMING_TIMEOUT_MS {
            if found.st_nlink > 1 {
                std::thread::sleep(Duration::from_millis(1));
                found = fstat(&file)?;
            }
        }
        if found.st_nlink > 1 {
            let reason = format!("it has {} names, so it may be another's file: remove this one", found.st_nlink);
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

    /// Creates a file under a temporary name that only one process uses at a time; first removes
    /// one that a dead process left.
    pub(super) fn recreate(&self, name: &str) -> io::Result<File> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.create(name)
    }

    /// The content of a file of at most `max_bytes` bytes; `None` if it does not exist.
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

    pub(super) fn exists(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// The metadata of an entry; for a link, that of the link itself.
    pub(super) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames a file; a file with the new name is replaced.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Replaces a file as a whole, durably. In a sticky folder only the owner may replace it; other
    /// users overwrite its content with one write, which lies in one sector.
    pub(super) fn replace(&self, temporary_name: &str, name: &str, content: &str) -> io::Result<()> {
        let replaced = self.recreate(temporary_name).and_then(|mut file| {
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
            self.rename(temporary_name, name)
        });
        match replaced {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.exists(name) => {
                // The temporary file is ours, if it was created at all.
                let _ = self.remove(temporary_name);
                let file = self.open(name, OFlags::WRONLY)?;
                file.write_all_at(content.as_bytes(), 0)?;
                file.set_len(content.len() as u64)?;
                file.sync_all()
            }
            other => other,
        }
    }

    /// Renames a file to a free name. It has no second name in between, because a file with two
    /// names is refused.
    pub(super) fn rename_to_free_name(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // On a file system without such a rename, the file has two names for a moment, and
                // those who open it wait.
                linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                self.remove(from)
            }
            other => Ok(other?),
        }
    }

    /// A handle to the socket itself, not to an entry that replaced it.
    pub(super) fn open_socket(&self, name: &str) -> io::Result<OwnedFd> {
        let fd = openat(&self.fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&fd)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket if found.st_nlink <= 1 => Ok(fd),
            _ => Err(permission_denied("it is not the client's own socket")),
        }
    }

    /// Gives a socket of ours the folder's group and permissions.
    pub(super) fn share_socket(&self, name: &str) -> io::Result<()> {
        let socket = self.open_socket(name)?;
        if fstat(&socket)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(permission_denied("it is not the socket that leasehold created"));
        }
        self.permissions.share_socket(&socket)
    }

    /// The names of at most `limit` entries.
    pub(super) fn entry_names(&self, limit: usize) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
        names.take(limit).map(|name| Ok(OsString::from_vec(name?))).collect()
    }

    /// A separate handle, so that its `flock` also excludes the other tasks of this process.
    pub(super) fn reopen(&self) -> io::Result<File> {
        Ok(File::from(openat(&self.fd, ".", DIR_FLAGS, Mode::empty())?))
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a directory in another one, and no link to one.
fn open_folder(parent: &impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
}

/// Creates a directory under a temporary name, and renames it once its group and mode are right, so
/// that no process finds it incomplete. If another process was faster, opens the existing one.
pub(super) fn create_folder(parent: &impl AsFd, name: &str, sharing: &Permissions) -> io::Result<OwnedFd> {
    let temp_name = format!(".new-{:032x}", crate::random::random_bits());
    mkdirat(parent, &*temp_name, Mode::RWXU)?;
    let created = || -> io::Result<OwnedFd> {
        let fd = open_folder(parent, &temp_name)?;
        set_folder_permissions(&fd, sharing)?;
        match renameat_with(parent, &*temp_name, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(fd),
            Err(Errno::EXIST) => Ok(open_folder(parent, name)?),
            // On a file system without such a rename, the folder is created in place.
            Err(Errno::INVAL | Errno::NOSYS) => create_folder_in_place(parent, name, sharing),
            Err(other) => Err(other.into()),
        }
    };
    let created = created();
    // Does not exist any more if it was renamed.
    let _ = unlinkat(parent, &*temp_name, AtFlags::REMOVEDIR);
    created
}

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

/// Shares a directory that we have just created. One that replaced it since is not ours, or not
/// empty.
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

pub(super) fn permission_denied(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason.into())
}

fn not_a_folder_error(path: &Path) -> Error {
    let message = format!(
        "{} is a link or a file, where leasehold needs its own folder; it is not followed. Remove it, and find out who put it there",
        path.display()
    );
    Error::new(ErrorKind::Denied, message)
}
