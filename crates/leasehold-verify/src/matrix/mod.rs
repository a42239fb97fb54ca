//! Every engine under every fault: many histories each, with fixed seeds.
//!
//! A [`Cell`] is one engine under one fault. Its histories use the workloads in turn. Each has its
//! own seed, and they run one after the other on the same servers. Cells are independent, and
//! several run concurrently.

mod outcome;
mod table;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;

pub use self::outcome::Outcome;
pub use self::table::table;
use crate::check::{self, Judge};
use crate::conduct::{Control, Length, Run, Scene, Stage, Target, Trouble};
use crate::deploy::{Local, UrlOption};
use crate::history::{FaultKind, Workload};

/// The workloads that the histories of a cell use in turn.
const WORKLOADS: [Workload; 9] = [
    Workload::Fenced,
    Workload::Counter,
    Workload::Mutex,
    Workload::Queue,
    Workload::Rwlock,
    Workload::Fenced,
    Workload::Semaphore,
    Workload::Reentrant,
    Workload::Election,
];

/// URL options with which a fault gets an additional cell.
const WITH_OPTIONS: [(Local, FaultKind, UrlOption); 6] = [
    (Local::Redis, FaultKind::Clock, UrlOption::Strict),
    (Local::RedisSentinel, FaultKind::Clock, UrlOption::Strict),
    (Local::RedisSentinel, FaultKind::Clock, UrlOption::Replicas),
    (Local::RedisCluster, FaultKind::Clock, UrlOption::Replicas),
    (Local::RedisCluster, FaultKind::Reshard, UrlOption::Strict),
    (Local::Redlock, FaultKind::Clock, UrlOption::Strict),
];

/// One engine under one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The engine.
    pub local: Local,
    /// The fault; `None`: no fault.
    pub fault: Option<FaultKind>,
    /// The option of its URL; `None`: the one that the fault needs.
    pub option: Option<UrlOption>,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}", self.local, if self.fault.is_some() { self.name() } else { "nothing".to_owned() })
    }
}

impl Cell {
    /// The fault, and the option if there is one: `clock+strict`; `none` without a fault.
    pub fn name(self) -> String {
        let option = self.option.map(|option| format!("+{option}")).unwrap_or_default();
        format!("{}{option}", self.fault.map_or("none", FaultKind::as_str))
    }
}

/// All cells that can run here.
pub fn cells() -> Vec<Cell> {
    let of = |local: &Local| {
        let local = *local;
        let faults = local.faults().into_iter().map(Some);
        let plain = std::iter::once(None).chain(faults).map(move |fault| Cell { local, fault, option: None });
        let with = WITH_OPTIONS.iter().filter(move |(one, fault, _)| *one == local && local.can(*fault).is_ok());
        plain.chain(with.map(move |(_, fault, option)| Cell { local, fault: Some(*fault), option: Some(*option) }))
    };
    Local::ALL.iter().flat_map(of).collect()
}

/// The rows of a table of all cells: no fault, each fault, and the combinations with an option.
pub(crate) fn rows() -> Vec<(Option<FaultKind>, Option<UrlOption>)> {
    let mut rows = vec![(None, None)];
    for fault in FaultKind::ALL {
        rows.push((Some(*fault), None));
        for option in UrlOption::ALL {
            if WITH_OPTIONS.iter().any(|(_, one, with)| (one, with) == (fault, option)) {
                rows.push((Some(*fault), Some(*option)));
            }
        }
    }
    rows
}

/// The extent of a run of cells.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Histories in a cell.
    pub histories: u64,
    /// The minimum of calls in a history.
    pub calls: u64,
    /// Ticks in an additional history of a scheduled job that is due every second; 0: no such
    /// history.
    pub ticks: u64,
    /// Faults in a history.
    pub faults: usize,
    /// Workers in a history.
    pub workers: u32,
    /// Cells that run concurrently.
    pub at_once: usize,
    /// The first seed.
    pub seed: u64,
    /// The worker program.
    pub worker: PathBuf,
    /// The folder for histories with violations, and their reports.
    pub kept: PathBuf,
    /// Whether an exceeded time bound is a failure.
    pub judge: Judge,
}

/// Runs several cells concurrently, and reports each one when it ends.
pub async fn run(cells: Vec<Cell>, extent: &Extent, mut told: impl FnMut(&Cell, &Outcome)) -> Vec<(Cell, Outcome)> {
    let mut queue: VecDeque<Cell> = in_turn(cells).into();
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < extent.at_once {
            let Some(cell) = queue.pop_front() else { break };
            let extent = extent.clone();
            running.spawn(async move { (cell, run_cell(cell, &extent).await) });
        }
        match running.join_next().await {
            Some(Ok((cell, outcome))) => {
                told(&cell, &outcome);
                done.push((cell, outcome));
            }
            // A panic in a cell: the others go on, and its absence is detected.
            Some(Err(_)) => {}
            None => break,
        }
    }
    done.sort_by_key(|(cell, _)| *cell);
    done
}

