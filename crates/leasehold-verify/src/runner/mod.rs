//! The conductor of a test run: starts the workers, causes the faults, writes the history, and
//! checks at the end that no lock is left.

mod controls;
pub mod fault_plan;
mod faults;
mod run_state;
mod workers;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::engine::{Capabilities, Fairness, Reach};

pub use self::controls::NegativeControl;
pub use self::run_state::Progress;
use self::run_state::RunState;
use self::workers::Workers;
pub use crate::deployment::RunError;
use crate::deployment::{Deployment, DeploymentOptions, LocalEngine, UrlOption};
use crate::fenced_resource::RegisterServer;
use crate::history::{Event, FaultKind, Header, WorkerId, Workload};
use crate::rng::Rng;
use crate::worker::{Assignment, lock_names, lock_prefix};

/// The default TTL of leases at an engine that was not started here.
pub const REMOTE_TTL: Duration = Duration::from_secs(3);

/// The TTL of the client that inspects locks: it gives up an inspection after a third of it.
const INSPECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// The name prefix of anchor locks. A lane is one of the workers that run at once; when a worker is
/// killed, its replacement continues the lane. Each lane holds one anchor lock on every server that
/// keeps locks, during the whole run. The anchor locks show whether a fault of one server loses
/// locks on the others.
const ANCHOR_PREFIX: &str = "verify:anchor:";

/// How long an inspection is retried at servers that were not started here.
const REMOTE_SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before an inspection is retried.
const INSPECTION_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long an inspection is retried at servers that were started here: they may still be
/// recovering from a fault, and the machine may be busy.
const OWN_SERVER_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// After at least this many calls.
    Calls(u64),
    /// After this time, which counts from the first grant.
    ForDuration(Duration),
}

/// The engine to test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineTarget {
    /// An engine whose servers are started here; they may have faults, too.
    Local(LocalEngine),
    /// The user's engine at this URL; its servers are never disturbed.
    Remote(String),
}

impl EngineTarget {
    /// Whether it is `memory:`, with which all workers share one process.
    pub fn is_in_memory(&self) -> bool {
        match self {
            Self::Local(local) => *local == LocalEngine::Memory,
            Self::Remote(url) => url.to_ascii_lowercase().starts_with("memory:"),
        }
    }
}

/// What all runs of a [`Conductor`] have in common: the engine, and the faults that it must
/// support.
#[derive(Clone, Debug)]
pub struct ConductorOptions {
    /// The engine to test.
    pub target: EngineTarget,
    /// All kinds of faults that the runs may cause.
    pub faults: Vec<FaultKind>,
    /// The negative control; `None`: all safeguards are on.
    pub control: Option<NegativeControl>,
    /// The TTL of all leases; `None`: the engine's default.
    pub ttl: Option<Duration>,
    /// The URL option of an engine that is started here; `None`: `strict` if the faults lose data,
    /// otherwise none.
    pub option: Option<UrlOption>,
    /// The program that runs a worker if its first argument is
    /// [`WORKER_ARGUMENT`](crate::worker::WORKER_ARGUMENT).
    pub worker: PathBuf,
}

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What the workers do.
    pub workload: Workload,
    /// The kinds of faults to cause; a subset of those in the [`ConductorOptions`].
    pub faults: Vec<FaultKind>,
    /// How many faults to cause; `None`: one of each kind or, in a run with a duration, one every
    /// few seconds if that is more.
    pub fault_count: Option<usize>,
    /// How many workers run at once.
    pub workers: u32,
    /// When the run ends.
    pub length: RunLength,
    /// The seed of all random choices.
    pub seed: u64,
    /// The file to write the history to; `None`: it is only returned.
    pub history: Option<PathBuf>,
}

/// Conducts test runs on one engine, whose servers it has started.
#[derive(Debug)]
pub struct Conductor {
    options: ConductorOptions,
    ttl: Duration,
    deployment: Deployment,
    /// The wall clock that the workers see; `None`: the machine's.
    workers_clock: Option<leasehold_testbed::WallClock>,
    /// The folder for the sockets of the resource.
    folder: tempfile::TempDir,
    /// How many runs have begun.
    run_count: u32,
}

