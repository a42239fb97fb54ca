//! The matrix: test runs of every engine under every fault, many histories each, with fixed seeds.
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

pub use self::outcome::CellOutcome;
pub use self::table::guarantee_tables;
use crate::checker::{self, CheckOptions};
use crate::deployment::{LocalEngine, UrlOption};
use crate::history::{FaultKind, Workload};
use crate::runner::{Conductor, ConductorOptions, EngineTarget, NegativeControl, RunError, RunLength, RunOptions};

/// The workloads that the histories of a cell use in turn.
const CELL_WORKLOADS: [Workload; 9] = [
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

/// The engines and faults that have a further cell in which the engine's URL has this option.
const CELLS_WITH_OPTION: [(LocalEngine, FaultKind, UrlOption); 7] = [
    (LocalEngine::Redis, FaultKind::Clock, UrlOption::Strict),
    (LocalEngine::RedisSentinel, FaultKind::Clock, UrlOption::Strict),
    (LocalEngine::RedisSentinel, FaultKind::Clock, UrlOption::Replicas),
    (LocalEngine::RedisCluster, FaultKind::Clock, UrlOption::Strict),
    (LocalEngine::RedisCluster, FaultKind::Clock, UrlOption::Replicas),
    (LocalEngine::RedisCluster, FaultKind::Reshard, UrlOption::Strict),
    (LocalEngine::Redlock, FaultKind::Clock, UrlOption::Strict),
];

/// A cell of the matrix: one engine under one kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The engine.
    pub engine: LocalEngine,
    /// The fault; `None`: no fault.
    pub fault: Option<FaultKind>,
    /// The option of the engine's URL; `None`: `strict` if the fault loses data, otherwise none.
    pub option: Option<UrlOption>,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}", self.engine, if self.fault.is_some() { self.name() } else { "nothing".to_owned() })
    }
}

impl Cell {
    /// The cell's name without the engine: the fault and its option, such as `clock+strict`; `none`
    /// without a fault.
    pub fn name(self) -> String {
        let option = self.option.map(|option| format!("+{option}")).unwrap_or_default();
        format!("{}{option}", self.fault.map_or("none", FaultKind::as_str))
    }
}

/// All cells that can run on this machine: some faults need root.
pub fn cells() -> Vec<Cell> {
    let of = |local: &LocalEngine| {
        let local = *local;
        let faults = local.faults().into_iter().map(Some);
        let plain = std::iter::once(None).chain(faults).map(move |fault| Cell { engine: local, fault, option: None });
        let with =
            CELLS_WITH_OPTION.iter().filter(move |(one, fault, _)| *one == local && local.check_fault(*fault).is_ok());
        plain.chain(with.map(move |(_, fault, option)| Cell {
            engine: local,
            fault: Some(*fault),
            option: Some(*option),
        }))
    };
    LocalEngine::ALL.iter().flat_map(of).collect()
}

/// The rows of a table of all cells, as fault and URL option: no fault, each fault alone, and each
/// fault with an option for which there are cells.
pub(crate) fn table_rows() -> Vec<(Option<FaultKind>, Option<UrlOption>)> {
    let mut rows = vec![(None, None)];
    for fault in FaultKind::ALL {
        rows.push((Some(*fault), None));
        for option in UrlOption::ALL {
            if CELLS_WITH_OPTION.iter().any(|(_, one, with)| (one, with) == (fault, option)) {
                rows.push((Some(*fault), Some(*option)));
            }
        }
    }
    rows
}

/// How many histories of which length the cells have, and how they run.
#[derive(Clone, Debug)]
pub struct MatrixOptions {
    /// How many histories each cell has.
    pub histories: u64,
    /// The least number of calls in a history.
    pub calls: u64,
    /// How many ticks the two additional histories of a scheduled job have; 0: there are no such
    /// histories.
    pub ticks: u64,
    /// How many faults a history has, if the cell has a fault.
    pub faults: usize,
    /// How many workers a history has at once.
    pub workers: u32,
    /// How many cells run concurrently.
    pub concurrency: usize,
    /// The seed of each cell's first history; the next ones have the following numbers.
    pub seed: u64,
    /// The program that runs a worker.
    pub worker: PathBuf,
    /// The folder for histories with violations, and their reports.
    pub violations_dir: PathBuf,
    /// Whether an exceeded time bound is a failure.
    pub check_options: CheckOptions,
}

