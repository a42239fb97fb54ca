//! Parses a `file:` URL: which folder keeps the locks, and who may use it.

use std::path::{Path, PathBuf};

use crate::engine::EngineUrl;
use crate::types::{Error, ErrorKind, Result};

/// The settings in a `file:` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The folder that keeps the locks.
    pub dir: PathBuf,
    /// `mode=`, the folder's permission bits. `None`: the folder is private, and must belong to
    /// this user.
    pub mode: Option<u32>,
    /// `group=`, the number of the group that shares the folder. `None`: the group that it has.
    pub group: Option<u32>,
    /// Whether to create the folder if it does not exist. Only the first open does.
    pub create: bool,
}

impl Config {
    /// # Errors
    /// `InvalidUrl` for an unknown option, a host, or an invalid value.
    pub fn parse(url: &EngineUrl) -> Result<Self> {
        url.refuse_unknown_options(&["mode", "group"])?;
        if url.hosts.iter().any(|host| host != "localhost") || url.user.is_some() || url.password.is_some() {
            let host = url.hosts.join(",");
            return Err(invalid_option(format!(
                "a `file:` URL has no host; for the folder /{host}{} write three slashes",
                url.path
            )));
        }
        let dir = if url.path.is_empty() { default_dir()? } else { PathBuf::from(&url.path) };
        let mode = url.option("mode").map(|text| {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0 && mode & 0o700 == 0o700);
            mode.ok_or_else(|| invalid_option(format!("{text:?} is not a folder mode; 0770 shares it with the group")))
        });
        let group = url.option("group").map(parse_group).transpose()?;
        let mode = match (mode.transpose()?, group) {
            (None, Some(_)) => {
                return Err(invalid_option("group= needs mode=, too: ?mode=0770&group=NAME".into()));
            }
            (Some(mode), Some(_)) if mode & 0o070 == 0 => {
                return Err(invalid_option(format!(
                    "mode={mode:04o} gives the group no rights; ?mode=0770&group=NAME does"
                )));
            }
            (mode, _) => mode,
        };
        Ok(Self { dir, mode, group, create: true })
    }
}

/// The number of a group, which is given by its number, or by its name in /etc/group.
fn parse_group(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let all = std::fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&all, text).ok_or_else(|| {
        invalid_option(format!("/etc/group has no group {text:?}; give its number, which `getent group {text}` shows"))
    })
}

/// The number of the group `name` in the text of /etc/group, whose columns are name, password,
/// number and members.
fn find_group(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut columns| (columns.next() == Some(name)).then(|| columns.nth(1)?.parse().ok()).flatten())
}

/// The folder of a `file:` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FolderLocation {
    /// The folder. It may not exist yet.
    pub folder: PathBuf,
    /// Whether the URL names no folder, so that this is the user's own default folder. Other users
    /// have another one.
    pub is_default: bool,
}

/// The folder of a `file:` URL; `None` for other URLs. Opens and creates nothing.
///
/// # Errors
/// `InvalidUrl` for a URL that [`Locks::open`](crate::Locks::open) would refuse, too.
pub fn folder_location(url: &str) -> Result<Option<FolderLocation>> {
    let url = EngineUrl::parse(url)?;
    if url.scheme != "file" {
        return Ok(None);
    }
    Ok(Some(FolderLocation { folder: Config::parse(&url)?.dir, is_default: url.path.is_empty() }))
}

fn invalid_option(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// The default folder of root.
const ROOT_DEFAULT_DIR: &str = "/var/lib/leasehold";

/// The default folder of this user, on a file system that survives reboots.
fn default_dir() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(ROOT_DEFAULT_DIR));
    }
    let state = env_path("XDG_STATE_HOME").or_else(|| Some(state_dir_in(&env_path("HOME")?)));
    let state = state.filter(|dir| dir.is_absolute());
    state.map(|dir| dir.join("leasehold")).ok_or_else(|| {
        invalid_option(
            "`file:` keeps its locks below $XDG_STATE_HOME or $HOME, and neither is set: name a folder, file:///dir"
                .into(),
        )
    })
}

/// The path in an environment variable; `None` if it is not set or empty.
fn env_path(key: &str) -> Option<PathBuf> {
    std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The state folder of a user, if `$XDG_STATE_HOME` is not set.
fn state_dir_in(home: &Path) -> PathBuf {
    home.join(".local/state")
}

/// The default folders of all users in /etc/passwd and of this process's environment, sorted. They
/// may not exist.
pub fn default_dirs() -> Vec<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let states =
        home_dirs(&users).chain(env_path("HOME")).map(|home| state_dir_in(&home)).chain(env_path("XDG_STATE_HOME"));
    let mut folders: Vec<_> =
        states.map(|state| state.join("leasehold")).chain([PathBuf::from(ROOT_DEFAULT_DIR)]).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// The home folders in the text of /etc/passwd, whose columns are name, password, number, group,
/// comment, home and shell.
fn home_dirs(users: &str) -> impl Iterator<Item = PathBuf> {
    users.lines().filter_map(|line| line.split(':').nth(5)).filter(|home| home.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        Config::parse(&EngineUrl::parse(url)?)
    }

    #[test]
    fn reads_folders_and_modes() {
        assert_eq!(read("file:///a/b").unwrap().dir, PathBuf::from("/a/b"));
        assert_eq!(read("file:a/b").unwrap().dir, PathBuf::from("a/b"));
        assert_eq!(read("file://localhost/a").unwrap().dir, PathBuf::from("/a"));
        assert_eq!(read("file:///a?mode=0770").unwrap().mode, Some(0o770));
        assert_eq!(read("file:///a?mode=0770&group=4100").unwrap().group, Some(4100));
        assert_eq!(read("file:///a?mode=0770&group=root").unwrap().group, Some(0));
        assert!(read("file:").unwrap().dir.ends_with("leasehold"));
    }

    #[test]
    fn home_folders_are_read_from_passwd() {
        let users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbad:x\nnone:x:7:7:::\n";
        assert_eq!(home_dirs(users).collect::<Vec<_>>(), [Path::new("/root"), Path::new("/home/ann")]);
    }

    #[test]
    fn a_location_is_returned_without_creating_the_folder() {
        let location = |url| super::folder_location(url).unwrap();
        assert_eq!(location("redis://h"), None);
        let named = FolderLocation { folder: PathBuf::from("/no/such/folder"), is_default: false };
        assert_eq!(location("file:///no/such/folder"), Some(named));
        assert!(location("file:?mode=0770").unwrap().is_default);
    }

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let text = "staffers:x:7:\nstaff:x:50:ann,bob\nbad:x\n";
        assert_eq!(
            (find_group(text, "staff"), find_group(text, "sta"), find_group(text, "bad")),
            (Some(50), None, None)
        );
    }

    #[test]
    fn unknown_options_are_refused() {
        for (url, expected) in [
            ("file://a/b", "three slashes"),
            ("file:///a?mode=99", "is not a folder mode"),
            ("file:///a?mode=0077", "is not a folder mode"),
            ("file:///a?group=root", "needs mode="),
            ("file:///a?mode=0700&group=root", "gives the group no rights"),
            ("file:///a?mode=0770&group=no-such-group", "getent group"),
            ("file:///a?colour=red", "it has mode"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
