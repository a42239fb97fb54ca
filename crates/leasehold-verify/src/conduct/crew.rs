//! The worker processes, whose events go into the history as they arrive.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::Actor;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Trouble;
use super::live::Live;
use crate::history::{Event, State, Worker};
use crate::worker::{Assignment, WORKER};

/// Ends a run whose worker does not start.
const START: Duration = leasehold_testbed::BOUND;

/// Ends the wait for a worker that does not exit after its last event.
const EXIT: Duration = leasehold_testbed::BOUND;

/// Our own marker in a worker's output.
const MARK: &str = "heard so far";

/// How long workers may take from the stop order until their exit: they finish their waits, release
/// what they hold, and exit.
pub(super) fn ending(ttl: Duration) -> Duration {
    ttl * 6 + Duration::from_secs(10) + EXIT
}

/// An order for a worker.
#[derive(Debug)]
enum Order {
    Kill(oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
    Resume(oneshot::Sender<()>),
    Quit,
}

/// A worker process, running or ended.
#[derive(Debug)]
struct Member {
    workers: Vec<(Worker, u32)>,
    orders: mpsc::UnboundedSender<Order>,
    pump: JoinHandle<Result<(), String>>,
}

/// All workers of a run.
#[derive(Debug)]
pub(super) struct Crew {
    /// The command of a worker, with its prefix.
    words: Vec<String>,
    env: Vec<(String, String)>,
    live: Arc<Live>,
    members: Vec<Member>,
    next: Worker,
}

impl Crew {
    pub(super) fn new(words: Vec<String>, env: Vec<(String, String)>, live: &Arc<Live>) -> Self {
        Self { words, env, live: Arc::clone(live), members: Vec::new(), next: 0 }
    }

    /// Starts a process for each of these groups of lanes; returns when all of them work.
    pub(super) async fn start(&mut self, assignment: &Assignment, groups: &[Vec<u32>]) -> Result<(), Trouble> {
        let assigned: Vec<Assignment> = groups
            .iter()
            .map(|lanes| {
                let workers = lanes.iter().map(|lane| (self.number(), *lane)).collect();
                Assignment { workers, ..assignment.clone() }
            })
            .collect();
        let (words, env, live) = (&self.words, &self.env, &self.live);
        let starting = assigned.into_iter().map(|assignment| begin(words, env, live, assignment));
        self.members.extend(futures_util::future::try_join_all(starting).await?);
        Ok(())
    }

    fn number(&mut self) -> Worker {
        self.next += 1;
        self.next
    }

    fn of(&self, worker: Worker) -> Option<&Member> {
        self.members.iter().find(|member| member.workers.iter().any(|(number, _)| *number == worker))
    }

    /// The workers and lanes in the same process as this worker.
    pub(super) fn mates(&self, worker: Worker) -> Vec<(Worker, u32)> {
        self.of(worker).map(|member| member.workers.clone()).unwrap_or_default()
    }

    async fn order(&self, worker: Worker, order: impl FnOnce(oneshot::Sender<()>) -> Order) -> bool {
        let (tell, told) = oneshot::channel();
        let sent = self.of(worker).is_some_and(|member| member.orders.send(order(tell)).is_ok());
        sent && told.await.is_ok()
    }

    /// Kills the process of a worker. `false`: it had already ended.
    pub(super) async fn kill(&self, worker: Worker) -> bool {
        self.order(worker, Order::Kill).await
    }

    /// Stops the process of a worker; when this returns, all events that it wrote before the stop
    /// have been read.
    pub(super) async fn stop(&self, worker: Worker) -> bool {
        self.order(worker, Order::Stop).await
    }

    /// Resumes the process of a worker.
    pub(super) async fn resume(&self, worker: Worker) -> bool {
        self.order(worker, Order::Resume).await
    }

    /// Makes all workers exit; returns their error messages. A worker that does not exit in time is
    /// killed.
    pub(super) async fn dismiss(mut self, bound: Duration) -> Vec<String> {
        for member in &self.members {
            // The worker may have ended.
            let _ = member.orders.send(Order::Quit);
        }
        let mut complaints = Vec::new();
        let deadline = tokio::time::Instant::now() + bound;
        for member in &mut self.members {
            match tokio::time::timeout_at(deadline, &mut member.pump).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(complaint))) => complaints.push(complaint),
                Ok(Err(error)) => complaints.push(error.to_string()),
                Err(_) => {
                    for (worker, _) in &member.workers {
                        let last = self.live.last_words(*worker);
                        complaints
                            .push(format!("worker {worker} did not end within {bound:?}; its last words: {last}"));
                    }
                }
            }
        }
        complaints
    }
}