/// Runs cells, several of them concurrently; returns their outcomes in the order of the cells.
/// Calls `on_cell_done` when a cell ends. A cell that panicked is left out.
pub async fn run_cells(
    cells: Vec<Cell>,
    options: &MatrixOptions,
    mut on_cell_done: impl FnMut(&Cell, &CellOutcome),
) -> Vec<(Cell, CellOutcome)> {
    let mut queue: VecDeque<Cell> = alternate_engines(cells).into();
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < options.concurrency {
            let Some(cell) = queue.pop_front() else { break };
            let options = options.clone();
            running.spawn(async move { (cell, run_cell(cell, &options).await) });
        }
        match running.join_next().await {
            Some(Ok((cell, outcome))) => {
                on_cell_done(&cell, &outcome);
                done.push((cell, outcome));
            }
            // A panic in a cell: the others continue, and the caller notices the missing outcome.
            Some(Err(_)) => {}
            None => break,
        }
    }
    done.sort_by_key(|(cell, _)| *cell);
    done
}

/// Orders cells so that neighbours have different engines, because cells of one database would wait
/// for the disk together. Cells with a long TTL come first.
fn alternate_engines(cells: Vec<Cell>) -> Vec<Cell> {
    let mut numbered: Vec<(usize, Cell)> = Vec::new();
    for cell in cells {
        let number = numbered.iter().filter(|(_, other)| other.engine == cell.engine).count();
        numbered.push((number, cell));
    }
    let long = |cell: &Cell| cell.engine.ttl_for(&Vec::from_iter(cell.fault), cell.option) > Duration::from_secs(2);
    numbered.sort_by_key(|(number, cell)| (!long(cell), *number));
    numbered.into_iter().map(|(_, cell)| cell).collect()
}

/// Runs the histories of a cell; errors are in its outcome.
async fn run_cell(cell: Cell, options: &MatrixOptions) -> CellOutcome {
    let mut outcome = CellOutcome::new(cell);
    if let Err(error) = run_histories(cell, options, &mut outcome).await {
        outcome.run_errors.push(error.to_string());
    }
    outcome
}

