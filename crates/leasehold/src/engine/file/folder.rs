//! The folder that keeps the locks: how it is created and checked, and its files `clock`, `floor`
//! and `audit.log`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat};
use rustix::process::geteuid;

use super::config::Config;
use super::dir::{self, Dir};
use super::permissions::{Permissions, user_label};
use super::{error, layout};
use crate::types::{Error, ErrorKind, FORMAT, LockName, Result};

/// The maximum size in bytes of the files `floor` and `clock`, which have one line each.
const MAX_ONE_LINE_FILE_SIZE: u64 = 256;

/// An open folder of locks that belongs to this user, or is shared as the URL requests.
#[derive(Debug)]
pub struct Folder {
    root: Dir,
    /// The subfolder with one file per lock.
    pub(super) locks: Dir,
    /// The subfolder with a file and a socket per client.
    pub(super) clients: Dir,
    /// The subfolder with one file per record.
    pub(super) records: Dir,
    /// The id of the machine's present boot. Claims that were written in an earlier boot are void.
    pub boot_id: u128,
}

impl Folder {
    /// Opens or creates the folder and its subfolders, and checks who else can write to it.
    pub fn open(config: &Config) -> Result<Self> {
        let root = open_root(config)?;
        let (locks, clients, records) =
            (root.open_subfolder("locks")?, root.open_subfolder("clients")?, root.open_subfolder("records")?);
        let folder = Self { root, locks, clients, records, boot_id: read_boot_id()? };
        folder.check_clock()?;
        Ok(folder)
    }

    /// Checks that all processes that use the folder read the same clock. Leases end by the time
    /// since boot, which a Linux time namespace can shift. The file `clock` names the boot and the
    /// namespace of the first process; one in another namespace gets an error.
    fn check_clock(&self) -> Result<()> {
        let namespace = fs::metadata("/proc/self/ns/time").map_or(0, |found| found.ino());
        let (boot, path) = (format!("{FORMAT} {:032x} ", self.boot_id), self.root.path("clock"));
        let identity = format!("{boot}{namespace}\n");
        let found =
            self.root.read("clock", MAX_ONE_LINE_FILE_SIZE).map_err(|e| error::io_error_at(&path, "read", e))?;
        match found.and_then(|found| String::from_utf8(found).ok()) {
            Some(found) if found == identity => return Ok(()),
            Some(found) if layout::after_format(&found)?.is_none() => {}
            Some(found) if found.starts_with(&boot) => {
                let message = format!(
                    "{} is in use by processes in another Linux time namespace, whose clock differs; use the folder only from inside one namespace",
                    self.root().display()
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            _ => {}
        }
        let new = format!("clock.{:032x}", crate::random::random_bits());
        self.root.replace(&new, "clock", &identity).map_err(|e| error::io_error_at(&path, "write", e))
    }

    /// The folder's path, without links.
    pub fn root(&self) -> &Path {
        self.root.as_path()
    }

    /// The path of a lock's file.
    pub fn lock_path(&self, name: &LockName) -> PathBuf {
        self.locks.path(&layout::file_name(name))
    }

    /// The path of a client's file, which its process keeps locked.
    pub fn client_path(&self, client: u128) -> PathBuf {
        self.clients.path(&client_file(client))
    }

    /// The number in the file `floor`; 0 if there is none. New lock files start with tokens above
    /// it.
    pub fn token_floor(&self) -> Result<u64> {
        let path = self.root.path("floor");
        let Some(text) =
            self.root.read("floor", MAX_ONE_LINE_FILE_SIZE).map_err(|e| error::io_error_at(&path, "read", e))?
        else {
            return Ok(0);
        };
        let text = layout::after_format(str::from_utf8(&text).unwrap_or_default())?;
        let number = text.and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| error::damaged_file_error(&path, "it is not a number"))
    }

    /// Raises the number in the file `floor` to at least `token`, durably. Called before the
    /// removal of lock files whose tokens are not above `token`.
    pub fn raise_token_floor(&self, token: u64) -> Result<()> {
        let (path, root) = (self.root.path("floor"), self.root());
        let latch = self.root.reopen().map_err(|e| error::io_error_at(root, "open", e))?;
        // If another process is raising it, this fails, and the lock files stay until a later
        // sweep.
        flock(&latch, FlockOperation::NonBlockingLockExclusive).map_err(|e| error::io_error_at(root, "lock", e))?;
        if token <= self.token_floor()? {
            return Ok(());
        }
        let replaced = self.root.replace("floor.new", "floor", &format!("{FORMAT} {token}\n"));
        replaced.and_then(|()| latch.sync_all()).map_err(|e| error::io_error_at(&path, "write", e))
    }

    /// Appends a line to `audit.log`, the log of force releases.
    pub fn append_audit_line(&self, line: &str) -> Result<()> {
        const LOG: &str = "audit.log";
        let append = || self.root.open(LOG, OFlags::WRONLY | OFlags::APPEND);
        let write = || -> io::Result<()> {
            let file = match append() {
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => match self.root.create(LOG) {
                    // The file exists now: this process or another one has created it.
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                    _ => append(),
                },
                other => other,
            };
            file?.write_all(line.as_bytes())
        };
        write().map_err(|e| error::io_error_at(&self.root.path(LOG), "write", e))
    }
}

/// The name of a client's file.
pub fn client_file(client: u128) -> String {
    format!("{client:032x}")
}

/// The name of the socket on which a client receives notifications.
pub fn socket_file(client: u128) -> String {
    format!("{client:032x}.socket")
}

/// Returns the names of at most `limit` files of a folder, which differ from call to call, and the number
/// of files in it (at most 16,384 are counted).
pub(super) fn sample_files(dir: &Dir, limit: usize) -> (Vec<String>, usize) {
    const MAX_COUNTED: usize = 16_384;
    let names = dir.entry_names(MAX_COUNTED).unwrap_or_default();
    let names: Vec<_> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    let from = crate::random::random_bits() as usize % names.len().max(1);
    (names.iter().cycle().skip(from).take(limit.min(names.len())).cloned().collect(), names.len())
}

/// Returns the error that [`Folder::open`] would return for the folder itself, for `leasehold
/// doctor`. Creates nothing.
pub fn check_root(config: &Config) -> Result<()> {
    open_root(&Config { create: false, ..config.clone() }).map(drop)
}

/// Opens the folder itself, and checks it. Creates it if it does not exist and `config.create` is
/// set.
fn open_root(config: &Config) -> Result<Dir> {
    let dir = &config.dir;
    let sharing = Permissions::requested(config);
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let message = format!("{} is not a folder; name one: file:///dir", dir.display());
            return Err(Error::new(ErrorKind::InvalidUrl, message));
        }
        Err(e) if fs::symlink_metadata(dir).is_ok_and(|it| it.is_symlink()) => return Err(dangling_link_error(dir, e)),
        Err(_) if !config.create => return Err(folder_removed_error(dir)),
        Err(_) => create_with_ancestors(dir, &sharing).map_err(|e| error::io_error_at(dir, "make the folder", e))?,
    }
    let path = dir.canonicalize().map_err(|e| error::io_error_at(dir, "resolve", e))?;
    let fd = Dir::open_root(&path).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => add_link_hint(dir, &path, sharing.access_denied_error(&path, e)),
        _ => error::io_error_at(&path, "open", e),
    })?;
    check_folder(config, &fd, &path).map_err(|e| add_link_hint(dir, &path, e))?;
    let found = stat_folder(&fd, &path)?;
    Ok(Dir::new(fd, path, Permissions::of_folder(config, &found)))
}

