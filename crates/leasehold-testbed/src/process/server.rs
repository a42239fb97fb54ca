//! One running server.

use std::{fmt, net::SocketAddr, path::Path, time::Duration};

use super::{Child, Disk, ServerSpec, server_instance::ServerInstance};
use crate::{Error, Result};

/// How many ports are tried before a server that ends at once is taken for broken.
const MAX_PORT_ATTEMPTS: usize = 3;
/// How long [`Server::stop`] waits before it kills.
const STOP_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// What a restarted server finds in its data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// What it left there: the machine came back.
    Keep,
    /// Nothing: the machine was replaced.
    Wipe,
}

/// A real server: started by the test, ended with it.
///
/// Dropping it kills it and removes its folder.
pub struct Server {
    // The process goes before its folder: fields drop in this order.
    child: Option<Child>,
    instance: ServerInstance,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] or [`Error::UnknownUser`] if something must be installed first;
    /// [`Error::Exited`] with the server's last words if it ended on each of three ports;
    /// [`Error::TimedOut`] if it did not answer.
    pub async fn start(spec: impl ServerSpec) -> Result<Self> {
        let mut site = ServerInstance::new(Box::new(spec))?;
        for _ in 1..MAX_PORT_ATTEMPTS {
            site.init_data_dir().await?;
            match site.start().await {
                Ok(child) => return Ok(Self::new(site, child)),
                // Most likely somebody took the port in the very moment before the server did.
                Err(Error::Exited { .. }) => site.relocate()?,
                Err(error) => return Err(error),
            }
        }
        site.init_data_dir().await?;
        let child = site.start().await?;
        Ok(Self::new(site, child))
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

    /// The ports asked for by [`ServerSpec::extra_ports`]; the same over all restarts.
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

    /// The end of what the server printed, over all its restarts.
    pub fn log(&self) -> String {
        self.instance.workspace().log_tail()
    }

    /// The process id; `None` after [`Server::kill`] or [`Server::stop`].
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Whether its process is there. One that was neither killed nor stopped may have ended by itself.
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

    /// The small disk that its data folder is on, if the recipe asked for [one](ServerSpec::disk).
    pub fn disk(&self) -> Option<&Disk> {
        self.instance.workspace().disk()
    }

    /// Whether it should answer: it was neither killed nor stopped, and is not paused.
    pub fn is_awake(&self) -> bool {
        self.child.as_ref().is_some_and(|child| !child.is_stopped())
    }

    /// Kills it (SIGKILL) with all processes that it started, as a power cut would. When this
    /// returns, they are gone. Killing a server that is down does nothing.
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

    /// Stops it in its tracks (SIGSTOP) with all processes that it started: connections stay open
    /// and nothing is answered. When this returns, not one of their threads runs.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::TimedOut`] if it is stuck in the kernel.
    pub fn pause(&mut self) -> Result<()> {
        self.running_child()?.stop()
    }

    /// Lets a paused server go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn resume(&mut self) -> Result<()> {
        self.running_child()?.resume()
    }

    /// Asks it to end ([`ServerSpec::stop_signal`]), also if it is paused, and kills it if it does not within two
    /// minutes. Stopping a server that is down does nothing.
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
            // One that takes too long is killed below.
            let _ = child.wait_exit(STOP_TIMEOUT).await;
        }
        self.kill()
    }

    /// Starts it again on the same port, after stopping it if it still runs, and waits until it
    /// answers. For a crash, [`kill`](Server::kill) it first.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] with its last words if it does not come up, otherwise as [`Server::start`].
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