impl Conductor {
    /// Starts the engine's servers and the proxies in front of them.
    ///
    /// # Errors
    /// With a message for the user: a server is not installed, the engine cannot have one of the
    /// faults.
    pub async fn open(options: ConductorOptions) -> Result<Self, RunError> {
        let ttl = options.ttl.unwrap_or_else(|| options.default_ttl());
        let control = options.control;
        let faults: Vec<FaultKind> = options
            .faults
            .iter()
            .copied()
            .filter(|kind| !control.is_some_and(|control| control.redirects_fault_to_workers(*kind)))
            .collect();
        let has_safeguards = control.is_none_or(|control| !control.misconfigures_servers());
        let deployment_options =
            DeploymentOptions { faults, has_safeguards, ttl, isolates_workers: true, option: options.option };
        let deployment = match &options.target {
            EngineTarget::Local(local) => Deployment::start(*local, &deployment_options).await?,
            EngineTarget::Remote(url) => Deployment::remote(url, &deployment_options).await?,
        };
        let moves_clocks = match control {
            Some(control) => control.redirects_fault_to_workers(FaultKind::Clock),
            None => matches!(options.target, EngineTarget::Local(_)) && options.faults.contains(&FaultKind::Clock),
        };
        let workers_clock = moves_clocks.then(leasehold_testbed::WallClock::new).transpose()?;
        let folder = tempfile::Builder::new().prefix("leasehold-verify-").tempdir();
        let folder = folder.map_err(|error| RunError::new(format!("cannot create a temporary folder: {error}")))?;
        Ok(Self { options, ttl, deployment, workers_clock, folder, run_count: 0 })
    }

    /// Those of these workloads that the engine supports.
    ///
    /// # Errors
    /// If the engine cannot be opened.
    pub async fn supported_workloads(&self, workloads: &[Workload]) -> Result<Vec<Workload>, RunError> {
        let own = self.open_inspector().await?;
        let can = own.capabilities();
        Ok(workloads.iter().copied().filter(|workload| missing_capability(can, *workload).is_none()).collect())
    }

    /// Whether the engine's servers were started here.
    fn has_own_servers(&self) -> bool {
        matches!(self.options.target, EngineTarget::Local(_))
    }

    /// How long a failing inspection is retried.
    fn inspection_timeout(&self) -> Duration {
        if self.has_own_servers() { OWN_SERVER_TIMEOUT } else { REMOTE_SERVER_TIMEOUT }
    }

    /// Opens a client that inspects locks. At servers that were started here it retries, because
    /// they may still be recovering from the last run's fault.
    async fn open_inspector(&self) -> Result<Locks, RunError> {
        let has_own_servers = self.has_own_servers();
        let give_up = tokio::time::Instant::now() + self.inspection_timeout();
        loop {
            match Locks::builder().ttl(INSPECTION_TIMEOUT).open(self.deployment.direct_url()).await {
                Ok(locks) => return Ok(locks),
                Err(error) if has_own_servers && error.is_retryable() && tokio::time::Instant::now() < give_up => {}
                Err(error) => return Err(run_error_of(error)),
            }
            tokio::time::sleep(INSPECTION_RETRY_PAUSE).await;
        }
    }