/// However a run ends, none of its processes goes on: dropping its pump kills the worker.
impl Drop for Member {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// Starts a process; returns when it works.
async fn begin(
    words: &[String],
    env: &[(String, String)],
    live: &Arc<Live>,
    assignment: Assignment,
) -> Result<Member, Trouble> {
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).chain([WORKER]).collect();
    let mut actor = Actor::spawn(Path::new(words.remove(0)), &words, &env)?;
    let text = serde_json::to_value(&assignment).map_err(|error| Trouble::new(error.to_string()))?;
    actor.send(&text).await?;
    let line = actor.recv(START).await?;
    let started = serde_json::from_value::<Event>(line).map_err(|error| Trouble::new(error.to_string()))?;
    live.hear(started);
    let (orders, ordered) = mpsc::unbounded_channel();
    let workers = assignment.workers;
    let pump = tokio::spawn(pump(actor, ordered, Arc::clone(live), workers.clone()));
    Ok(Member { workers, orders, pump })
}

/// Copies a worker's events into the history until it ends.
async fn pump(
    mut actor: Actor,
    mut orders: mpsc::UnboundedReceiver<Order>,
    live: Arc<Live>,
    workers: Vec<(Worker, u32)>,
) -> Result<(), String> {
    let all = |state: &State| {
        for (worker, _) in &workers {
            live.put(Event::Worker { t: live.now(), worker: *worker, state: state.clone() });
        }
    };
    let mut killed = false;
    let mut open = true;
    let mut left = workers.len();
    // The callers that wait until all events from before a stop have been read.
    let mut heard = VecDeque::new();
    loop {
        tokio::select! {
            line = actor.recv(Duration::from_secs(3600)) => match line.map(read) {
                Ok(Ok(None)) => {
                    if let Some(done) = heard.pop_front() {
                        tell(done, true);
                    }
                }
                Ok(Ok(Some(event))) => {
                    left -= usize::from(matches!(event, Event::Worker { state: State::Ended, .. }));
                    live.hear(event);
                    // After its last event, do not wait for other processes that briefly have its
                    // pipe open.
                    if left == 0 {
                        return exit(&mut actor, "said its last word").await;
                    }
                }
                // A killed worker's last line may be truncated.
                _ if killed => return Ok(()),
                Ok(Err(error)) => return Err(format!("a worker says what nobody understands: {error}")),
                Err(_) => {
                    for (worker, _) in &workers {
                        live.gone(*worker);
                    }
                    return exit(&mut actor, "fell silent").await;
                }
            },
            order = orders.recv(), if open => match order {
                Some(Order::Kill(done)) => {
                    // The time from before the kill: its locks may be free at once.
                    let t = live.now();
                    killed = actor.sigkill().is_ok();
                    for (worker, _) in &workers {
                        live.put(Event::Worker { t, worker: *worker, state: State::Killed });
                    }
                    tell(done, killed);
                }
                Some(Order::Stop(done)) => {
                    all(&State::Stopped);
                    // Its output may still be in the pipe: our marker follows it.
                    if actor.sigstop().is_ok() {
                        match actor.mark(&MARK.into()).await {
                            Ok(()) => heard.push_back(done),
                            // Treated as if the worker had ended, which is the only likely reason.
                            Err(_) if actor.sigcont().is_ok() => all(&State::Resumed),
                            Err(_) => {}
                        }
                    }
                }
                Some(Order::Resume(done)) => {
                    let resumed = actor.sigcont().is_ok();
                    all(&State::Resumed);
                    tell(done, resumed);
                }
                Some(Order::Quit) => {
                    // The worker may have ended.
                    let _ = actor.send(&serde_json::Value::Null).await;
                }
                None => open = false,
            },
        }
    }
}

/// Parses a line; `None`: it is our own marker.
fn read(line: serde_json::Value) -> Result<Option<Event>, serde_json::Error> {
    if line == MARK { Ok(None) } else { serde_json::from_value(line).map(Some) }
}

/// Waits for the worker's exit, which has happened or is near.
async fn exit(actor: &mut Actor, so_far: &str) -> Result<(), String> {
    match actor.wait_exit(EXIT).await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("a worker ended by itself, with {status}:\n{}", actor.story())),
        Err(_) => Err(format!(
            "a worker {so_far}, and did not end within {EXIT:?}; its threads:\n{}\n{}",
            threads(actor.pid()),
            actor.story()
        )),
    }
}

/// What the threads of a process do, for an error message.
fn threads(pid: u32) -> String {
    let folder = Path::new("/proc").join(pid.to_string()).join("task");
    let Ok(tasks) = std::fs::read_dir(&folder) else { return format!("{} is not there", folder.display()) };
    let mut lines = Vec::new();
    for task in tasks.flatten() {
        let of = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        lines.push(format!("{}; waits in {}; system call {}", of("stat"), of("wchan"), of("syscall")));
    }
    lines.join("\n")
}

/// Reports that an order was carried out. If the sender is dropped instead, the process has ended.
fn tell(done: oneshot::Sender<()>, carried_out: bool) {
    if carried_out {
        // The receiver may be gone.
        let _ = done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_says_its_last_word_late_still_has_its_time_to_end() {
        for ttl in [Duration::from_millis(500), Duration::from_secs(10)] {
            // The longest wait for a lock, and a second for the call to end.
            let last_word = ttl * 5 + Duration::from_secs(1);
            assert!(ending(ttl) >= last_word + EXIT);
        }
    }
}
