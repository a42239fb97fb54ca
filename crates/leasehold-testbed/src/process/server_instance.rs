//! Starts a process from a spec, and waits until it responds.

use std::{
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::time::timeout;

use super::{Binary, Child, InitStep, ServerSpec, Workspace, listener, user::RunAsUser};
use crate::{Error, Result, try_eventually};

/// The timeout of one probe of the server.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of one [`InitStep`].
const STEP_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// The definition of a server, and the folder, ports and user with which it runs.
pub(super) struct ServerInstance {
    spec: Box<dyn ServerSpec>,
    workspace: Workspace,
    user: RunAsUser,
}

impl ServerInstance {
    /// Checks that the server is installed, and creates its workspace.
    pub(super) fn new(spec: Box<dyn ServerSpec>) -> Result<Self> {
        let binary = spec.binary();
        binary.find()?;
        Ok(Self {
            user: RunAsUser::find(spec.run_as(), binary.package())?,
            workspace: Workspace::new(binary.name(), spec.extra_ports(), spec.disk())?,
            spec,
        })
    }

    /// Replaces the workspace: other ports and an empty folder.
    pub(super) fn relocate(&mut self) -> Result<()> {
        self.spec.clean_up(&self.workspace);
        self.workspace = Workspace::new(&self.name(), self.spec.extra_ports(), self.spec.disk())?;
        Ok(())
    }

    pub(super) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub(super) fn name(&self) -> String {
        self.spec.binary().name().to_owned()
    }

    pub(super) fn url(&self) -> String {
        self.spec.url(&self.workspace)
    }

    pub(super) fn stop_signal(&self) -> Signal {
        self.spec.stop_signal()
    }

    /// Removes the data folder of a server that has ended.
    pub(super) fn wipe(&self) -> Result<()> {
        self.spec.clean_up(&self.workspace);
        self.workspace.remove_data_dir()
    }

    /// Creates and fills the data folder as the spec defines, unless it exists.
    pub(super) async fn init_data_dir(&self) -> Result<()> {
        if self.workspace.has_data_dir() {
            return Ok(());
        }
        self.workspace.create_data_dir(self.user)?;
        for step in self.spec.init_steps(&self.workspace) {
            if let Err(error) = self.run_step(&step).await {
                // The next restart must not use an incomplete folder.
                self.workspace.remove_data_dir()?;
                return Err(error);
            }
        }
        Ok(())
    }

    async fn run_step(&self, step: &InitStep) -> Result<()> {
        let mut child = self.spawn(&step.binary, &step.arguments, Vec::new())?;
        let status = child.wait_exit(STEP_TIMEOUT).await?;
        if status.success() { Ok(()) } else { Err(self.exited_error(step.binary.name(), status)) }
    }

    /// Starts the server and waits until it responds.
    pub(super) async fn start(&self) -> Result<Child> {
        self.spec.prepare(&self.workspace)?;
        let binary = self.spec.binary();
        let mut child = self.spawn(&binary, &self.spec.arguments(&self.workspace), self.spec.environment())?;
        match self.wait_until_ready(binary.name(), &mut child).await? {
            None => Ok(child),
            Some(status) => Err(self.exited_error(binary.name(), status)),
        }
    }

    /// Waits until the server responds: then `None`. Returns its exit status if it exits before.
    async fn wait_until_ready(&self, name: &str, child: &mut Child) -> Result<Option<ExitStatus>> {
        let awaited = format!("response of {name}");
        let answered = try_eventually(&awaited, self.spec.start_timeout(), || {
            let running = child.running_pid();
            let ended = child.try_wait();
            async move {
                if let Some(status) = ended.map_err(|error| error.to_string())? {
                    return Ok(Some(status));
                }
                self.probe_own_process(running.map_err(|error| error.to_string())?).await?;
                Ok::<_, String>(None)
            }
        });
        answered.await.map_err(|error| match error {
            Error::TimedOut { awaited, bound, observed: seen } => Error::TimedOut {
                awaited,
                bound,
                observed: format!("{seen}; the end of its log:\n{}", self.workspace.log_tail()),
            },
            other => other,
        })
    }

    /// Checks once whether the started process listens on the port and responds.
    async fn probe_own_process(&self, pid: Pid) -> std::result::Result<(), String> {
        listener::check_listener_is_ours(pid, self.workspace.port())?;
        match timeout(PROBE_TIMEOUT, self.spec.probe(&self.workspace)).await {
            Ok(answer) => answer,
            Err(_) => Err("it listens but does not respond".to_owned()),
        }
    }

    fn spawn(&self, binary: &Binary, arguments: &[String], variables: Vec<(String, String)>) -> Result<Child> {
        let log = self.workspace.open_log()?;
        let duplicating = Error::io("opening the log twice");
        let mut command = Command::new(binary.find()?);
        command
            .args(arguments)
            .envs(variables)
            .current_dir(self.workspace.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(duplicating)?)
            .stderr(log);
        self.user.apply_to(&mut command);
        Child::spawn(binary.name(), command)
    }

    fn exited_error(&self, program: &str, status: ExitStatus) -> Error {
        Error::Exited { program: program.to_owned(), status, log: self.workspace.log_tail() }
    }
}

impl Drop for ServerInstance {
    /// Called when the server's process has already ended.
    fn drop(&mut self) {
        self.spec.clean_up(&self.workspace);
    }
}