/// Replaces the error for a folder that was refused, if the URL names it through a symbolic link
/// and it belongs to another user: only that user can change its mode. `dir` is the path in the
/// URL, and `real` the path without links.
fn add_link_hint(dir: &Path, real: &Path, refused: Error) -> Error {
    let direct = std::path::absolute(dir).is_ok_and(|dir| dir == real);
    let owner = fs::metadata(real).map(|found| found.uid()).ok().filter(|owner| *owner != geteuid().as_raw());
    let Some(owner) = owner.filter(|_| !direct && refused.kind() == ErrorKind::Denied) else { return refused };
    let (dir, display, owner) = (dir.display(), real.display(), user_label(owner));
    let message = format!(
        "{dir} leads through a link to {display}, which belongs to user {owner}; this process runs as user {us}. Name a folder of its own (file:///dir), \
         or have user {owner} share {display} with a group of both users, and name it without the link: file://{display}?mode=0770",
        us = user_label(geteuid().as_raw())
    );
    Error::new(ErrorKind::Denied, message)
}

/// The error if the URL names a symbolic link whose target does not exist or is not accessible.
fn dangling_link_error(dir: &Path, cause: io::Error) -> Error {
    let target = fs::read_link(dir).unwrap_or_default();
    let target = dir.parent().unwrap_or(Path::new("/")).join(target);
    let nearest = target.ancestors().find_map(|above| Some((above, fs::metadata(above).ok()?.uid())));
    let (dir, display) = (dir.display(), target.display());
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            let owner = nearest.map_or_else(String::new, |(above, owner)| {
                format!("; {} belongs to user {}", above.display(), user_label(owner))
            });
            let message = format!(
                "{dir} is a link to {display}, which this process (user {}) may not access{owner}. Name a folder of its own: file:///dir",
                user_label(geteuid().as_raw())
            );
            Error::new(ErrorKind::Denied, message).caused_by(cause)
        }
        _ => {
            let message =
                format!("{dir} is a link to {display}, which cannot be used: make that folder, or name another");
            Error::new(ErrorKind::InvalidUrl, message).caused_by(cause)
        }
    }
}

