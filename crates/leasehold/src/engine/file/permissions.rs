//! Who may use a folder and its content: this user only, a group, or all users of the host.
//!
//! Group and permissions are set only on what this process has just made, by its handle. Existing
//! files keep theirs, with one exception: a private folder that we made and that is now opened with
//! `mode=` ([`Permissions::share_private_folder`]).

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

/// How a folder is shared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permissions {
    /// The permissions in the URL; `None`: private.
    pub(super) mode: Option<u32>,
    /// The group of new files; `None`: the system's default.
    group: Option<u32>,
}

impl Permissions {
    /// For a folder that is about to be created.
    pub(super) fn requested(config: &Config) -> Self {
        Self { mode: config.mode, group: config.group }
    }

    /// For an existing folder: new files in it get its group, if we are allowed to set it.
    pub(super) fn of_folder(config: &Config, root: &Stat) -> Self {
        let of_root = config.mode.filter(|_| is_member(root.st_gid)).map(|_| root.st_gid);
        Self { mode: config.mode, group: config.group.or(of_root) }
    }

    /// The permissions of a folder. New entries inherit its group.
    pub(super) fn folder_mode(&self) -> Option<Mode> {
        let hand_down = |mode: u32| if mode & 0o070 == 0 { mode } else { mode | 0o2000 };
        self.mode.map(|mode| Mode::from_raw_mode(hand_down(mode)))
    }

    fn file_mode(&self) -> Option<Mode> {
        self.mode.map(|mode| Mode::from_raw_mode(mode & 0o666))
    }

    /// The group to set on a file that has the group `found`.
    pub(super) fn group_to_set(&self, found: u32) -> Option<Gid> {
        self.group.filter(|group| *group != found).map(Gid::from_raw)
    }

    /// Shares a file that we have just created.
    pub(super) fn share_file(&self, file: &File) -> io::Result<()> {
        let Some(mode) = self.file_mode() else { return Ok(()) };
        if let Some(group) = self.group_to_set(fstat(file)?.st_gid) {
            fchown(file, None, Some(group))?;
        }
        Ok(fchmod(file, mode)?)
    }

    /// Shares a socket of ours. A handle that only names it can be changed through /proc, where no
    /// other entry can replace it.
    pub(super) fn share_socket(&self, socket: &OwnedFd) -> io::Result<()> {
        if let Some(group) = self.group_to_set(fstat(socket)?.st_gid) {
            chownat(socket, "", None, Some(group), AtFlags::EMPTY_PATH)?;
        }
        let mode = self.file_mode().unwrap_or(Mode::RUSR | Mode::WUSR);
        Ok(chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), mode)?)
    }

    /// Checks that the content of a private folder belongs to this user.
    pub(super) fn check_owner(&self, found: &Stat, path: &Path) -> Result<()> {
        let own_uid = geteuid().as_raw();
        if self.mode.is_some() || found.st_uid == own_uid {
            return Ok(());
        }
        let message = format!(
            "{} belongs to user {}, and we are user {own_uid}; name a folder of our own (file:///dir), or share this one knowingly \
             with ?mode=0770",
            path.display(),
            found.st_uid
        );
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// Advice about a folder that we may not enter.
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
            "cannot open {display}: it belongs to user {} and group {} (mode {:04o}), and we are user {} in the groups {}. Share it with a \
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

    /// Refuses an existing folder that is not shared as the URL requests. Its administrator sets
    /// its mode.
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

    /// Shares a folder that this engine created as private, so that no other user could put a file
    /// into it. It changes no other folder, and none behind a link, which another user may have put
    /// there.
    pub(super) fn share_private_folder(&self, config: &Config, root: &OwnedFd, path: &Path) -> Result<bool> {
        let (private, shared) = (Permissions { mode: None, group: None }, *self);
        let found = fstat(root).map_err(|e| error::io_error_at(path, "look at", e))?;
        let same = |other: OwnedFd| fstat(other).is_ok_and(|o| (o.st_dev, o.st_ino) == (found.st_dev, found.st_ino));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let direct = rustix::fs::openat2(rustix::fs::CWD, &config.dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .is_ok_and(same);
        let is_private = found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0;
        let again = root.try_clone().map_err(|e| error::io_error_at(path, "open", e))?;
        let folder = Dir::new(again, path.to_owned(), private);
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

    fn share_subfolder(&self, folder: &Dir) -> io::Result<()> {
        let Some(mode) = self.folder_mode() else { return Ok(()) };
        if let Some(group) = self.group_to_set(fstat(folder)?.st_gid) {
            fchown(folder, None, Some(group))?;
        }
        Ok(fchmod(folder, mode)?)
    }
}

/// A user's name, if /etc/passwd has it, and number.
pub(super) fn user_label(number: u32) -> String {
    let all = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = all.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    });
    found.map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
}

/// The groups of this process.
fn process_groups() -> Vec<u32> {
    let mut groups: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    groups.push(getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Whether we may give a file to this group.
fn is_member(group: u32) -> bool {
    geteuid().is_root() || process_groups().contains(&group)
}
