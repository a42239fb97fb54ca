//! The folder: made, checked, and what else is kept in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::config::Config;
use super::{error, wire};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// A folder that was found fit to keep locks in.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    locks: PathBuf,
    clients: PathBuf,
    records: PathBuf,
    /// Keeps the clients' folder open: sockets are named through it, since a socket's path must be short.
    clients_fd: OwnedFd,
    mode: Option<u32>,
    /// Which boot this is: claims of an earlier one are void.
    pub(super) boot: u128,
}

impl Folder {
    pub(super) fn open(config: &Config) -> Result<Self> {
        let root = &config.dir;
        make(root, config.mode)?;
        check(root, config.mode)?;
        let root = root.canonicalize().map_err(|e| error::at(root, "resolve", e))?;
        let (locks, clients, records) = (root.join("locks"), root.join("clients"), root.join("records"));
        for dir in [&locks, &clients, &records] {
            make(dir, config.mode)?;
        }
        let clients_fd = File::open(&clients).map_err(|e| error::at(&clients, "open", e))?.into();
        let folder = Self { root, locks, clients, records, clients_fd, mode: config.mode, boot: boot()? };
        folder.one_clock()?;
        Ok(folder)
    }

    /// Leases are read on the clock since boot, which a time namespace may set: all who use the folder must be in the same one.
    fn one_clock(&self) -> Result<()> {
        let namespace = fs::metadata("/proc/self/ns/time").map_or(0, |found| found.ino());
        let (boot, path) = (format!("{:032x} ", self.boot), self.root.join("clock"));
        let ours = format!("{boot}{namespace}\n");
        match fs::read_to_string(&path) {
            Ok(found) if found == ours => return Ok(()),
            Ok(found) if found.starts_with(&boot) => {
                let message = format!(
                    "{} is in use from another time namespace, whose clock is not ours; use it from one side only",
                    self.root.display()
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            _ => {}
        }
        let new = self.root.join(format!("clock.{:032x}", crate::random::bits()));
        let write = || -> io::Result<()> {
            let mut file = self.open_file(&new, OpenOptions::new().write(true).create_new(true))?;
            file.write_all(ours.as_bytes())?;
            fs::rename(&new, &path)
        };
        write().map_err(|e| error::at(&path, "write", e))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(super) fn clients(&self) -> &Path {
        &self.clients
    }

    pub(super) fn lock_path(&self, name: &LockName) -> PathBuf {
        self.locks.join(wire::file_name(name))
    }

    pub(super) fn records(&self) -> &Path {
        &self.records
    }

    pub(super) fn record_path(&self, name: &LockName) -> PathBuf {
        self.records.join(wire::file_name(name))
    }

    pub(super) fn client_path(&self, client: u128) -> PathBuf {
        self.clients.join(format!("{client:032x}"))
    }

    /// A socket's path, short however deep the folder lies.
    pub(super) fn bell_path(&self, client: u128) -> PathBuf {
        let name = format!("{client:032x}.bell");
        if cfg!(target_os = "linux") {
            PathBuf::from(format!("/proc/self/fd/{}/{name}", self.clients_fd.as_fd().as_raw_fd()))
        } else {
            self.clients.join(name)
        }
    }

    /// Opens a file of ours, with the folder's permissions.
    pub(super) fn open_file(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.mode(self.mode.map_or(0o600, |mode| mode & 0o666)).open(path)?;
        // The umask may have taken some away, or it was private so far.
        if let Some(mode) = self.mode.map(|mode| mode & 0o666)
            && let found = file.metadata()?
            && found.mode() & 0o777 != mode
            && found.uid() == rustix::process::geteuid().as_raw()
        {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Gives a file of ours the folder's permissions.
    pub(super) fn share(&self, path: &Path) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(self.mode.map_or(0o600, |mode| mode & 0o666)))
    }

    /// Makes the name of a new file durable.
    pub(super) fn sync_locks(&self) -> io::Result<()> {
        File::open(&self.locks)?.sync_all()
    }

    /// No new lock file may use a token up to this one.
    pub(super) fn floor(&self) -> Result<u64> {
        let path = self.root.join("floor");
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| error::damaged(&path, "it is no number")),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(other) => Err(error::at(&path, "read", other)),
        }
    }

    /// Raises the floor, for good, before a lock file whose tokens reached `token` is removed.
    pub(super) fn raise_floor(&self, token: u64) -> Result<()> {
        let path = self.root.join("floor");
        let latch = File::open(&self.root).map_err(|e| error::at(&self.root, "open", e))?;
        // Whoever is in there may stand still: then the file to be removed stays for another time.
        flock(&latch, FlockOperation::NonBlockingLockExclusive).map_err(|e| error::at(&self.root, "lock", e))?;
        if token <= self.floor()? {
            return Ok(());
        }
        let new = self.root.join("floor.new");
        let write = || -> io::Result<()> {
            let mut file = self.open_file(&new, OpenOptions::new().write(true).create(true).truncate(true))?;
            writeln!(file, "{token}")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            latch.sync_all()
        };
        write().map_err(|e| error::at(&path, "write", e))
    }

    /// Adds a line to the record of evictions.
    pub(super) fn audit(&self, line: &str) -> Result<()> {
        let path = self.root.join("audit.log");
        let write = || self.open_file(&path, OpenOptions::new().append(true).create(true))?.write_all(line.as_bytes());
        write().map_err(|e| error::at(&path, "write", e))
    }
}

/// The names of some files of a folder, at most `most`, others at each call where there are many.
pub(super) fn some_of(dir: &Path, most: usize) -> Vec<std::ffi::OsString> {
    const LISTED: usize = 16_384;
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names: Vec<_> = entries.flatten().take(LISTED).map(|entry| entry.file_name()).collect();
    let from = crate::random::bits() as usize % names.len().max(1);
    names.iter().cycle().skip(from).take(most.min(names.len())).cloned().collect()
}

fn make(dir: &Path, mode: Option<u32>) -> Result<()> {
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return adopt(dir, mode),
        Ok(_) => {
            let message = format!("{} is not a folder; name one: file:///dir", dir.display());
            return Err(Error::new(ErrorKind::InvalidUrl, message));
        }
        Err(_) => {}
    }
    let made = DirBuilder::new().recursive(true).mode(mode.unwrap_or(0o700)).create(dir);
    made.map_err(|e| error::at(dir, "make the folder", e))?;
    if let Some(above) = dir.parent() {
        // Its name must outlive a loss of power, or all tokens in it are lost. Not everybody may open what is above.
        let _ = File::open(above).and_then(|above| above.sync_all());
    }
    if let Some(mode) = mode {
        // The umask may have taken some away.
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(|e| error::at(dir, "share", e))?;
    }
    Ok(())
}