/// Orders cells by alternating engines, so that not all databases wait for the disk at the same
/// time; slow cells come first.
fn in_turn(cells: Vec<Cell>) -> Vec<Cell> {
    let mut numbered: Vec<(usize, Cell)> = Vec::new();
    for cell in cells {
        let number = numbered.iter().filter(|(_, other)| other.local == cell.local).count();
        numbered.push((number, cell));
    }
    let long = |cell: &Cell| cell.local.ttl_for(&Vec::from_iter(cell.fault), cell.option) > Duration::from_secs(2);
    numbered.sort_by_key(|(number, cell)| (!long(cell), *number));
    numbered.into_iter().map(|(_, cell)| cell).collect()
}

async fn run_cell(cell: Cell, extent: &Extent) -> Outcome {
    let mut outcome = Outcome::of(cell);
    if let Err(trouble) = run_histories(cell, extent, &mut outcome).await {
        outcome.troubles.push(trouble.to_string());
    }
    outcome
}

/// Runs the histories of a cell. If a history did not complete, the machine may be the cause: the
/// same one runs once more, on fresh servers. A history with a violation never runs again.
async fn run_histories(cell: Cell, extent: &Extent, outcome: &mut Outcome) -> Result<(), Trouble> {
    let faults = Vec::from_iter(cell.fault);
    make(&extent.kept)?;
    let (mut stage, workloads) = open(cell, extent, outcome).await?;
    for (number, workload) in (0..).zip(workloads) {
        let seed = extent.seed + number;
        // Kept only if it has a violation, or does not complete.
        let written = extent.kept.join(format!("{}-{workload}-{seed}-cut.jsonl", outcome.stem()));
        let run = Run {
            workload,
            faults: faults.clone(),
            times: Some(if faults.is_empty() { 0 } else { extent.faults }),
            workers: extent.workers,
            length: Length::Calls(if workload == Workload::Ticks { extent.ticks } else { extent.calls }),
            seed,
            history: Some(written.clone()),
        };
        for first in [true, false] {
            match stage.perform(&run, |_| ()).await {
                // The checker needs the processor for a while; it must not block other tasks.
                Ok(events) => {
                    tokio::task::block_in_place(|| {
                        outcome.take_in(&events, &run, &extent.kept, extent.judge);
                        // A history with violations is stored under another name by now.
                        let _ = std::fs::remove_file(&written);
                    });
                    break;
                }
                Err(trouble) => {
                    drop(stage);
                    let again = tokio::task::block_in_place(|| outcome.cut_short(&trouble, first, &run, &written));
                    stage = open(cell, extent, outcome).await?.0;
                    if !again {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Starts the servers; returns them with the workload of each history. A failed start is retried
/// once.
async fn open(cell: Cell, extent: &Extent, outcome: &mut Outcome) -> Result<(Stage, Vec<Workload>), Trouble> {
    match open_once(cell, extent).await {
        Err(trouble) if trouble.is_passing() => outcome.again.push(trouble.to_string()),
        opened => return opened,
    }
    open_once(cell, extent).await
}

async fn open_once(cell: Cell, extent: &Extent) -> Result<(Stage, Vec<Workload>), Trouble> {
    let worker = extent.worker.clone();
    let faults = Vec::from_iter(cell.fault);
    let scene =
        Scene { target: Target::Local(cell.local), faults, control: None, ttl: None, option: cell.option, worker };
    let stage = Stage::open(scene).await?;
    let workloads = stage.able(&WORKLOADS).await?;
    // By a clock that is far ahead, a thousand ticks are due at once. Two histories: with an odd
    // seed the job runs again after a crash, with an even one it does not.
    let ticks = match extent.ticks > 0 && cell.fault != Some(FaultKind::Ahead) {
        true => stage.able(&[Workload::Ticks, Workload::Ticks]).await?,
        false => Vec::new(),
    };
    let workloads = workloads.into_iter().cycle().take(extent.histories as usize).chain(ticks).collect();
    Ok((stage, workloads))
}

fn make(folder: &Path) -> Result<(), Trouble> {
    let made = std::fs::create_dir_all(folder);
    made.map_err(|error| Trouble::new(format!("{} cannot be made: {error}", folder.display())))
}

/// Runs the histories of a negative control, each of which the checker should detect. Returns how
/// many it detected, of how many. A history that could not be run is retried once, on fresh
/// servers, and reported to `told`; an undetected one is not retried.
///
/// # Errors
/// If a history could not be run.
pub async fn run_control(control: Control, extent: &Extent, mut told: impl FnMut(&str)) -> Result<(u64, u64), Trouble> {
    make(&extent.kept)?;
    let (mut stage, mut found) = (None, 0);
    for seed in (extent.seed..).take(extent.histories as usize) {
        let is_found = match control_once(control, extent, seed, &mut stage).await {
            Err(trouble) if trouble.is_passing() => {
                told(&format!("{}, seed {seed}, is run once more: {trouble}", control.about()));
                stage = None;
                control_once(control, extent, seed, &mut stage).await?
            }
            run => run?,
        };
        found += u64::from(is_found);
    }
    Ok((found, extent.histories))
}

/// Runs one history of a control, on existing or fresh servers. Returns whether it was detected.
async fn control_once(
    control: Control,
    extent: &Extent,
    seed: u64,
    stage: &mut Option<Stage>,
) -> Result<bool, Trouble> {
    let (local, workload, fault) = control.command();
    let (calls, faults) = control.extent();
    let (target, worker) = (Target::Local(local), extent.worker.clone());
    let scene = Scene { target, faults: vec![fault], control: Some(control), ttl: None, option: None, worker };
    let stage = match stage {
        Some(stage) => stage,
        None => stage.insert(Stage::open(scene).await?),
    };
    // Kept only if it was not detected, or does not complete.
    let written = extent.kept.join(format!("control-{local}-{workload}-{fault}-{seed}.jsonl"));
    let run = Run {
        workload,
        faults: vec![fault],
        times: Some(faults),
        workers: 5,
        length: Length::Calls(calls),
        seed,
        history: Some(written.clone()),
    };
    let events = stage.perform(&run, |_| ()).await?;
    // The checker needs the processor for a while, and longer if a register's history is wrong; it
    // must not block other tasks.
    let is_found = tokio::task::block_in_place(|| check::check(&events).as_expected());
    if is_found {
        let _ = std::fs::remove_file(&written);
    }
    Ok(is_found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{self, Call, Event, Mode};

    const CELL: Cell = Cell { local: Local::Memory, fault: None, option: None };

    fn run() -> Run {
        let length = Length::Calls(20);
        let workload = Workload::Mutex;
        Run { workload, faults: Vec::new(), times: None, workers: 2, length, seed: 7, history: None }
    }

    /// Two workers are granted a lock with these tokens, the second while the first holds it.
    fn history(tokens: [u64; 2]) -> String {
        let header = r#"{"event":"run","format":1,"leasehold":"","engine":"memory","url":"","workload":"rwlock","guard":true,"seed":7,"ttl":1000000000,"lanes":2,"fair":true,"fencing":true,"started":""}"#;
        let mut events = vec![serde_json::from_str(header).unwrap()];
        for (worker, token) in (1..).zip(tokens) {
            let (t, op) = (u64::from(worker) * 1000, u64::from(worker) << 32 | 1);
            let state = history::State::Started { lane: worker, pid: worker };
            events.push(Event::Worker { t, worker, state });
            let call = Call::Lock { lock: "a".to_owned(), mode: Mode::Shared, owner: None, waits: false };
            events.push(Event::Begin { t: t + 1, worker, op, due: None, call });
            let outcome = history::Outcome::Granted { token, deadline: t + 1_000_000_000 };
            events.push(Event::End { t: t + 2, op, outcome });
        }
        events.iter().map(history::line).collect()
    }

    #[test]
    fn what_went_wrong_before_the_trouble_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("cut.jsonl");
        let cut = |tokens, first, trouble: &Trouble| {
            std::fs::write(&written, history(tokens)).unwrap();
            let mut outcome = Outcome::of(CELL);
            let again = outcome.cut_short(trouble, first, &run(), &written);
            (again, outcome.broken, outcome.troubles.len(), outcome.again.len())
        };
        let passing = Trouble::new("the machine is busy");
        assert_eq!(cut([1, 2], true, &passing), (true, 0, 0, 1));
        assert_eq!(cut([1, 2], false, &passing), (false, 0, 1, 0));
        assert_eq!(cut([2, 2], true, &passing), (false, 1, 1, 0));
        assert_eq!(cut([1, 2], true, &Trouble::of_workers("a worker crashed")), (false, 0, 1, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_could_not_be_run_is_run_once_more_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let (worker, kept) = (folder.path().join("nobody"), folder.path().join("kept"));
        let extent = Extent {
            histories: 2,
            calls: 20,
            ticks: 0,
            faults: 0,
            workers: 2,
            at_once: 1,
            seed: 7,
            worker,
            kept,
            judge: Judge::default(),
        };
        let (_, outcome) = super::run(vec![CELL], &extent, |_, _| ()).await.remove(0);
        assert_eq!((outcome.again.len(), outcome.troubles.len(), outcome.histories), (2, 2, 0), "{}", outcome.line());
        assert!(!outcome.holds() && outcome.line().contains("run once more: fenced, seed 7"), "{}", outcome.line());
        let mut told = Vec::new();
        let extent = Extent { histories: 1, ..extent };
        let control = run_control(Control::NoFencing, &extent, |words| told.push(words.to_owned()));
        assert!(control.await.is_err());
        assert!(matches!(told.as_slice(), [once] if once.contains("once more")), "{told:?}");
    }
}