    /// Conducts one test run and returns its history. Calls `progress` repeatedly during the run.
    ///
    /// # Errors
    /// If the run could not be completed. A violation by the engine is no error: it is in the
    /// history.
    pub async fn run(&mut self, run: &RunOptions, mut progress: impl FnMut(&Progress)) -> Result<Vec<Event>, RunError> {
        self.run_count += 1;
        let own = self.open_inspector().await?;
        let locks = self.lock_names(run);
        let anchors = self.anchor_names(run);
        let mut inspected_locks = lock_names(run.workload, &locks);
        inspected_locks.extend(anchors.iter().flatten().cloned());
        check_workload_supported(&own, run)?;
        let shared = own.capabilities().reach != Reach::Process;
        // Without inspection, leftover locks cannot be found.
        let inspects = shared && own.capabilities().inspection;
        if inspects {
            refuse_foreign_clients(&own, &inspected_locks, self.inspection_timeout()).await?;
        }
        self.deployment.save_baseline().await?;
        // Created only now, so that a failed start does not overwrite an older history of that
        // name.
        let file = run.history.as_deref().map(create_history_file).transpose()?;
        let run_state = Arc::new(RunState::new(file));
        run_state.record(Event::Run(Box::new(self.header(run, &own))));
        run_state.check_written().map_err(|error| RunError::new(error.to_string()))?;
        let socket = self.folder.path().join(format!("resource-{}", self.run_count));
        let _resource =
            RegisterServer::start(&socket).map_err(|error| RunError::new(format!("cannot open a socket: {error}")))?;
        let assignment = Assignment { anchors, ..self.assignment(run, &run_state, locks.clone(), socket) };
        let env = self.workers_clock.iter().flat_map(leasehold_testbed::WallClock::environment).collect();
        let mut command = self.deployment.worker_command_prefix();
        command.push(self.options.worker.display().to_string());
        let mut workers = Workers::new(command, env, &run_state);
        let lanes = 0..run.workers;
        let groups: Vec<Vec<u32>> = if shared { lanes.map(|lane| vec![lane]).collect() } else { vec![lanes.collect()] };
        workers.start(&assignment, &groups).await?;
        self.drive_faults(run, &run_state, &mut workers, &assignment, &mut progress).await?;
        run_state.set_activity("ending");
        progress(&run_state.progress());
        let worker_errors = workers.shut_down(workers::shutdown_bound(self.ttl)).await;
        if inspects {
            self.record_leftovers(&own, &inspected_locks, &run_state).await?;
        }
        if let Some(error) = worker_errors.into_iter().next() {
            return Err(RunError::worker(error));
        }
        self.deployment.check_no_foreign_failover().await?;
        // The client that inspected holds no locks, so an error has no consequences.
        let _ = own.close().await;
        self.record_leftover_sessions(&run_state).await?;
        run_state.record(Event::Done { t: run_state.now() });
        run_state.finish().map_err(|error| RunError::new(error.to_string()))
    }

    /// The names of a run's locks, without their prefix. They depend only on workload and seed, so
    /// that repeated runs leave no further records on the engine.
    fn lock_names(&mut self, run: &RunOptions) -> Vec<String> {
        let count = match run.workload {
            Workload::Mutex | Workload::Rwlock | Workload::Reentrant => 2,
            _ => 1,
        };
        let base = format!("verify:{}:{}", run.workload, run.seed);
        self.deployment.lock_names(&base, lock_prefix(run.workload), count)
    }

    /// For each lane, the names of its anchor locks, which it holds during the whole run; empty if
    /// no fault hits only some of the servers.
    fn anchor_names(&mut self, run: &RunOptions) -> Vec<Vec<String>> {
        // The history of a scheduled job contains only its runs and their force releases.
        if run.workload == Workload::Ticks || run.faults.iter().all(|fault| !fault.targets_servers()) {
            return Vec::new();
        }
        let base = format!("{ANCHOR_PREFIX}{}:{}", run.workload, run.seed);
        (0..run.workers).map(|lane| self.deployment.anchor_names(&format!("{base}:{lane}"))).collect()
    }

    /// The first line of the history.
    fn header(&self, run: &RunOptions, inspector: &Locks) -> Header {
        let can = inspector.capabilities();
        Header {
            format: 1,
            leasehold: env!("CARGO_PKG_VERSION").to_owned(),
            engine: self.deployment.engine().to_owned(),
            url: inspector.url(),
            versions: self.deployment.versions(),
            workload: run.workload,
            faults: run.faults.clone(),
            guard: self.options.control.is_none(),
            control: self.options.control.map(|control| control.description().to_owned()),
            seed: run.seed,
            ttl: self.ttl.as_nanos() as u64,
            lanes: run.workers,
            fair: can.fairness == Fairness::Fifo,
            fencing: self.deployment.guarantees_tokens(),
            exclusion: self.deployment.guarantees_exclusion(),
            must_break: self.options.control.map(|control| control.broken_guarantees().to_vec()).unwrap_or_default(),
            started: start_time_text(),
            notes: self.options.header_notes(run),
        }
    }

