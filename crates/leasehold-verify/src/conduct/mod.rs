//! The conductor: starts the workers, causes the faults, writes the history, and checks for
//! leftovers at the end.

mod controls;
mod crew;
mod faults;
mod live;
pub mod schedule;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use leasehold::engine::{Capabilities, Fairness, Reach};

pub use self::controls::Control;
use self::crew::Crew;
use self::live::Live;
pub use self::live::Progress;
pub use crate::deploy::Trouble;
use crate::deploy::{Deployment, Local, Setup, UrlOption};
use crate::dice::Dice;
use crate::history::{Event, FaultKind, Header, Worker, Workload};
use crate::resource::Resource;
use crate::worker::{Assignment, lock_names, lock_prefix};

/// The default TTL of leases at an engine that was not started here.
pub const REMOTE_TTL: Duration = Duration::from_secs(3);

/// Three times the time limit of an inspection of the engine.
const LOOKING: Duration = Duration::from_secs(15);

/// The name prefix of the locks that are held all the time.
const ANCHOR: &str = "verify:anchor:";

/// How often an inspection is retried.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// At least this many calls.
    Calls(u64),
    /// This duration.
    Time(Duration),
}

/// Where the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Started here, with faults of any kind.
    Local(Local),
    /// The user's engine, by its URL.
    Engine(String),
}

impl Target {
    /// Whether it is the engine that lives in one process, with all workers.
    pub fn is_in_memory(&self) -> bool {
        match self {
            Self::Local(local) => *local == Local::Memory,
            Self::Engine(url) => url.to_ascii_lowercase().starts_with("memory:"),
        }
    }
}

/// The setting of runs: an engine, and the faults that it can have.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Where the engine is.
    pub target: Target,
    /// All faults that its runs may cause.
    pub faults: Vec<FaultKind>,
    /// The control: the safeguard that is off, if any.
    pub control: Option<Control>,
    /// The TTL of all leases; `None`: one that suits the engine.
    pub ttl: Option<Duration>,
    /// The URL option of an engine that is started here; `None`: the one that the faults need.
    pub option: Option<UrlOption>,
    /// The program that runs a worker if its first argument is [`WORKER`](crate::worker::WORKER).
    pub worker: PathBuf,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the workers do.
    pub workload: Workload,
    /// The faults to cause, out of those of the scene.
    pub faults: Vec<FaultKind>,
    /// The number of faults; `None`: one of each kind, or one every few seconds.
    pub times: Option<usize>,
    /// The number of workers.
    pub workers: u32,
    /// The length of the run.
    pub length: Length,
    /// The seed of all random choices.
    pub seed: u64,
    /// The file for the history; `None`: none.
    pub history: Option<PathBuf>,
}

/// A scene with its engine running.
#[derive(Debug)]
pub struct Stage {
    scene: Scene,
    ttl: Duration,
    deployment: Deployment,
    /// The workers' own wall clocks, if they are to jump.
    workers_clock: Option<leasehold_testbed::WallClock>,
    folder: tempfile::TempDir,
    runs: u32,
}

impl Stage {
    /// Starts what the scene needs.
    ///
    /// # Errors
    /// With a message for the user: a server is not installed, a fault cannot be caused there, …
    pub async fn open(scene: Scene) -> Result<Self, Trouble> {
        let ttl = scene.ttl.unwrap_or_else(|| scene.default_ttl());
        let control = scene.control;
        let faults: Vec<FaultKind> =
            scene.faults.iter().copied().filter(|kind| !control.is_some_and(|control| control.takes(*kind))).collect();
        let guard = control.is_none_or(|control| !control.is_of_the_servers());
        let setup = Setup { faults, guard, ttl, apart: true, option: scene.option };
        let deployment = match &scene.target {
            Target::Local(local) => Deployment::start(*local, &setup).await?,
            Target::Engine(url) => Deployment::remote(url, &setup).await?,
        };
        let moves_clocks = match control {
            Some(control) => control.takes(FaultKind::Clock),
            None => matches!(scene.target, Target::Local(_)) && scene.faults.contains(&FaultKind::Clock),
        };
        let workers_clock = moves_clocks.then(leasehold_testbed::WallClock::new).transpose()?;
        let folder = tempfile::Builder::new().prefix("leasehold-verify-").tempdir();
        let folder = folder.map_err(|error| Trouble::new(format!("no temporary folder: {error}")))?;
        Ok(Self { scene, ttl, deployment, workers_clock, folder, runs: 0 })
    }

