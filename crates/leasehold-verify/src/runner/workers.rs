//! Starts, kills, stops and ends the worker processes, and collects their events.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::Actor;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::RunError;
use super::run_state::RunState;
use crate::history::{Event, WorkerId, WorkerState};
use crate::worker::{Assignment, WORKER_ARGUMENT};

/// The run fails if a worker takes longer than this to start.
const START_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// The run fails if a worker takes longer than this to exit after its last event.
const EXIT_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// The line that the conductor injects into a stopped worker's output: all earlier lines have been
/// read when it is.
const OUTPUT_MARKER: &str = "all events read so far";

/// How long workers may take from the shutdown command until they have exited: their calls end, and
/// they release what they hold.
pub(super) fn shutdown_bound(ttl: Duration) -> Duration {
    ttl * 6 + Duration::from_secs(10) + EXIT_TIMEOUT
}

/// A command for a worker process. The sender reports that it was carried out.
#[derive(Debug)]
enum WorkerCommand {
    /// Kills the process (SIGKILL).
    Kill(oneshot::Sender<()>),
    /// Stops the process (SIGSTOP).
    Stop(oneshot::Sender<()>),
    /// Resumes a stopped process (SIGCONT).
    Resume(oneshot::Sender<()>),
    /// Asks the process to release its locks and exit.
    Shutdown,
}

/// A worker process, running or ended.
#[derive(Debug)]
struct WorkerProcess {
    /// The numbers and lanes of the workers in it.
    workers: Vec<(WorkerId, u32)>,
    commands: mpsc::UnboundedSender<WorkerCommand>,
    /// The task that reads its events and carries out commands; it ends with the process.
    event_pump: JoinHandle<Result<(), String>>,
}

/// All workers of a run.
#[derive(Debug)]
pub(super) struct Workers {
    /// The program of a worker and its arguments, after the prefix that enters the workers'
    /// network.
    command: Vec<String>,
    /// The environment variables of a worker.
    env: Vec<(String, String)>,
    run_state: Arc<RunState>,
    processes: Vec<WorkerProcess>,
    /// The number of the worker that was started last; 0: none.
    last_id: WorkerId,
}

impl Workers {
    pub(super) fn new(command: Vec<String>, env: Vec<(String, String)>, run_state: &Arc<RunState>) -> Self {
        Self { command, env, run_state: Arc::clone(run_state), processes: Vec::new(), last_id: 0 }
    }

    /// Starts a process for each group of lanes; returns when all of them have reported their
    /// start.
    pub(super) async fn start(&mut self, assignment: &Assignment, groups: &[Vec<u32>]) -> Result<(), RunError> {
        let assigned: Vec<Assignment> = groups
            .iter()
            .map(|lanes| {
                let workers = lanes.iter().map(|lane| (self.next_worker_id(), *lane)).collect();
                Assignment { workers, ..assignment.clone() }
            })
            .collect();
        let (command, env, run_state) = (&self.command, &self.env, &self.run_state);
        let starting = assigned.into_iter().map(|assignment| spawn_worker(command, env, run_state, assignment));
        self.processes.extend(futures_util::future::try_join_all(starting).await?);
        Ok(())
    }

    fn next_worker_id(&mut self) -> WorkerId {
        self.last_id += 1;
        self.last_id
    }

    /// The process in which this worker runs or ran.
    fn process_of(&self, worker: WorkerId) -> Option<&WorkerProcess> {
        self.processes.iter().find(|process| process.workers.iter().any(|(number, _)| *number == worker))
    }

    /// The workers and lanes in the same process as this worker.
    pub(super) fn workers_in_same_process(&self, worker: WorkerId) -> Vec<(WorkerId, u32)> {
        self.process_of(worker).map(|process| process.workers.clone()).unwrap_or_default()
    }

    /// Sends a command to the process of a worker and waits until it is carried out. `false`: the
    /// process has ended.
    async fn send_command(&self, worker: WorkerId, command: impl FnOnce(oneshot::Sender<()>) -> WorkerCommand) -> bool {
        let (done_sender, done) = oneshot::channel();
        let sent = self.process_of(worker).is_some_and(|process| process.commands.send(command(done_sender)).is_ok());
        sent && done.await.is_ok()
    }