/// Creates the folder and its ancestors.
fn create_with_ancestors(dir: &Path, sharing: &Permissions) -> io::Result<()> {
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if fs::metadata(above).is_ok_and(|found| !found.is_dir()) {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    // If the folder is shared, other users must be able to enter its parents.
    DirBuilder::new().recursive(true).mode(if sharing.mode.is_some() { 0o755 } else { 0o700 }).create(above)?;
    let name = dir.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
    let parent = openat(CWD, above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    dir::create_folder(&parent, name, sharing)?;
    // Syncs the parent, so that the new folder survives a loss of power, and with it the tokens in
    // it. This user may not be allowed to open the parent: then the sync is skipped.
    let _ = File::open(above).and_then(|above| above.sync_all());
    Ok(())
}

/// The error if the folder was removed while in use. The engine does not create a new one, because
/// the old one may be put back at any time.
fn folder_removed_error(dir: &Path) -> Error {
    let message = format!(
        "cannot make a lock in {}: the folder was removed while it was in use. Put it back, or make an empty one, and it is used again; tokens continue above those that this process has seen",
        dir.display()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The metadata of an open folder; `path` is for the error message.
fn stat_folder(fd: &OwnedFd, path: &Path) -> Result<Stat> {
    fstat(fd).map_err(|e| error::io_error_at(path, "look at", e))
}

/// Refuses a folder that other users could tamper with, or that is not on a local file system.
fn check_folder(config: &Config, fd: &OwnedFd, path: &Path) -> Result<()> {
    let (found, folder_text) = (stat_folder(fd, path)?, path.display());
    let sharing = Permissions::of_folder(config, &found);
    sharing.check_owner(&found, path)?;
    match config.mode {
        Some(mode) => {
            if let Err(refused) = Permissions::check_folder(config, mode, &found, path)
                && !sharing.share_private_folder(config, fd, path)?
            {
                return Err(refused);
            }
        }
        None if found.st_mode & 0o022 != 0 => {
            let message = format!(
                "{folder_text} can be written by others (mode {:04o}); remove that permission (chmod go-w), or share it knowingly with ?mode=0770",
                found.st_mode & 0o7777
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        None => {}
    }
    if check_local(path)? == FileSystemKind::Fuse {
        tracing::warn!(dir = %folder_text, "a FUSE file system: if another host shares it, the locks do not exclude that host");
    }
    Ok(())
}

/// The kind of file system that a folder is on. Network file systems are refused and have no
/// variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// Not known to be shared between hosts.
    Local,
    /// FUSE: a user program implements the file system, and may share it between hosts.
    Fuse,
}

/// The kind of file system that `dir` is on.
///
/// # Errors
/// `Unsupported` for a network file system, on which `flock` does not exclude other hosts.
pub fn check_local(dir: &Path) -> Result<FileSystemKind> {
    const NETWORK_FILE_SYSTEMS: [(u64, &str); 9] = [
        (0x6969, "NFS"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB"),
        (0x0102_1997, "9p"),
        (0x00C3_6400, "Ceph"),
        (0x0BD0_0BD0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x7461_636F, "OCFS2"),
        (0x5346_414F, "AFS"),
    ];
    const FUSE: u64 = 0x6573_5546;
    let found = rustix::fs::statfs(dir).map_err(|e| error::io_error_at(dir, "look at", e))?;
    let kind = found.f_type as u64 & 0xFFFF_FFFF;
    match NETWORK_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind) {
        None if kind == FUSE => Ok(FileSystemKind::Fuse),
        None => Ok(FileSystemKind::Local),
        Some((_, what)) => {
            let message = format!(
                "{} is on {what}: the kernels of two hosts do not see each other's locks there; name a local folder",
                dir.display()
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// The kernel's id of the present boot.
fn read_boot_id() -> Result<u128> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|e| error::io_error_at(path, "read", e))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|e| {
        Error::new(ErrorKind::Unavailable, "the kernel's boot id cannot be parsed, so a reboot would not be noticed")
            .caused_by(e)
    })
}