/// Shares a folder that was private so far, if it is ours to share.
fn adopt(dir: &Path, mode: Option<u32>) -> Result<()> {
    let Some(mode) = mode else { return Ok(()) };
    let found = fs::metadata(dir).map_err(|e| error::at(dir, "look at", e))?;
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o777 == mode {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(|e| error::at(dir, "share", e))
}

/// Refuses a folder that others could meddle with, or that no local kernel watches over.
fn check(dir: &Path, mode: Option<u32>) -> Result<()> {
    let found = fs::metadata(dir).map_err(|e| error::at(dir, "look at", e))?;
    let us = rustix::process::geteuid().as_raw();
    let shown = dir.display();
    if mode.is_none() && found.uid() != us {
        let message = format!(
            "{shown} belongs to user {}, and we are user {us}; name a folder of our own (file:///dir), or share this one \
             knowingly with ?mode=0770",
            found.uid()
        );
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if mode.is_none() && found.mode() & 0o022 != 0 {
        let message = format!(
            "{shown} can be written by others (mode {:04o}); take that away (chmod go-w), or share it knowingly with ?mode=0770",
            found.mode() & 0o7777
        );
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if local(dir)? == Kind::Fuse {
        tracing::warn!(dir = %dir.display(), "a FUSE file system: if it is shared with another host, locks are not");
    }
    Ok(())
}

/// On what a folder lies, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing that is known to be shared between hosts.
    Local,
    /// Anything: a program decides.
    Fuse,
}

#[cfg(target_os = "linux")]
pub(super) fn local(dir: &Path) -> Result<Kind> {
    const NETWORKED: [(u64, &str); 9] = [
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
    let found = rustix::fs::statfs(dir).map_err(|e| error::at(dir, "look at", e))?;
    let kind = found.f_type as u64 & 0xFFFF_FFFF;
    match NETWORKED.iter().find(|(magic, _)| *magic == kind) {
        None if kind == FUSE => Ok(Kind::Fuse),
        None => Ok(Kind::Local),
        Some((_, what)) => {
            let message = format!(
                "{} is on {what}: the kernels of two hosts do not see each other's locks there; name a local folder",
                dir.display()
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn local(_: &Path) -> Result<Kind> {
    Ok(Kind::Local)
}

#[cfg(target_os = "linux")]
fn boot() -> Result<u128> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|e| error::at(path, "read", e))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|e| {
        Error::new(ErrorKind::Unavailable, "the kernel's boot id cannot be read, so a reboot would not be noticed")
            .caused_by(e)
    })
}

#[cfg(not(target_os = "linux"))]
fn boot() -> Result<u128> {
    Err(Error::new(ErrorKind::Unsupported, "needs Linux: it relies on its boot id and inotify"))
}