    /// Kills the process of a worker. `false`: the process has already ended.
    pub(super) async fn kill(&self, worker: WorkerId) -> bool {
        self.send_command(worker, WorkerCommand::Kill).await
    }

    /// Stops the process of a worker, and reads all events that it wrote before. `false`: the
    /// process has ended.
    pub(super) async fn stop(&self, worker: WorkerId) -> bool {
        self.send_command(worker, WorkerCommand::Stop).await
    }

    /// Resumes the process of a worker. `false`: the process has ended.
    pub(super) async fn resume(&self, worker: WorkerId) -> bool {
        self.send_command(worker, WorkerCommand::Resume).await
    }

    /// Makes all workers exit; returns an error message for each process that failed. One that does
    /// not exit within `bound` is killed.
    pub(super) async fn shut_down(mut self, bound: Duration) -> Vec<String> {
        for process in &self.processes {
            // The send fails if the process has already ended.
            let _ = process.commands.send(WorkerCommand::Shutdown);
        }
        let mut errors = Vec::new();
        let deadline = tokio::time::Instant::now() + bound;
        for process in &mut self.processes {
            match tokio::time::timeout_at(deadline, &mut process.event_pump).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(message))) => errors.push(message),
                Ok(Err(error)) => errors.push(error.to_string()),
                Err(_) => {
                    for (worker, _) in &process.workers {
                        let last = self.run_state.last_lines(*worker);
                        errors.push(format!("worker {worker} did not exit within {bound:?}; its last events: {last}"));
                    }
                }
            }
        }
        errors
    }
}

/// Kills the process, so that none survives the run: aborting the task drops its handle.
impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.event_pump.abort();
    }
}

/// Starts a process, and sends it its assignment; returns when it has reported its start.
async fn spawn_worker(
    command: &[String],
    env: &[(String, String)],
    run_state: &Arc<RunState>,
    assignment: Assignment,
) -> Result<WorkerProcess, RunError> {
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut words: Vec<&str> = command.iter().map(String::as_str).chain([WORKER_ARGUMENT]).collect();
    let mut actor = Actor::spawn(Path::new(words.remove(0)), &words, &env)?;
    let text = serde_json::to_value(&assignment).map_err(|error| RunError::new(error.to_string()))?;
    let began = async {
        actor.send(&text).await?;
        actor.recv(START_TIMEOUT).await
    };
    let line = began.await.map_err(|error| RunError::worker(format!("a worker did not start: {error}")))?;
    let started = serde_json::from_value::<Event>(line).map_err(|error| RunError::new(error.to_string()))?;
    run_state.observe(started);
    let (commands, received) = mpsc::unbounded_channel();
    let workers = assignment.workers;
    let event_pump = tokio::spawn(pump_events(actor, received, Arc::clone(run_state), workers.clone()));
    Ok(WorkerProcess { workers, commands, event_pump })
}