    /// The workers' parameters, without their numbers and anchor locks.
    fn assignment(&self, run: &RunOptions, run_state: &RunState, locks: Vec<String>, resource: PathBuf) -> Assignment {
        let control = self.options.control;
        // Holds are short compared with the TTL, and with a wait for a disk or a quorum.
        let hold = (self.ttl / 25).min(Duration::from_millis(40));
        Assignment {
            url: self.deployment.url().to_owned(),
            ttl: self.ttl,
            origin: run_state.origin,
            workers: Vec::new(),
            anchors: Vec::new(),
            workload: run.workload,
            locks,
            max_hold: control.and_then(|control| control.hold_time(self.ttl)).unwrap_or(hold),
            has_constant_hold: control.is_some_and(|control| control.hold_time(self.ttl).is_some()),
            resource,
            presents_tokens: run.workload != Workload::Unfenced && control != Some(NegativeControl::NoFencing),
            lock_implementation: control.map(NegativeControl::lock_implementation).unwrap_or_default(),
            // A negative control must show the violation of its own safeguard, and nothing else.
            force_releases: control.is_none(),
            seed: run.seed,
            history: run.history.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        }
    }

    /// Waits until no lock is held or awaited (those of killed workers expire at their TTL), and
    /// records that. What is left after the bound is recorded as a leak.
    async fn record_leftovers(
        &self,
        inspector: &Locks,
        locks: &[String],
        run_state: &RunState,
    ) -> Result<(), RunError> {
        run_state.set_activity("checking for leftovers");
        let give_up = run_state.now() + self.leftover_bound();
        let hard_deadline = give_up + self.inspection_timeout().max(INSPECTION_TIMEOUT).as_nanos() as u64;
        loop {
            let mut left = Vec::new();
            let mut inspection_error = None;
            for lock in locks {
                match inspector.inspect(lock).await {
                    Ok(view) => left.extend(view.holders.iter().chain(&view.waiters).map(|contender| {
                        let what = if contender.token.is_some() { "held by" } else { "waited for by" };
                        (
                            lock.clone(),
                            format!("{what} process {} ({})", contender.holder.pid, contender.holder.description),
                        )
                    })),
                    Err(error) => inspection_error = Some(run_error_of(error)),
                }
            }
            match self.deployment.leftovers(locks).await {
                Ok(more) => left.extend(more),
                Err(error) => inspection_error = Some(error),
            }
            let t = run_state.now();
            match (left.is_empty(), inspection_error) {
                (true, None) => {
                    run_state.record(Event::Clean { t, locks: locks.len() as u64 });
                    return Ok(());
                }
                (false, _) if t >= give_up => {
                    for (lock, what) in left {
                        run_state.record(Event::Leftover { t, lock, what });
                    }
                    return Ok(());
                }
                (true, Some(error)) if t >= hard_deadline => return Err(error),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until no client has a session at a database that was started here. Those that are left
    /// after the bound are recorded as leaks.
    async fn record_leftover_sessions(&self, run_state: &RunState) -> Result<(), RunError> {
        let give_up = run_state.now() + self.leftover_bound();
        let hard_deadline = give_up + self.inspection_timeout().max(INSPECTION_TIMEOUT).as_nanos() as u64;
        loop {
            let t = run_state.now();
            match self.deployment.leftover_sessions().await {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) if t >= give_up => {
                    for (lock, what) in left {
                        run_state.record(Event::Leftover { t, lock, what });
                    }
                    return Ok(());
                }
                Err(error) if t >= hard_deadline => return Err(error),
                _ => tokio::time::sleep(INSPECTION_RETRY_PAUSE).await,
            }
        }
    }

    /// How long, in nanoseconds, locks and sessions may remain after all workers have ended.
    fn leftover_bound(&self) -> u64 {
        (self.ttl * 3 + Duration::from_secs(5)).as_nanos() as u64
    }
}

/// Fails if a client of another run holds or awaits one of these locks.
async fn refuse_foreign_clients(inspector: &Locks, locks: &[String], timeout: Duration) -> Result<(), RunError> {
    for lock in locks {
        let give_up = tokio::time::Instant::now() + timeout;
        let view = loop {
            match inspector.inspect(lock).await {
                Ok(view) => break view,
                // The machine may be busy: try again.
                Err(error) if error.is_retryable() && tokio::time::Instant::now() < give_up => {}
                Err(error) => return Err(run_error_of(error)),
            }
            tokio::time::sleep(INSPECTION_RETRY_PAUSE).await;
        };
        if let Some(contender) = view.holders.first().or(view.waiters.first()) {
            let (host, pid) = (&contender.holder.host, contender.holder.pid);
            return Err(RunError::new(format!(
                "process {pid} on {host} holds or awaits the lock {lock:?}: another test run with this seed is active, or was just killed. Wait until it ends and its leases expire, or choose another --seed"
            )));
        }
    }
    Ok(())
}

/// Fails with a usage error if the engine does not support the workload.
fn check_workload_supported(inspector: &Locks, run: &RunOptions) -> Result<(), RunError> {
    let can = inspector.capabilities();
    match missing_capability(can, run.workload) {
        None => Ok(()),
        Some(missing) => {
            let workload = run.workload;
            Err(RunError::usage(format!("{} has no {missing}: choose another --workload than {workload}", can.engine)))
        }
    }
}

/// The capability that this workload needs and the engine lacks, in words; `None`: it lacks none.
fn missing_capability(capabilities: &Capabilities, workload: Workload) -> Option<&'static str> {
    match workload {
        Workload::Rwlock if !capabilities.shared => Some("shared locks"),
        Workload::Semaphore if !capabilities.permits => Some("permits"),
        Workload::Reentrant if !capabilities.reentrancy => Some("re-entry"),
        Workload::Ticks if !capabilities.records => Some("records, which schedules need"),
        Workload::Queue if !capabilities.inspection || capabilities.fairness != Fairness::Fifo => Some("queue"),
        _ => None,
    }
}

/// Creates the history's file, empty, and opens it for appending.
fn create_history_file(path: &Path) -> Result<File, RunError> {
    // Workers append to it, too.
    let opened = File::create(path).and_then(|_| File::options().append(true).open(path));
    opened.map_err(|error| RunError::new(format!("{} cannot be written: {error}", path.display())))
}

/// Converts an error of the engine. An invalid URL or option is a usage error.
fn run_error_of(error: leasehold::Error) -> RunError {
    use leasehold::ErrorKind::{FeatureDisabled, InvalidOption, InvalidUrl, UnknownScheme, Unsupported};
    let usage = [FeatureDisabled, InvalidOption, InvalidUrl, UnknownScheme, Unsupported].contains(&error.kind());
    if usage { RunError::usage(error.to_string()) } else { RunError::new(error.to_string()) }
}

/// The wall-clock time now, as text for the report.
#[allow(clippy::disallowed_methods, reason = "only shown in the report; no decision depends on it")]
fn start_time_text() -> String {
    let now = std::time::SystemTime::now();
    jiff::Timestamp::try_from(now).map(|at| format!("{at:.0}")).unwrap_or_default()
}

impl ConductorOptions {
    /// The TTL of a run for which none was chosen.
    fn default_ttl(&self) -> Duration {
        match &self.target {
            EngineTarget::Local(local) => self
                .control
                .and_then(NegativeControl::required_ttl)
                .unwrap_or_else(|| local.ttl_for(&self.faults, self.option)),
            EngineTarget::Remote(_) => REMOTE_TTL,
        }
    }

