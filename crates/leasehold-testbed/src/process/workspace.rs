//! A server's workspace: its reserved ports and its folder.

use std::{
    fs, io,
    io::{Read, Seek, SeekFrom},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tokio::net::TcpSocket;

use super::{disk::Disk, user::RunAsUser};
use crate::{Error, Result};

/// How many bytes of the end of a log an error shows.
const LOG_TAIL_BYTES: u64 = 8 * 1024;

/// The ports and the data folder of one server; a [`ServerSpec`](super::ServerSpec) derives the
/// arguments from it.
#[derive(Debug)]
pub struct Workspace {
    temp_dir: TempDir,
    disk: Option<Disk>,
    data_dir: PathBuf,
    ports: Vec<u16>,
    /// Sockets that are bound to the ports but do not listen, so that the server can bind the
    /// ports, too (all set SO_REUSEADDR). The system assigns the ports to no other socket, even
    /// while the server is down; nor to outgoing connections, which could otherwise connect to
    /// themselves.
    _reserved: Vec<TcpSocket>,
}

impl Workspace {
    /// Creates an empty folder, with a small disk if requested, and reserves `1 + extra_ports`
    /// ports.
    pub(super) fn new(name: &str, extra_ports: usize, disk: Option<u64>) -> Result<Self> {
        let home = tempfile::Builder::new()
            .prefix(&format!("leasehold-{name}-"))
            .tempdir()
            .map_err(Error::io("creating a temporary folder"))?;
        let reserving = "reserving a port on 127.0.0.1";
        let reserved =
            (0..=extra_ports).map(|_| reserve_port()).collect::<io::Result<Vec<_>>>().map_err(Error::io(reserving))?;
        let ports = reserved
            .iter()
            .map(|socket| socket.local_addr().map(|addr| addr.port()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(Error::io(reserving))?;
        let disk = disk.map(Disk::new).transpose()?;
        let data = disk.as_ref().map_or(home.path(), Disk::path).join("data");
        Ok(Self { temp_dir: home, disk, data_dir: data, ports, _reserved: reserved })
    }

    /// The port on 127.0.0.1 that clients use.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The further ports, as many as [`ServerSpec::extra_ports`](super::ServerSpec::extra_ports).
    pub fn extra_ports(&self) -> &[u16] {
        &self.ports[1..]
    }

    /// The address that clients use.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The server's data folder.
    pub fn dir(&self) -> &Path {
        &self.data_dir
    }

    /// The small disk of the data folder, if it has one.
    pub(super) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Whether the data folder exists.
    pub(super) fn has_data_dir(&self) -> bool {
        self.data_dir.exists()
    }

    /// Creates the data folder for `user`.
    pub(super) fn create_data_dir(&self, user: RunAsUser) -> Result<()> {
        let making = Error::io(format!("making {}", self.data_dir.display()));
        fs::create_dir(&self.data_dir).map_err(making)?;
        user.give_ownership(self.temp_dir.path())?;
        user.give_ownership(&self.data_dir)
    }

    /// Removes the data folder and its content.
    pub(super) fn remove_data_dir(&self) -> Result<()> {
        match fs::remove_dir_all(&self.data_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("wiping {}", self.data_dir.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Opens the server's log for appending. It is outside the data folder, so that it survives a
    /// wipe.
    pub(super) fn open_log(&self) -> Result<fs::File> {
        let path = self.log_path();
        let opening = Error::io(format!("opening {}", path.display()));
        let mut options = fs::OpenOptions::new();
        options.append(true).create(true).open(path).map_err(opening)
    }

    /// The last 8 KiB of the server's log; or a text that says why it cannot be read.
    pub(crate) fn log_tail(&self) -> String {
        read_tail(&self.log_path()).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    fn log_path(&self) -> PathBuf {
        self.temp_dir.path().join("log")
    }
}

/// A port on 127.0.0.1 that the system assigns to no other socket while this exists; a server may
/// listen there.
pub(crate) fn reserve_port() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    Ok(socket)
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
