//! One running server.

use std::{fmt, net::SocketAddr, path::Path, time::Duration};

use super::{Child, Disk, ServerSpec, server_instance::ServerInstance};
use crate::{Error, Result};

/// How many ports are tried before a server that exits at its start counts as broken.
const MAX_PORT_ATTEMPTS: usize = 3;
/// How long [`Server::stop`] waits before it kills.
const STOP_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// What a restarted server finds in its data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The server finds its own data, as after a reboot.
    Keep,
    /// The server finds an empty folder, as on a new machine.
    Wipe,
}

/// A real server, which starts and ends with the test.
///
/// Dropping it kills it and removes its folder.
pub struct Server {
    // The process must end before its folder is removed: fields drop in this order.
    child: Option<Child>,
    instance: ServerInstance,
}

impl Server {
    /// Starts a server and waits until it responds.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] or [`Error::UnknownUser`] if a package is missing; [`Error::Exited`]
    /// with the end of the server's log if it exited on each of three ports; [`Error::TimedOut`] if
    /// it did not respond.
    pub async fn start(spec: impl ServerSpec) -> Result<Self> {
        let mut instance = ServerInstance::new(Box::new(spec))?;
        for _ in 1..MAX_PORT_ATTEMPTS {
            instance.init_data_dir().await?;
            match instance.start().await {
                Ok(child) => return Ok(Self::new(instance, child)),
                // Most likely another process has taken the port just before the server.
                Err(Error::Exited { .. }) => instance.relocate()?,
                Err(error) => return Err(error),
            }
        }
        instance.init_data_dir().await?;
        let child = instance.start().await?;
        Ok(Self::new(instance, child))
    }

    fn new(instance: ServerInstance, child: Child) -> Self {
        Self { child: Some(child), instance }
    }

    /// The port on 127.0.0.1; the same over all restarts.
    pub fn port(&self) -> u16 {
        self.instance.workspace().port()
    }

    /// The address on 127.0.0.1; the same over all restarts.
    pub fn addr(&self) -> SocketAddr {
        self.instance.workspace().addr()
    }

    /// The ports of [`ServerSpec::extra_ports`]; the same over all restarts.
    pub fn extra_ports(&self) -> &[u16] {
        self.instance.workspace().extra_ports()
    }

    /// The URL by which clients find it.
    pub fn url(&self) -> String {
        self.instance.url()
    }

    /// The server's data folder.
    pub fn dir(&self) -> &Path {
        self.instance.workspace().dir()
    }

    /// The end of the server's log, over all its restarts.
    pub fn log(&self) -> String {
        self.instance.workspace().log_tail()
    }

    /// The process id; `None` after [`Server::kill`] or [`Server::stop`].
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Whether the server's process exists: it was not killed, and has not exited on its own.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn is_running(&mut self) -> Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => Ok(false),
        }
    }

    /// The small disk of the data folder; `None` if the spec has [none](ServerSpec::disk).
    pub fn disk(&self) -> Option<&Disk> {
        self.instance.workspace().disk()
    }

    /// Whether the server should respond: it was neither killed nor stopped, and is not paused.
    pub fn is_awake(&self) -> bool {
        self.child.as_ref().is_some_and(|child| !child.is_stopped())
    }

    /// Kills the server and all its descendants (SIGKILL), as a power failure does. When this
    /// returns, they have ended. Has no effect on a server that is down.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn kill(&mut self) -> Result<()> {
        match &mut self.child {
            Some(child) => child.kill_tree()?,
            None => return Ok(()),
        }
        self.child = None;
        Ok(())
    }

    /// Suspends the server and all its descendants (SIGSTOP): connections stay open without
    /// replies. When this returns, none of their threads runs.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn pause(&mut self) -> Result<()> {
        self.running_child()?.stop()
    }

    /// Resumes a paused server (SIGCONT).
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn resume(&mut self) -> Result<()> {
        self.running_child()?.resume()
    }

    /// Shuts the server down ([`ServerSpec::stop_signal`]), also if it is paused, and kills it if
    /// it has not exited within two minutes. Has no effect on a server that is down.
    ///
    /// # Errors
    ///
    /// As [`Server::kill`].
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
        {
            child.signal(self.instance.stop_signal())?;
            child.resume()?;
            // After a timeout it is killed below.
            let _ = child.wait_exit(STOP_TIMEOUT).await;
        }
        self.kill()
    }

    /// Starts the server again on the same port and waits until it responds. A running server is
    /// shut down first; for a crash, [`kill`](Server::kill) it before.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] with the end of its log if it does not start, otherwise as
    /// [`Server::start`].
    pub async fn restart(&mut self, data: Data) -> Result<()> {
        self.stop().await?;
        if data == Data::Wipe {
            self.instance.wipe()?;
        }
        self.instance.init_data_dir().await?;
        self.child = Some(self.instance.start().await?);
        Ok(())
    }

    fn running_child(&mut self) -> Result<&mut Child> {
        match &mut self.child {
            Some(child) => Ok(child),
            None => Err(Error::NotRunning { program: self.instance.name() }),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addr", &self.addr())
            .field("pid", &self.pid())
            .field("dir", &self.dir())
            .finish_non_exhaustive()
    }
}