    /// The notes in the history's header: the command that repeats the run.
    fn header_notes(&self, run: &RunOptions) -> std::collections::BTreeMap<String, String> {
        let mut words = vec!["leasehold verify".to_owned()];
        words.push(match &self.target {
            EngineTarget::Local(local) => format!("--local {local}"),
            EngineTarget::Remote(_) => "--engine URL".to_owned(),
        });
        words.push(format!("--workload {}", run.workload));
        let faults: Vec<&str> = run.faults.iter().map(|kind| kind.as_str()).collect();
        words.push(format!("--faults {}", if faults.is_empty() { "none".to_owned() } else { faults.join(",") }));
        words.push(match run.length {
            RunLength::Calls(calls) => format!("--ops {calls}"),
            RunLength::ForDuration(time) => format!("--for {}s", time.as_secs_f64()),
        });
        if let Some(times) = run.fault_count.filter(|times| *times != run.faults.len() && !run.faults.is_empty()) {
            words.push(format!("--times {times}"));
        }
        words.push(format!("--seed {} --workers {}", run.seed, run.workers));
        if let Some(ttl) = self.ttl {
            words.push(format!("--ttl {}s", ttl.as_secs_f64()));
        }
        if let Some(option) = self.option {
            words.push(format!("--option {option}"));
        }
        if self.control.is_some() {
            words.push("--guard off".to_owned());
        }
        [("command".to_owned(), words.join(" "))].into()
    }
}

/// A random one of these workers; `None`: there are none.
fn random_worker(workers: &[WorkerId], rng: &mut Rng) -> Option<WorkerId> {
    rng.choose(workers).copied()
}
