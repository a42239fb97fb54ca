//! Who may use a folder and its content: this user only, a group, or all users of the host.
//!
//! Group and permissions are set only on files and folders that this process has just created,
//! through an open handle. Existing ones keep theirs, with one exception: a private folder of this
//! user that is now opened with `mode=` ([`Permissions::share_private_folder`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chmod, chownat, fchmod, fchown, fstat};
use rustix::process::{getegid, geteuid, getgroups};

use super::config::Config;
use super::dir::Dir;
use super::error;
use crate::types::{Error, ErrorKind, Result};

/// The mode and group that new files and folders get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permissions {
    /// The permission bits from `mode=` in the URL. `None`: the folder is private to this user.
    pub(super) mode: Option<u32>,
    /// The group of new files; `None`: the one that the system gives them.
    group: Option<u32>,
}

impl Permissions {
    /// The permissions that the URL requests, for a folder that is about to be created.
    pub(super) fn requested(config: &Config) -> Self {
        Self { mode: config.mode, group: config.group }
    }

    /// The permissions for new files in an existing folder with the metadata `root`. If it is
    /// shared and the URL names no group, they get the folder's group, if this user may set it.
    pub(super) fn of_folder(config: &Config, root: &Stat) -> Self {
        let root_group = config.mode.filter(|_| is_member(root.st_gid)).map(|_| root.st_gid);
        Self { mode: config.mode, group: config.group.or(root_group) }
    }

    /// The mode of a new folder: with the setgid bit if the group may use it, so that entries
    /// inherit the group. `None`: private.
    pub(super) fn folder_mode(&self) -> Option<Mode> {
        let with_setgid = |mode: u32| if mode & 0o070 == 0 { mode } else { mode | 0o2000 };
        self.mode.map(|mode| Mode::from_raw_mode(with_setgid(mode)))
    }

    /// The mode of a new file: that of the URL, without the right to execute. `None`: private.
    fn file_mode(&self) -> Option<Mode> {
        self.mode.map(|mode| Mode::from_raw_mode(mode & 0o666))
    }

    /// The group to set on a new file that the system gave the group `found`; `None` if that is
    /// right.
    pub(super) fn group_to_set(&self, found: u32) -> Option<Gid> {
        self.group.filter(|group| *group != found).map(Gid::from_raw)
    }

    /// Sets the group and mode of a file that this process has just created; does nothing if
    /// private.
    pub(super) fn share_file(&self, file: &File) -> io::Result<()> {
        let Some(mode) = self.file_mode() else { return Ok(()) };
        if let Some(group) = self.group_to_set(fstat(file)?.st_gid) {
            fchown(file, None, Some(group))?;
        }
        Ok(fchmod(file, mode)?)
    }