/// Runs the histories of a cell, and adds them to `outcome`. A history that did not complete
/// because of the machine is retried once on fresh servers, but never one with a violation.
async fn run_histories(cell: Cell, options: &MatrixOptions, outcome: &mut CellOutcome) -> Result<(), RunError> {
    let faults = Vec::from_iter(cell.fault);
    create_folder(&options.violations_dir)?;
    let (mut conductor, workloads) = start_with_retry(cell, options, outcome).await?;
    for (number, workload) in (0..).zip(workloads) {
        let seed = options.seed + number;
        // The file is kept only if the run does not complete.
        let written = options.violations_dir.join(format!("{}-{workload}-{seed}-cut.jsonl", outcome.file_stem()));
        let run = RunOptions {
            workload,
            faults: faults.clone(),
            fault_count: Some(if faults.is_empty() { 0 } else { options.faults }),
            workers: options.workers,
            length: RunLength::Calls(if workload == Workload::Ticks { options.ticks } else { options.calls }),
            seed,
            history: Some(written.clone()),
        };
        for is_first_attempt in [true, false] {
            match conductor.run(&run, |_| ()).await {
                // The checker computes for a while, which must not block other tasks.
                Ok(events) => {
                    tokio::task::block_in_place(|| {
                        outcome.add_history(&events, &run, &options.violations_dir, options.check_options);
                        // A history with violations has been saved under another name.
                        let _ = std::fs::remove_file(&written);
                    });
                    break;
                }
                Err(error) => {
                    drop(conductor);
                    let retry = tokio::task::block_in_place(|| {
                        outcome.add_incomplete_history(&error, is_first_attempt, &run, &written)
                    });
                    conductor = start_with_retry(cell, options, outcome).await?.0;
                    if !retry {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Starts the cell's servers, and retries once if the machine was the cause of a failure. Returns
/// their conductor and the workload of each history.
async fn start_with_retry(
    cell: Cell,
    options: &MatrixOptions,
    outcome: &mut CellOutcome,
) -> Result<(Conductor, Vec<Workload>), RunError> {
    match start(cell, options).await {
        Err(error) if error.is_transient() => outcome.retries.push(error.to_string()),
        started => return started,
    }
    start(cell, options).await
}

/// Starts the cell's servers; returns their conductor and the workload of each history.
async fn start(cell: Cell, options: &MatrixOptions) -> Result<(Conductor, Vec<Workload>), RunError> {
    let worker = options.worker.clone();
    let faults = Vec::from_iter(cell.fault);
    let conductor_options = ConductorOptions {
        target: EngineTarget::Local(cell.engine),
        faults,
        control: None,
        ttl: None,
        option: cell.option,
        worker,
    };
    let conductor = Conductor::open(conductor_options).await?;
    let workloads = conductor.supported_workloads(&CELL_WORKLOADS).await?;
    // Two histories, because the parity of the seed decides whether the job retries a lost attempt.
    // None with a clock that jumps ahead: it would make a thousand ticks due at once.
    let ticks = match options.ticks > 0 && cell.fault != Some(FaultKind::Ahead) {
        true => conductor.supported_workloads(&[Workload::Ticks, Workload::Ticks]).await?,
        false => Vec::new(),
    };
    let workloads = workloads.into_iter().cycle().take(options.histories as usize).chain(ticks).collect();
    Ok((conductor, workloads))
}

fn create_folder(folder: &Path) -> Result<(), RunError> {
    let created = std::fs::create_dir_all(folder);
    created.map_err(|error| RunError::new(format!("{} cannot be created: {error}", folder.display())))
}

/// Runs the histories of a negative control. Returns in how many the checker detected it, and how
/// many there were. A history that failed to run because of the machine is retried once on fresh
/// servers, and reported to `on_retry`; one in which the control was not detected is not retried.
///
/// # Errors
/// If a history could not be run.
pub async fn run_control(
    control: NegativeControl,
    options: &MatrixOptions,
    mut on_retry: impl FnMut(&str),
) -> Result<(u64, u64), RunError> {
    create_folder(&options.violations_dir)?;
    let (mut conductor, mut detected) = (None, 0);
    for seed in (options.seed..).take(options.histories as usize) {
        let is_detected = match run_control_history(control, options, seed, &mut conductor).await {
            Err(error) if error.is_transient() => {
                on_retry(&format!("{}, seed {seed}, is retried: {error}", control.description()));
                conductor = None;
                run_control_history(control, options, seed, &mut conductor).await?
            }
            result => result?,
        };
        detected += u64::from(is_detected);
    }
    Ok((detected, options.histories))
}

/// Runs one history of a negative control; `conductor` is `None` if servers must be started first.
/// Returns whether the checker detected the control.
async fn run_control_history(
    control: NegativeControl,
    options: &MatrixOptions,
    seed: u64,
    conductor: &mut Option<Conductor>,
) -> Result<bool, RunError> {
    let (local, workload, fault) = control.example_run();
    let (calls, faults) = control.run_size();
    let (target, worker) = (EngineTarget::Local(local), options.worker.clone());
    let conductor_options =
        ConductorOptions { target, faults: vec![fault], control: Some(control), ttl: None, option: None, worker };
    let conductor = match conductor {
        Some(conductor) => conductor,
        None => conductor.insert(Conductor::open(conductor_options).await?),
    };
    // The file is kept only if the control was not detected, or the run does not complete.
    let written = options.violations_dir.join(format!("control-{local}-{workload}-{fault}-{seed}.jsonl"));
    let run = RunOptions {
        workload,
        faults: vec![fault],
        fault_count: Some(faults),
        workers: 5,
        length: RunLength::Calls(calls),
        seed,
        history: Some(written.clone()),
    };
    let events = conductor.run(&run, |_| ()).await?;
    // The checker computes for a while, which must not block other tasks.
    let is_detected = tokio::task::block_in_place(|| checker::check(&events).is_as_expected());
    if is_detected {
        let _ = std::fs::remove_file(&written);
    }
    Ok(is_detected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{self, Call, Event, Mode};

    const MEMORY_CELL: Cell = Cell { engine: LocalEngine::Memory, fault: None, option: None };

    fn run_options() -> RunOptions {
        let length = RunLength::Calls(20);
        let workload = Workload::Mutex;
        RunOptions { workload, faults: Vec::new(), fault_count: None, workers: 2, length, seed: 7, history: None }
    }

    /// The lines of a history in which two workers hold a lock shared, with these tokens.
    fn history_with_tokens(tokens: [u64; 2]) -> String {
        let header = r#"{"event":"run","format":1,"leasehold":"","engine":"memory","url":"","workload":"rwlock","guard":true,"seed":7,"ttl":1000000000,"lanes":2,"fair":true,"fencing":true,"started":""}"#;
        let mut events = vec![serde_json::from_str(header).unwrap()];
        for (worker, token) in (1..).zip(tokens) {
            let (t, op) = (u64::from(worker) * 1000, u64::from(worker) << 32 | 1);
            let state = history::WorkerState::Started { lane: worker, pid: worker };
            events.push(Event::Worker { t, worker, state });
            let call = Call::Lock { lock: "a".to_owned(), mode: Mode::Shared, owner: None, waits: false };
            events.push(Event::Begin { t: t + 1, worker, op, due: None, call });
            let outcome = history::Outcome::Granted { token, deadline: t + 1_000_000_000 };
            events.push(Event::End { t: t + 2, op, outcome });
        }
        events.iter().map(history::to_json_line).collect()
    }

    #[test]
    fn a_history_with_a_violation_is_not_retried_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("cut.jsonl");
        let add_incomplete = |tokens, is_first_attempt, error: &RunError| {
            std::fs::write(&written, history_with_tokens(tokens)).unwrap();
            let mut outcome = CellOutcome::new(MEMORY_CELL);
            let retry = outcome.add_incomplete_history(error, is_first_attempt, &run_options(), &written);
            (retry, outcome.broken, outcome.run_errors.len(), outcome.retries.len())
        };
        let transient = RunError::transient("the machine is busy");
        assert_eq!(add_incomplete([1, 2], true, &transient), (true, 0, 0, 1));
        assert_eq!(add_incomplete([1, 2], false, &transient), (false, 0, 1, 0));
        assert_eq!(add_incomplete([2, 2], true, &transient), (false, 1, 1, 0));
        assert_eq!(add_incomplete([1, 2], true, &RunError::worker("a worker crashed")), (false, 0, 1, 0));
        assert_eq!(add_incomplete([1, 2], true, &RunError::new("the engine did not answer")), (false, 0, 1, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_history_that_fails_to_run_is_retried_exactly_once() {
        let folder = tempfile::tempdir().unwrap();
        let (worker, kept) = (folder.path().join("nobody"), folder.path().join("kept"));
        let options = MatrixOptions {
            histories: 2,
            calls: 20,
            ticks: 0,
            faults: 0,
            workers: 2,
            concurrency: 1,
            seed: 7,
            worker,
            violations_dir: kept,
            check_options: CheckOptions::default(),
        };
        let (_, outcome) = super::run_cells(vec![MEMORY_CELL], &options, |_, _| ()).await.remove(0);
        assert_eq!(
            (outcome.retries.len(), outcome.run_errors.len(), outcome.histories),
            (2, 2, 0),
            "{}",
            outcome.summary_line()
        );
        assert!(
            !outcome.has_no_violations() && outcome.summary_line().contains("retried: fenced, seed 7"),
            "{}",
            outcome.summary_line()
        );
        let mut retries = Vec::new();
        let options = MatrixOptions { histories: 1, ..options };
        let control = run_control(NegativeControl::NoFencing, &options, |words| retries.push(words.to_owned()));
        assert!(control.await.is_err());
        assert!(matches!(retries.as_slice(), [once] if once.contains("is retried")), "{retries:?}");
    }
}
