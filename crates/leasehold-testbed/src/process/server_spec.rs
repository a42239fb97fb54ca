//! The definition of one kind of server.

use std::{
    env,
    future::Future,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use rustix::process::Signal;

use super::Workspace;
use crate::{Error, Result};

/// The folders in which Debian installs servers, searched after `PATH`.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// One check whether a server responds; `Err` is what was observed instead.
pub type Probe<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), String>> + Send + 'a>>;

/// Defines how one kind of server is started. To add a server, implement this in its own module;
/// [`redis`](crate::redis) is the example.
///
/// The server must stay in the foreground: a process that forks away and ends counts as failed. It
/// must not change its user itself, because that clears the parent-death signal: use
/// [`ServerSpec::run_as`].
pub trait ServerSpec: Send + Sync + 'static {
    /// The server's program and its Debian package.
    fn binary(&self) -> Binary;

    /// The arguments with which the server listens on 127.0.0.1 at [`Workspace::port`] and stores
    /// all files in [`Workspace::dir`].
    fn arguments(&self, workspace: &Workspace) -> Vec<String>;

    /// The URL by which clients find the server.
    fn url(&self, workspace: &Workspace) -> String;

    /// Checks once whether the server responds. The check is repeated until it does, and times out
    /// if it hangs.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a>;

    /// Programs to run, one after the other, in an empty data folder before the first start and
    /// after a wipe, such as `initdb`.
    fn init_steps(&self, _workspace: &Workspace) -> Vec<InitStep> {
        Vec::new()
    }

    /// Called before every start, to write configuration files and to check that further files
    /// exist (see [`Error::not_installed`]).
    ///
    /// # Errors
    ///
    /// Any; the server is then not started.
    fn prepare(&self, _workspace: &Workspace) -> Result<()> {
        Ok(())
    }

    /// Additional environment variables of the server. The programs of [`ServerSpec::init_steps`]
    /// do not get them.
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The signal that shuts the server down soon, even while clients are connected.
    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }

    /// Called after the server has ended, before its data folder is removed, to remove what it has
    /// left outside that folder.
    fn clean_up(&self, _workspace: &Workspace) {}

    /// The user to run as when the tests run as root, because some servers refuse root; `None` for
    /// the user of the tests.
    fn run_as(&self) -> Option<&str> {
        None
    }

    /// The number of ports besides the one for clients.
    fn extra_ports(&self) -> usize {
        0
    }

    /// The size in bytes of a separate [`Disk`](super::Disk) for the data folder; `None` if it is
    /// in the temporary folder.
    fn disk(&self) -> Option<u64> {
        None
    }

    /// The time limit of a start. Only a failing test waits this long.
    fn start_timeout(&self) -> Duration {
        crate::TEST_TIMEOUT
    }
}

/// A program to run once, and its arguments.
#[derive(Clone, Debug)]
pub struct InitStep {
    /// The program to run.
    pub binary: Binary,
    /// The arguments of the program.
    pub arguments: Vec<String>,
}

/// A program of a Debian package.
#[derive(Clone, Debug)]
pub struct Binary {
    name: String,
    package: String,
    folders: Vec<PathBuf>,
}

impl Binary {
    /// The program `name` from the Debian package `package`.
    pub fn new(name: &str, package: &str) -> Self {
        Self { name: name.to_owned(), package: package.to_owned(), folders: Vec::new() }
    }

    /// Also searches `folder`, after `PATH`.
    #[must_use]
    pub fn search_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.push(folder.into());
        self
    }

    /// The file name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Debian package that has the program.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The program's path on this machine.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], naming the package.
    pub fn find(&self) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
            .chain(self.folders.iter().cloned())
            .map(|folder| folder.join(&self.name))
            .find(|file| is_executable(file))
            .ok_or_else(|| Error::not_installed(&self.name, &self.package))
    }
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
