//! Runs a server as its required user, when the tests run as root.

use std::{fs, os::unix::fs::chown, os::unix::process::CommandExt, path::Path, process::Command};

use crate::{Error, Result};

/// The user and group ids to run a server as; `None` for those of the tests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunAsUser(Option<(u32, u32)>);

impl RunAsUser {
    /// Looks up `name`. Without root privileges, or without a name, servers run as the user of the
    /// tests.
    pub(super) fn find(name: Option<&str>, package: &str) -> Result<Self> {
        let Some(name) = name.filter(|_| rustix::process::geteuid().is_root()) else {
            return Ok(Self::default());
        };
        let users = fs::read_to_string("/etc/passwd").map_err(Error::io("reading /etc/passwd"))?;
        let found = users.lines().find_map(|line| parse_passwd_line(line, name));
        match found {
            Some(ids) => Ok(Self(Some(ids))),
            None => Err(Error::UnknownUser { user: name.to_owned(), package: package.to_owned() }),
        }
    }

    /// Makes `command` run as this user.
    pub(super) fn apply_to(self, command: &mut Command) {
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives `folder` to this user.
    pub(super) fn give_ownership(self, folder: &Path) -> Result<()> {
        let Some((uid, gid)) = self.0 else {
            return Ok(());
        };
        chown(folder, Some(uid), Some(gid)).map_err(Error::io(format!("changing the owner of {}", folder.display())))
    }
}

/// The user and group ids in a line of `/etc/passwd`; `None` if it is not for the user `name`.
/// Columns: name, password, user id, group id, …
fn parse_passwd_line(line: &str, name: &str) -> Option<(u32, u32)> {
    let mut columns = line.split(':');
    if columns.next()? != name {
        return None;
    }
    let mut ids = columns.skip(1).map(str::parse);
    Some((ids.next()?.ok()?, ids.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_user_is_found() {
        let line = "redis:x:104:107::/var/lib/redis:/usr/sbin/nologin";
        assert_eq!(parse_passwd_line(line, "redis"), Some((104, 107)));
        assert_eq!(parse_passwd_line(line, "red"), None);
    }
}
