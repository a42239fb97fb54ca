//! Paths of nodes, and addresses of servers.

use crate::error::{Error, Result};

/// The port of a server whose address names none.
const DEFAULT_PORT: u16 = 2181;

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// The server's host name, or its IP address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Server {
    /// Parses a list such as `host:port,host,[::1]:port`.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>> {
        text.split(',').map(|one| Self::parse(one.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        const WRONG: Error = Error::BadArguments("a server list looks like zk1:2181,zk2:2181,[::1]:2181");
        let (host, rest) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(WRONG)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| WRONG)?,
            None if rest.is_empty() => DEFAULT_PORT,
            None => return Err(WRONG),
        };
        if host.is_empty() || host.contains('/') {
            return Err(WRONG);
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

/// `BadArguments` for a path that no server accepts for a node.
pub(crate) fn check_path(path: &str) -> Result<()> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(Error::BadArguments("a node's path must begin with a slash"));
    };
    if !rest.is_empty() && rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(Error::BadArguments("a node's path must not have empty parts, . or .."));
    }
    if rest.contains('\0') {
        return Err(Error::BadArguments("a node's path must not contain a NUL character"));
    }
    Ok(())
}

/// `BadArguments` for a path that no server accepts for a node that it numbers. The path may end
/// with a slash: the number is then the whole name.
pub(crate) fn check_sequential_path(path: &str) -> Result<()> {
    match path.strip_suffix('/') {
        Some("") => Ok(()),
        Some(parent) => check_path(parent),
        None => check_path(path),
    }
}

/// The path of a node's parent; `None` if the parent is the root, or `path` is.
pub(crate) fn parent(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    (!parent.is_empty()).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_lists_are_parsed() {
        let read = |text| Server::parse_list(text).map(|all| all.into_iter().map(|one| (one.host, one.port)).collect());
        assert_eq!(read("h:99"), Ok(vec![("h".to_owned(), 99)]));
        assert_eq!(read("h, [::1]:7,[::2]").map(|all: Vec<_>| all.len()), Ok(3));
        assert_eq!(read("[::1]"), Ok(vec![("::1".to_owned(), DEFAULT_PORT)]));
        for wrong in ["", "h,", ":1", "h:x", "h:1/chroot", "[::1", "[::1]x", "h/chroot", "::1"] {
            assert!(matches!(Server::parse_list(wrong), Err(Error::BadArguments(_))), "{wrong}");
        }
    }

    #[test]
    fn paths_are_checked() {
        for right in ["/", "/a", "/a b/é", "/a/..b"] {
            assert_eq!(check_path(right), Ok(()), "{right}");
        }
        for wrong in ["", "a", "//", "/a/", "/a//b", "/./a", "/a/..", "/a\0"] {
            assert!(check_path(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (check_sequential_path("/"), check_sequential_path("/a/"), check_sequential_path("/a")),
            (Ok(()), Ok(()), Ok(()))
        );
        assert!(check_sequential_path("/a//").is_err());
        assert_eq!((parent("/a/b"), parent("/a"), parent("/")), (Some("/a"), None, None));
    }
}
