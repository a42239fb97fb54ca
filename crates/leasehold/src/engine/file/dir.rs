//! A directory by its handle. Everything in it is named relative to the handle and reached through no link, so that a member of the
//! group, who may replace any entry, cannot make us read, write or share what lies elsewhere.

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
use super::sharing::Sharing;
use crate::error::{Error, ErrorKind, Result};

/// What we hold a directory by: it can be listed, locked and synced.
const HANDLE: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// No link is followed, and a pipe in a file's place does not stop us.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// For how many milliseconds a file may have the name that it was made under beside its own.
const NAMING: u32 = 10;

/// A directory, open.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    sharing: Sharing,
}

impl Dir {
    /// Opens a directory by its path, which an administrator chose and the caller has resolved: a link that takes its place since then is refused.
    pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
        Ok(openat(CWD, path, HANDLE | OFlags::NOFOLLOW, Mode::empty())?)
    }

    pub(super) fn new(fd: OwnedFd, path: PathBuf, sharing: Sharing) -> Self {
        Self { fd, path, sharing }
    }

    /// Opens a directory in this one; makes it, if it is not there.
    pub(super) fn subfolder(&self, name: &str) -> Result<Self> {
        let path = self.path(name);
        let fd = match open_folder(&self.fd, name) {
            // Its name must outlive a loss of power, or all tokens in it are lost.
            Err(Errno::NOENT) => make_folder(&self.fd, name, &self.sharing).and_then(|fd| self.sync().map(|()| fd)),
            other => other.map_err(Into::into),
        };
        let fd = fd.map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOTDIR | Errno::LOOP) => not_a_folder(&path),
            Some(Errno::ACCESS) => self.sharing.denied(&path, e),
            _ => error::at(&path, "open", e),
        })?;
        self.sharing.check_owner(&fstat(&fd).map_err(|e| error::at(&path, "look at", e))?, &path)?;
        Ok(Self { fd, path, sharing: self.sharing })
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, to be shown and compared. Nothing is opened by it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A path to an entry through our handle, for calls that know no handles. It is short, as a socket's must be.
    pub(super) fn path_by_handle(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    pub(super) fn is_shared(&self) -> bool {
        self.sharing.mode.is_some()
    }

    /// Opens a file that is there: a file of its own, not a link, nor a second name of another file.
    pub(super) fn open(&self, name: &str, how: OFlags) -> io::Result<File> {
        let file = File::from(openat(&self.fd, name, how | SAFE, Mode::empty())?);
        let mut found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refused("it is not a file, and was not made by us: remove it"));
        }
        // One that is being named, where the file system cannot do that at once, has two names for a moment.
        for _ in 0..NAMING {
            if found.st_nlink > 1 {
                std::thread::sleep(Duration::from_millis(1));
                found = fstat(&file)?;
            }
        }
        if found.st_nlink > 1 {
            let why = format!("it has {} names, so it may be another's file: remove this one", found.st_nlink);
            return Err(refused(why));
        }
        if self.sharing.mode.is_none() && found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(format!("it belongs to user {}, and the folder is private", found.st_uid)));
        }
        Ok(file)
    }

    /// Makes a file that must not be there yet, with the folder's group and permissions.
    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | SAFE;
        let file = File::from(openat(&self.fd, name, how, Mode::RUSR | Mode::WUSR)?);
        self.sharing.share_file(&file)?;
        Ok(file)
    }

    /// Makes a file under a passing name that only one process uses at a time; what a dead one left is taken away.
    pub(super) fn create_anew(&self, name: &str) -> io::Result<File> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.create(name)
    }

    /// All that is in a file, which has at most `most` bytes; `None` if there is none.
    pub(super) fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open(name, OFlags::RDONLY) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} bytes")));
        }
        Ok(Some(bytes))
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// What an entry is; of a link the link itself.
    pub(super) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Gives a file another name; what had that name is gone.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Replaces a file whole, and on disk. In a sticky folder only its owner may take its name: then it is overwritten, by one write that
    /// lies in one sector.
    pub(super) fn replace(&self, draft: &str, name: &str, content: &str) -> io::Result<()> {
        let replaced = self.create_anew(draft).and_then(|mut file| {
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
            self.rename(draft, name)
        });
        match replaced {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.exists(name) => {
                // Ours, if it was made at all.
                let _ = self.remove(draft);
                let file = self.open(name, OFlags::WRONLY)?;
                file.write_all_at(content.as_bytes(), 0)?;
                file.set_len(content.len() as u64)?;
                file.sync_all()
            }
            other => other,
        }
    }

    /// Gives a file a name that is free. It never has two: with two it would be refused as another's.
    pub(super) fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // A file system without such a rename. Those who open it between the two calls wait a moment.
                linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                self.remove(from)
            }
            other => Ok(other?),
        }
    }

    /// A socket by a handle of its own, and not by what took its place.
    pub(super) fn socket(&self, name: &str) -> io::Result<OwnedFd> {
        let fd = openat(&self.fd, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&fd)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket if found.st_nlink <= 1 => Ok(fd),
            _ => Err(refused("it is not a socket of its own")),
        }
    }

    /// Gives a socket of ours the folder's group and permissions.
    pub(super) fn share_socket(&self, name: &str) -> io::Result<()> {
        let socket = self.socket(name)?;
        if fstat(&socket)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused("it is not the socket that we made"));
        }
        self.sharing.share_socket(&socket)
    }

    /// The names of what is in it, at most `most`.
    pub(super) fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
        names.take(most).map(|name| Ok(OsString::from_vec(name?))).collect()
    }

    /// A handle of its own, so that its `flock` is held against all others of this process, too.
    pub(super) fn again(&self) -> io::Result<File> {
        Ok(File::from(openat(&self.fd, ".", HANDLE, Mode::empty())?))
    }

    /// Makes the names in it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a directory in another, and no link to one.