    /// Sets the group and mode of a socket that this process created. `socket` is an `O_PATH`
    /// handle, whose mode can be set only by way of /proc/self/fd. That reaches the socket even if
    /// another entry has replaced it.
    pub(super) fn share_socket(&self, socket: &OwnedFd) -> io::Result<()> {
        if let Some(group) = self.group_to_set(fstat(socket)?.st_gid) {
            chownat(socket, "", None, Some(group), AtFlags::EMPTY_PATH)?;
        }
        let mode = self.file_mode().unwrap_or(Mode::RUSR | Mode::WUSR);
        Ok(chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), mode)?)
    }

    /// Refuses a private folder, or a part of it, that belongs to another user. `found` is its
    /// metadata.
    pub(super) fn check_owner(&self, found: &Stat, path: &Path) -> Result<()> {
        let own_uid = geteuid().as_raw();
        if self.mode.is_some() || found.st_uid == own_uid {
            return Ok(());
        }
        let message = format!(
            "{} belongs to user {}; this process runs as user {own_uid}. Name a folder of its own (file:///dir), or share this one knowingly \
             with ?mode=0770",
            path.display(),
            found.st_uid
        );
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// The error if this user may not open a folder, with advice on how to share it.
    pub(super) fn access_denied_error(&self, path: &Path, cause: io::Error) -> Error {
        let display = path.display();
        let Ok(found) = rustix::fs::stat(path) else { return error::io_error_at(path, "open", cause) };
        if self.mode.is_none() {
            return match self.check_owner(&found, path) {
                Err(error) => error,
                Ok(()) => error::io_error_at(path, "open", cause),
            };
        }
        let message = format!(
            "cannot open {display}: it belongs to user {} and group {} (mode {:04o}); this process runs as user {} in the groups {}. Share it with a \
             group that all its users are in: chgrp -R GROUP {display} && chmod -R g+rwX {display}; or let the first user make it with \
             &group=GROUP in the URL",
            found.st_uid,
            found.st_gid,
            found.st_mode & 0o7777,
            geteuid().as_raw(),
            process_groups().iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        );
        Error::new(ErrorKind::Denied, message).caused_by(cause)
    }

    /// Refuses an existing folder whose group or mode (in `found`) is not what the URL requests
    /// with `mode`. The engine does not change them; the error states the command that does.
    pub(super) fn check_folder(config: &Config, mode: u32, found: &Stat, path: &Path) -> Result<()> {
        let (display, found_mode) = (path.display(), found.st_mode & 0o7777);
        if found_mode & 0o007 == 0o007 {
            return Ok(());
        }
        if let Some(group) = config.group.filter(|group| *group != found.st_gid) {
            let message = format!(
                "{display} belongs to group {}, and the URL requires group {group}: chgrp {group} {display} && chmod {:04o} {display}",
                found.st_gid,
                mode | 0o2000
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let wanted = mode & 0o077;
        if found_mode & wanted != wanted {
            let message = format!(
                "{display} has mode {found_mode:04o}, and the URL requires {mode:04o}. The mode of an existing folder is not changed; \
                 do it: chgrp GROUP {display} && chmod {:o} {display}",
                mode | 0o2000
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        Ok(())
    }

    /// Shares a private folder of this user that this engine created, and everything in it, as the
    /// URL now requests. No other user could have put anything into such a folder. `false`: it is
    /// another folder, or the URL names it through a link that another user may control; it is
    /// unchanged.
    pub(super) fn share_private_folder(&self, config: &Config, root: &OwnedFd, path: &Path) -> Result<bool> {
        let (private, shared) = (Permissions { mode: None, group: None }, *self);
        let found = fstat(root).map_err(|e| error::io_error_at(path, "look at", e))?;
        let is_same_folder =
            |other: OwnedFd| fstat(other).is_ok_and(|o| (o.st_dev, o.st_ino) == (found.st_dev, found.st_ino));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let direct = rustix::fs::openat2(rustix::fs::CWD, &config.dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .is_ok_and(is_same_folder);
        let is_private = found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0;
        let handle = root.try_clone().map_err(|e| error::io_error_at(path, "open", e))?;
        let folder = Dir::new(handle, path.to_owned(), private);
        if !direct || !is_private || !folder.exists("clock") || !folder.exists("locks") {
            return Ok(false);
        }
        let change = || -> io::Result<()> {
            for name in ["locks", "clients", "records"] {
                let Ok(inner) = folder.open_subfolder(name) else { continue };
                shared.share_files(&inner)?;
                shared.share_subfolder(&inner)?;
            }
            shared.share_files(&folder)?;
            shared.share_subfolder(&folder)
        };
        change().map_err(|e| error::io_error_at(path, "share", e))?;
        Ok(true)
    }

    /// Sets the group and mode of all regular files in a folder.
    fn share_files(&self, folder: &Dir) -> io::Result<()> {
        for name in folder.entry_names(usize::MAX)? {
            let Some(name) = name.to_str() else { continue };
            let is_file =
                folder.stat(name).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
            if is_file && let Ok(file) = folder.open(name, OFlags::RDONLY) {
                self.share_file(&file)?;
            }
        }
        Ok(())
    }

    /// Sets the group and mode of the folder itself.
    fn share_subfolder(&self, folder: &Dir) -> io::Result<()> {
        let Some(mode) = self.folder_mode() else { return Ok(()) };
        if let Some(group) = self.group_to_set(fstat(folder)?.st_gid) {
            fchown(folder, None, Some(group))?;
        }
        Ok(fchmod(folder, mode)?)
    }
}

/// A user for messages: `name (number)` if /etc/passwd has the name, else the number.
pub(super) fn user_label(number: u32) -> String {
    let all = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = all.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    });
    found.map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
}

/// The numbers of all groups that this process is in.
fn process_groups() -> Vec<u32> {
    let mut groups: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    groups.push(getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Whether this process may give its files to this group.
fn is_member(group: u32) -> bool {
    geteuid().is_root() || process_groups().contains(&group)
}