/// Reads a worker process's events and carries out commands for it, until the process ends. An
/// error is a message about a process that failed.
async fn pump_events(
    mut actor: Actor,
    mut commands: mpsc::UnboundedReceiver<WorkerCommand>,
    run_state: Arc<RunState>,
    workers: Vec<(WorkerId, u32)>,
) -> Result<(), String> {
    let record_state = |state: &WorkerState| {
        for (worker, _) in &workers {
            run_state.record(Event::Worker { t: run_state.now(), worker: *worker, state: state.clone() });
        }
    };
    let mut killed = false;
    let mut open = true;
    let mut running_workers = workers.len();
    // The callers that wait until all events from before a stop have been read.
    let mut marker_waiters = VecDeque::new();
    loop {
        tokio::select! {
            line = actor.recv(Duration::from_secs(3600)) => match line.map(parse_line) {
                Ok(Ok(None)) => {
                    if let Some(done) = marker_waiters.pop_front() {
                        acknowledge(done, true);
                    }
                }
                Ok(Ok(Some(event))) => {
                    running_workers -= usize::from(matches!(event, Event::Worker { state: WorkerState::Ended, .. }));
                    run_state.observe(event);
                    // Do not wait for the end of its output: other processes may briefly have its
                    // pipe open.
                    if running_workers == 0 {
                        return await_exit(&mut actor, "sent its last event").await;
                    }
                }
                // A killed worker's last line may be truncated.
                _ if killed => return Ok(()),
                Ok(Err(error)) => return Err(format!("unexpected output of a worker: {error}")),
                Err(_) => {
                    for (worker, _) in &workers {
                        run_state.remove_worker(*worker);
                    }
                    return await_exit(&mut actor, "closed its output").await;
                }
            },
            command = commands.recv(), if open => match command {
                Some(WorkerCommand::Kill(done)) => {
                    // The time is read before the kill, because the kill may free its locks at
                    // once.
                    let t = run_state.now();
                    killed = actor.sigkill().is_ok();
                    for (worker, _) in &workers {
                        run_state.record(Event::Worker { t, worker: *worker, state: WorkerState::Killed });
                    }
                    acknowledge(done, killed);
                }
                Some(WorkerCommand::Stop(done)) => {
                    record_state(&WorkerState::Stopped);
                    // Its output may still be in the pipe; the marker comes after it.
                    if actor.sigstop().is_ok() {
                        match actor.inject_output_line(&OUTPUT_MARKER.into()).await {
                            Ok(()) => marker_waiters.push_back(done),
                            // Treated as if the worker had ended, which is the only likely reason.
                            Err(_) if actor.sigcont().is_ok() => record_state(&WorkerState::Resumed),
                            Err(_) => {}
                        }
                    }
                }
                Some(WorkerCommand::Resume(done)) => {
                    let resumed = actor.sigcont().is_ok();
                    record_state(&WorkerState::Resumed);
                    acknowledge(done, resumed);
                }
                Some(WorkerCommand::Shutdown) => {
                    // The send fails if the process has already ended.
                    let _ = actor.send(&serde_json::Value::Null).await;
                }
                None => open = false,
            },
        }
    }
}

/// Parses a line of a worker's output; `None`: it is the injected marker.
fn parse_line(line: serde_json::Value) -> Result<Option<Event>, serde_json::Error> {
    if line == OUTPUT_MARKER { Ok(None) } else { serde_json::from_value(line).map(Some) }
}

/// Waits for the process's exit. `activity` says in an error message what it did last.
async fn await_exit(actor: &mut Actor, activity: &str) -> Result<(), String> {
    match actor.wait_exit(EXIT_TIMEOUT).await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("a worker ended unexpectedly, with {status}:\n{}", actor.transcript())),
        Err(_) => Err(format!(
            "a worker {activity}, and did not exit within {EXIT_TIMEOUT:?}; its threads:\n{}\n{}",
            thread_states(actor.pid()),
            actor.transcript()
        )),
    }
}

/// The state, kernel function and system call of each thread of a process, for an error message.
fn thread_states(pid: u32) -> String {
    let folder = Path::new("/proc").join(pid.to_string()).join("task");
    let Ok(tasks) = std::fs::read_dir(&folder) else { return format!("{} does not exist", folder.display()) };
    let mut lines = Vec::new();
    for task in tasks.flatten() {
        let of = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        lines.push(format!("{}; waits in {}; system call {}", of("stat"), of("wchan"), of("syscall")));
    }
    lines.join("\n")
}

/// Answers the sender of a command if it was carried out. Otherwise dropping `done` informs it that
/// the process has ended.
fn acknowledge(done: oneshot::Sender<()>, is_done: bool) {
    if is_done {
        // The caller may have stopped waiting.
        let _ = done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shutdown_bound_leaves_the_full_exit_timeout_after_the_latest_last_event() {
        for ttl in [Duration::from_millis(500), Duration::from_secs(10)] {
            // The longest wait for a lock, and a second for the call to end.
            let last_event = ttl * 5 + Duration::from_secs(1);
            assert!(shutdown_bound(ttl) >= last_event + EXIT_TIMEOUT);
        }
    }
}