fn open_folder(parent: &impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, HANDLE | OFlags::NOFOLLOW, Mode::empty())
}

/// Makes a directory under a passing name, and gives it its own once its group and mode are right: nobody finds it half-made. Opens the
/// one that is there, if another process was quicker.
pub(super) fn make_folder(parent: &impl AsFd, name: &str, sharing: &Sharing) -> io::Result<OwnedFd> {
    let draft = format!(".new-{:032x}", crate::random::bits());
    mkdirat(parent, &*draft, Mode::RWXU)?;
    let made = || -> io::Result<OwnedFd> {
        let fd = open_folder(parent, &draft)?;
        share_folder(&fd, sharing)?;
        match renameat_with(parent, &*draft, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(fd),
            Err(Errno::EXIST) => Ok(open_folder(parent, name)?),
            // A file system without such a rename: the folder is made in place.
            Err(Errno::INVAL | Errno::NOSYS) => make_folder_in_place(parent, name, sharing),
            Err(other) => Err(other.into()),
        }
    };
    let made = made();
    // Gone already, if it has its name.
    let _ = unlinkat(parent, &*draft, AtFlags::REMOVEDIR);
    made
}

fn make_folder_in_place(parent: &impl AsFd, name: &str, sharing: &Sharing) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => {
            let fd = open_folder(parent, name)?;
            share_folder(&fd, sharing)?;
            Ok(fd)
        }
        Err(Errno::EXIST) => Ok(open_folder(parent, name)?),
        Err(other) => Err(other.into()),
    }
}

/// Shares a directory that we have just made. Another that took its place meanwhile is not ours, or not empty.
fn share_folder(fd: &OwnedFd, sharing: &Sharing) -> io::Result<()> {
    let Some(mode) = sharing.folder_mode() else { return Ok(()) };
    let found = fstat(fd)?;
    let entries = rustix::fs::Dir::read_from(fd)?.take(3).count();
    if found.st_uid != rustix::process::geteuid().as_raw() || entries > 2 {
        return Err(refused("it is not the folder that we made"));
    }
    if let Some(group) = sharing.group_to_set(found.st_gid) {
        fchown(fd, None, Some(group))?;
    }
    Ok(fchmod(fd, mode)?)
}

pub(super) fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

fn not_a_folder(path: &Path) -> Error {
    let message = format!(
        "{} is a link or a file, where a folder of ours must be; it is not followed. Remove it, and find out who put it there",
        path.display()
    );
    Error::new(ErrorKind::Denied, message)
}
