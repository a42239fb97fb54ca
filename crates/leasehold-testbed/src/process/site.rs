//! From a recipe to a process that answers.

use std::{
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::time::timeout;

use super::{Binary, Child, Place, Recipe, Step, listener, user::User};
use crate::{Error, Result, try_eventually};

/// How long one look at the server may hang before the next.
const PROBE_BOUND: Duration = Duration::from_secs(5);
/// How long one [`Step`] may take.
const STEP_BOUND: Duration = crate::BOUND;

/// A recipe and the place where it is carried out.
pub(super) struct Site {
    recipe: Box<dyn Recipe>,
    place: Place,
    user: User,
}

impl Site {
    /// Checks that the server is installed and finds it a place.
    pub(super) fn choose(recipe: Box<dyn Recipe>) -> Result<Self> {
        let binary = recipe.binary();
        binary.find()?;
        Ok(Self {
            user: User::find(recipe.run_as(), binary.package())?,
            place: Place::new(binary.name(), recipe.extra_ports(), recipe.disk())?,
            recipe,
        })
    }

    /// Takes other ports and an empty folder.
    pub(super) fn move_away(&mut self) -> Result<()> {
        self.recipe.clean_up(&self.place);
        self.place = Place::new(&self.name(), self.recipe.extra_ports(), self.recipe.disk())?;
        Ok(())
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn name(&self) -> String {
        self.recipe.binary().name().to_owned()
    }

    pub(super) fn url(&self) -> String {
        self.recipe.url(&self.place)
    }

    pub(super) fn stop_signal(&self) -> Signal {
        self.recipe.stop_signal()
    }

    /// Removes the data folder of a server that has ended.
    pub(super) fn wipe(&self) -> Result<()> {
        self.recipe.clean_up(&self.place);
        self.place.wipe()
    }

    /// Makes the data folder and fills it as the recipe says, unless it is there.
    pub(super) async fn furnish(&self) -> Result<()> {
        if self.place.furnished() {
            return Ok(());
        }
        self.place.furnish(self.user)?;
        for step in self.recipe.init(&self.place) {
            if let Err(error) = self.carry_out(&step).await {
                // Half a folder must not pass for a whole one at the next restart.
                self.place.wipe()?;
                return Err(error);
            }
        }
        Ok(())
    }

    async fn carry_out(&self, step: &Step) -> Result<()> {
        let mut child = self.run(&step.binary, &step.arguments, Vec::new())?;
        let status = child.wait_exit(STEP_BOUND).await?;
        if status.success() { Ok(()) } else { Err(self.exited(step.binary.name(), status)) }
    }

    /// Starts the server and waits until it answers.
    pub(super) async fn boot(&self) -> Result<Child> {
        self.recipe.prepare(&self.place)?;
        let binary = self.recipe.binary();
        let mut child = self.run(&binary, &self.recipe.arguments(&self.place), self.recipe.environment())?;
        match self.await_answer(binary.name(), &mut child).await? {
            None => Ok(child),
            Some(status) => Err(self.exited(binary.name(), status)),
        }
    }

    /// `None` when the server answers, its status if it ends before.
    async fn await_answer(&self, name: &str, child: &mut Child) -> Result<Option<ExitStatus>> {
        let awaited = format!("answer from {name}");
        let answered = try_eventually(&awaited, self.recipe.ready_within(), || {
            let running = child.running();
            let ended = child.ended();
            async move {
                if let Some(status) = ended.map_err(|error| error.to_string())? {
                    return Ok(Some(status));
                }
                self.look(running.map_err(|error| error.to_string())?).await?;
                Ok::<_, String>(None)
            }
        });
        answered.await.map_err(|error| match error {
            Error::TimedOut { awaited, bound, seen } => {
                Error::TimedOut { awaited, bound, seen: format!("{seen}; its last words:\n{}", self.place.log_tail()) }
            }
            other => other,
        })
    }

    /// An answer counts only if it comes from our own process.
    async fn look(&self, pid: Pid) -> std::result::Result<(), String> {
        listener::belongs_to(pid, self.place.port())?;
        match timeout(PROBE_BOUND, self.recipe.probe(&self.place)).await {
            Ok(answer) => answer,
            Err(_) => Err("it listens but does not answer".to_owned()),
        }
    }

    fn run(&self, binary: &Binary, arguments: &[String], variables: Vec<(String, String)>) -> Result<Child> {
        let log = self.place.open_log()?;
        let duplicating = Error::io("opening the log twice");
        let mut command = Command::new(binary.find()?);
        command
            .args(arguments)
            .envs(variables)
            .current_dir(self.place.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(duplicating)?)
            .stderr(log);
        self.user.run(&mut command);
        Child::spawn(binary.name(), command)
    }

    fn exited(&self, program: &str, status: ExitStatus) -> Error {
        Error::Exited { program: program.to_owned(), status, log: self.place.log_tail() }
    }
}

impl Drop for Site {
    /// The server has been dropped before.
    fn drop(&mut self) {
        self.recipe.clean_up(&self.place);
    }
}