    /// The workloads that the engine supports, out of these.
    ///
    /// # Errors
    /// If the engine cannot be opened.
    pub async fn able(&self, workloads: &[Workload]) -> Result<Vec<Workload>, Trouble> {
        let own = self.look_on().await?;
        let can = own.capabilities();
        Ok(workloads.iter().copied().filter(|workload| missing(can, *workload).is_none()).collect())
    }

    /// A client for inspections: it must not give up early on a busy machine. Our own servers may
    /// still be recovering from the last run's fault.
    async fn look_on(&self) -> Result<Locks, Trouble> {
        let ours = matches!(self.scene.target, Target::Local(_));
        let mut tries = 0;
        loop {
            match Locks::builder().ttl(LOOKING).open(self.deployment.own_url()).await {
                Ok(locks) => return Ok(locks),
                Err(error) if ours && error.is_retryable() && tries < LOOKS => tries += 1,
                Err(error) => return Err(words(error)),
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Runs, and returns the history.
    ///
    /// # Errors
    /// If the run could not be completed; violations by the engine are in the history.
    pub async fn perform(&mut self, run: &Run, mut progress: impl FnMut(&Progress)) -> Result<Vec<Event>, Trouble> {
        self.runs += 1;
        let own = self.look_on().await?;
        let locks = self.names(run);
        let anchors = self.anchors(run);
        let mut looked_at = lock_names(run.workload, &locks);
        looked_at.extend(anchors.iter().flatten().cloned());
        allowed(&own, run)?;
        let shared = own.capabilities().reach != Reach::Process;
        // An engine that cannot be inspected is not checked for leftovers.
        let looks = shared && own.capabilities().inspection;
        if looks {
            look_for_others(&own, &looked_at).await?;
        }
        self.deployment.remember().await?;
        // Only now, so that a failed start does not overwrite an older history of that name.
        let file = run.history.as_deref().map(create).transpose()?;
        let live = Arc::new(Live::new(file));
        live.put(Event::Run(Box::new(self.header(run, &own))));
        live.is_written().map_err(|error| Trouble::new(error.to_string()))?;
        let socket = self.folder.path().join(format!("resource-{}", self.runs));
        let _resource = Resource::serve(&socket).map_err(|error| Trouble::new(format!("no socket: {error}")))?;
        let assignment = Assignment { anchors, ..self.assignment(run, &live, locks.clone(), socket) };
        let env = self.workers_clock.iter().flat_map(leasehold_testbed::WallClock::environment).collect();
        let mut words = self.deployment.enter();
        words.push(self.scene.worker.display().to_string());
        let mut crew = Crew::new(words, env, &live);
        let lanes = 0..run.workers;
        let groups: Vec<Vec<u32>> = if shared { lanes.map(|lane| vec![lane]).collect() } else { vec![lanes.collect()] };
        crew.start(&assignment, &groups).await?;
        self.drive(run, &live, &mut crew, &assignment, &mut progress).await?;
        live.say("ending");
        progress(&live.progress());
        let complaints = crew.dismiss(crew::ending(self.ttl)).await;
        if looks {
            self.look_for_leftovers(&own, &looked_at, &live).await?;
        }
        if let Some(complaint) = complaints.into_iter().next() {
            return Err(Trouble::of_workers(complaint));
        }
        self.deployment.surprised().await?;
        // It holds nothing.
        let _ = own.close().await;
        self.look_for_sessions(&live).await?;
        live.put(Event::Done { t: live.now() });
        live.finish().map_err(|error| Trouble::new(error.to_string()))
    }

    /// The locks of a run: the same for the same seed, so that the engine does not fill up with
    /// names.
    fn names(&mut self, run: &Run) -> Vec<String> {
        let count = match run.workload {
            Workload::Mutex | Workload::Rwlock | Workload::Reentrant => 2,
            _ => 1,
        };
        let base = format!("verify:{}:{}", run.workload, run.seed);
        self.deployment.names(&base, lock_prefix(run.workload), count)
    }

    /// For each lane, locks that it holds all the time, if only some of the servers are hit.
    fn anchors(&mut self, run: &Run) -> Vec<Vec<String>> {
        // The history of a schedule contains only its runs.
        if run.workload == Workload::Ticks || run.faults.iter().all(|fault| !fault.hits_servers()) {
            return Vec::new();
        }
        let base = format!("{ANCHOR}{}:{}", run.workload, run.seed);
        (0..run.workers).map(|lane| self.deployment.anchors(&format!("{base}:{lane}"))).collect()
    }

    fn header(&self, run: &Run, own: &Locks) -> Header {
        let can = own.capabilities();
        Header {
            format: 1,
            leasehold: env!("CARGO_PKG_VERSION").to_owned(),
            engine: self.deployment.engine().to_owned(),
            url: own.url(),
            versions: self.deployment.versions(),
            workload: run.workload,
            faults: run.faults.clone(),
            guard: self.scene.control.is_none(),
            control: self.scene.control.map(|control| control.about().to_owned()),
            seed: run.seed,
            ttl: self.ttl.as_nanos() as u64,
            lanes: run.workers,
            fair: can.fairness == Fairness::Fifo,
            fencing: self.deployment.fencing(),
            exclusion: self.deployment.exclusion(),
            must_break: self.scene.control.map(|control| control.breaks().to_vec()).unwrap_or_default(),
            started: started(),
            notes: self.scene.notes(run),
        }
    }

    fn assignment(&self, run: &Run, live: &Live, locks: Vec<String>, resource: PathBuf) -> Assignment {
        let control = self.scene.control;
        // Waiting for a disk or a quorum takes time: holds are short beside it, and beside the TTL.
        let hold = (self.ttl / 25).min(Duration::from_millis(40));
        Assignment {
            url: self.deployment.url().to_owned(),
            ttl: self.ttl,
            origin: live.origin,
            workers: Vec::new(),
            anchors: Vec::new(),
            workload: run.workload,
            locks,
            hold: control.and_then(|control| control.hold(self.ttl)).unwrap_or(hold),
            steady: control.is_some_and(|control| control.hold(self.ttl).is_some()),
            resource,
            fenced: run.workload != Workload::Unfenced && control != Some(Control::NoFencing),
            hands: control.map(Control::hands).unwrap_or_default(),
            // A control demonstrates one thing.
            evicts: control.is_none(),
            seed: run.seed,
            history: run.history.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        }
    }

    /// Checks for leftover locks; those of killed workers last until their TTL.
    async fn look_for_leftovers(&self, own: &Locks, locks: &[String], live: &Live) -> Result<(), Trouble> {
        live.say("looking for what is left");
        let give_up = live.now() + self.lasts_at_most();
        let despair = give_up + LOOKING.as_nanos() as u64;
        loop {
            let mut left = Vec::new();
            let mut unclear = None;
            for lock in locks {
                match own.inspect(lock).await {
                    Ok(view) => left.extend(view.holders.iter().chain(&view.waiters).map(|party| {
                        let what = if party.token.is_some() { "held by" } else { "waited for by" };
                        (lock.clone(), format!("{what} process {} ({})", party.holder.pid, party.holder.text))
                    })),
                    Err(error) => unclear = Some(words(error)),
                }
            }
            match self.deployment.left(locks).await {
                Ok(more) => left.extend(more),
                Err(trouble) => unclear = Some(trouble),
            }
            let t = live.now();
            match (left.is_empty(), unclear) {
                (true, None) => {
                    live.put(Event::Clean { t, locks: locks.len() as u64 });
                    return Ok(());
                }
                (false, _) if t >= give_up => {
                    for (lock, what) in left {
                        live.put(Event::Leftover { t, lock, what });
                    }
                    return Ok(());
                }
                (true, Some(trouble)) if t >= despair => return Err(trouble),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Checks that clients which ended, and our own client, have no session at a database any more.
    async fn look_for_sessions(&self, live: &Live) -> Result<(), Trouble> {
        let give_up = live.now() + self.lasts_at_most();
        let despair = give_up + LOOKING.as_nanos() as u64;
        loop {
            let t = live.now();
            match self.deployment.sessions().await {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) if t >= give_up => {
                    for (lock, what) in left {
                        live.put(Event::Leftover { t, lock, what });
                    }
                    return Ok(());
                }
                Err(trouble) if t >= despair => return Err(trouble),
                _ => tokio::time::sleep(BETWEEN_LOOKS).await,
            }
        }
    }

    /// How long leftovers may last after all workers have ended.
    fn lasts_at_most(&self) -> u64 {
        (self.ttl * 3 + Duration::from_secs(5)).as_nanos() as u64
    }
}

async fn look_for_others(own: &Locks, locks: &[String]) -> Result<(), Trouble> {
    for lock in locks {
        let mut tries = 0;
        let view = loop {
            match own.inspect(lock).await {
                Ok(view) => break view,
                // The machine may be busy.
                Err(error) if error.is_retryable() && tries < LOOKS => tries += 1,
                Err(error) => return Err(words(error)),
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        };
        if let Some(party) = view.holders.first().or(view.waiters.first()) {
            let (host, pid) = (&party.holder.host, party.holder.pid);
            return Err(Trouble::new(format!(
                "process {pid} on {host} is at the lock {lock:?}: another verification with this seed goes on, or has just been killed. \
                 Wait for its end, or choose another --seed"
            )));
        }
    }
    Ok(())
}

/// Refuses, before anything starts, a workload that the engine does not support.
fn allowed(own: &Locks, run: &Run) -> Result<(), Trouble> {
    let can = own.capabilities();
    match missing(can, run.workload) {
        None => Ok(()),
        Some(missing) => {
            let workload = run.workload;
            Err(Trouble::usage(format!("{} has no {missing}: choose another --workload than {workload}", can.engine)))
        }
    }
}

/// The capability that the engine lacks for this workload.
fn missing(can: &Capabilities, workload: Workload) -> Option<&'static str> {
    match workload {
        Workload::Rwlock if !can.shared => Some("shared locks"),
        Workload::Semaphore if !can.permits => Some("permits"),
        Workload::Reentrant if !can.reentry => Some("re-entry"),
        Workload::Ticks if !can.records => Some("records, which schedules need"),
        Workload::Queue if !can.inspection || can.fairness != Fairness::Fifo => Some("line in which one waits"),
        _ => None,
    }
}

fn create(path: &Path) -> Result<File, Trouble> {
    // Workers append to it, too.
    let opened = File::create(path).and_then(|_| File::options().append(true).open(path));
    opened.map_err(|error| Trouble::new(format!("{} cannot be written: {error}", path.display())))
}

fn words(error: leasehold::Error) -> Trouble {
    use leasehold::ErrorKind::{FeatureDisabled, InvalidOption, InvalidUrl, UnknownScheme, Unsupported};
    let usage = [FeatureDisabled, InvalidOption, InvalidUrl, UnknownScheme, Unsupported].contains(&error.kind());
    if usage { Trouble::usage(error.to_string()) } else { Trouble::new(error.to_string()) }
}

#[allow(clippy::disallowed_methods, reason = "for people to read; nothing is decided by it")]
fn started() -> String {
    let now = std::time::SystemTime::now();
    jiff::Timestamp::try_from(now).map(|at| format!("{at:.0}")).unwrap_or_default()
}

impl Scene {
    fn default_ttl(&self) -> Duration {
        match &self.target {
            Target::Local(local) => {
                self.control.and_then(Control::ttl).unwrap_or_else(|| local.ttl_for(&self.faults, self.option))
            }
            Target::Engine(_) => REMOTE_TTL,
        }
    }

    /// The command that repeats the run.
    fn notes(&self, run: &Run) -> std::collections::BTreeMap<String, String> {
        let mut words = vec!["leasehold verify".to_owned()];
        words.push(match &self.target {
            Target::Local(local) => format!("--local {local}"),
            Target::Engine(_) => "--engine URL".to_owned(),
        });
        words.push(format!("--workload {}", run.workload));
        let faults: Vec<&str> = run.faults.iter().map(|kind| kind.as_str()).collect();
        words.push(format!("--faults {}", if faults.is_empty() { "none".to_owned() } else { faults.join(",") }));
        words.push(match run.length {
            Length::Calls(calls) => format!("--ops {calls}"),
            Length::Time(time) => format!("--for {}s", time.as_secs_f64()),
        });
        if let Some(times) = run.times.filter(|times| *times != run.faults.len() && !run.faults.is_empty()) {
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

/// A random one of the holders.
fn one_of(holders: &[Worker], dice: &mut Dice) -> Option<Worker> {
    dice.pick(holders).copied()
}
