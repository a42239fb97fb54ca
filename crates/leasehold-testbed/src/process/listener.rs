//! Finds the process that listens on a port, from `/proc`: a server that responds there may belong
//! to another program.

use std::{fs, io, os::unix::fs::MetadataExt};

use rustix::process::{Pid, geteuid, getpid};

use super::process_tree;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN_STATE: &str = "0A";
const LISTEN_COLUMN: &str = " 0A ";

/// A listening socket, as `/proc/net/tcp` shows it.
struct Listener {
    /// The number by which a process's open files name the socket.
    inode: u64,
    /// The user that opened the socket.
    uid: u32,
}

/// `Ok` if `root` or one of its descendants listens on `port`; otherwise what was observed.
pub(super) fn check_listener_is_ours(root: Pid, port: u16) -> Result<(), String> {
    let listeners = listeners(root, port);
    if listeners.is_empty() {
        return Err(format!("no process listens on port {port} yet"));
    }
    if process_tree::with_descendants(root).into_iter().any(|pid| has_listener_open(pid, &listeners)) {
        Ok(())
    } else {
        Err(format!("port {port} was taken by another process"))
    }
}

/// Whether any process listens on `port`. Opens no connection.
pub(crate) fn is_listening(port: u16) -> bool {
    !listeners(getpid(), port).is_empty()
}

/// The sockets that listen on `port` in the network namespace of the process `pid`.
fn listeners(pid: Pid, port: u16) -> Vec<Listener> {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
        .flat_map(|table| {
            let rows = table.lines().skip(1);
            rows.filter_map(|row| parse_listener(row, port)).collect::<Vec<_>>()
        })
        .collect()
}

/// Parses a row of `/proc/net/tcp`; `None` unless it is a socket that listens on `port`. Columns:
/// number, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode.
fn parse_listener(row: &str, port: u16) -> Option<Listener> {
    // A quick check: most of the rows are connections, often hundreds.
    if !row.contains(LISTEN_COLUMN) {
        return None;
    }
    let columns: Vec<&str> = row.split_whitespace().collect();
    let (_, local_port) = columns.get(1)?.rsplit_once(':')?;
    let here = u16::from_str_radix(local_port, 16).ok()? == port && *columns.get(3)? == LISTEN_STATE;
    here.then_some(Listener { uid: columns.get(7)?.parse().ok()?, inode: columns.get(9)?.parse().ok()? })
}

/// Whether the process `pid` has one of these sockets open.
fn has_listener_open(pid: Pid, listeners: &[Listener]) -> bool {
    match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(files) => files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
            let is = |l: &Listener| target.as_os_str() == format!("socket:[{}]", l.inode).as_str();
            listeners.iter().any(is)
        }),
        // Root in a container may not inspect another user's process: then it counts if its user
        // opened the socket. A process of the same user can be inspected, except for a moment while
        // it starts.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fs::metadata(format!("/proc/{pid}"))
            .is_ok_and(|process| {
                let theirs = process.uid();
                theirs != geteuid().as_raw() && listeners.iter().any(|l| l.uid == theirs)
            }),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_on_that_port_is_found() {
        let row = "0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 106 0 4711 1";
        let found = parse_listener(row, 8080).unwrap();
        assert_eq!((found.inode, found.uid), (4711, 106));
        assert!(parse_listener(row, 8081).is_none(), "another port");
        assert!(parse_listener(&row.replace(" 0A ", " 01 "), 8080).is_none(), "a connection");
    }
}
