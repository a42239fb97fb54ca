//! The command behind `cargo xtask soak`: tests every engine under every fault, for any number of
//! histories.
//!
//! It prints a line per engine and fault, and writes the results and the tables of guarantees to
//! files. Each worker process runs this program again.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command")]

use std::path::PathBuf;
use std::process::ExitCode;

use leasehold_verify::checker::{CheckOptions, TimeBounds};
use leasehold_verify::matrix::{self, Cell, CellOutcome, MatrixOptions};
use leasehold_verify::runner::NegativeControl;
use leasehold_verify::worker;
use serde::{Deserialize, Serialize};

const HELP: &str = "\
leasehold-soak [--histories N] [--ops N] [--faults N] [--at-once N] [--seed N] [--only ENGINE[/FAULT]] [--for MINUTES] [--out DIR] [--tables FILE]

Runs rounds of ten histories for every engine and fault, until each has the requested number. Each round updates the files with the
results. After an interruption, the same command resumes after the last complete round, unless the program was rebuilt.

  --histories N   histories for each engine and fault (100)
  --ops N         minimum of calls in a history (1000)
  --faults N      faults in a history (3)
  --at-once N     engine and fault pairs that run concurrently (6)
  --seed N        the first seed (1)
  --only E[/F]    only this engine, or this engine under this fault
  --for MINUTES   start no new round after this time
  --out DIR       folder for soak.json, guarantees.md and histories with violations (target/soak)
  --tables FILE   insert the tables between the markers `<!-- guarantees -->` and `<!-- /guarantees -->`";

/// How many histories a cell has in one round, besides those of a scheduled job.
const HISTORIES_PER_ROUND: u64 = 10;

/// The results of a soak so far, stored in `soak.json`.
#[derive(Serialize, Deserialize)]
struct SoakResults {
    /// Identifies the soak, so that only the same one resumes: calls and faults per history, the
    /// first seed, the value of `--only`, and the build time of this program in seconds since 1970.
    of: (u64, usize, u64, Option<String>, u64),
    /// How many histories of each cell have completed.
    histories: u64,
    /// The date on which the last round ended: `2026-11-19`.
    date: String,
    outcomes: Vec<CellOutcome>,
}

/// The command-line options.
struct Options {
    matrix: MatrixOptions,
    /// `--only`: an engine, or an engine and a fault: `redis/clock+strict`. `None`: all cells.
    only: Option<String>,
    /// `--for`: no round starts after so many minutes. `None`: no limit.
    minutes: Option<u64>,
    /// `--out`: the folder for the results.
    out_dir: PathBuf,
    /// `--tables`: the document to insert the tables into.
    tables_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == worker::WORKER_ARGUMENT) {
        return exit_code(worker::main());
    }
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    exit_code(parse_options().and_then(run_soak))
}

/// The exit code for a result; an error is printed.
fn exit_code(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn parse_options() -> Result<Options, String> {
    let worker = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = PathBuf::from("target/soak");
    let matrix = MatrixOptions {
        histories: 100,
        calls: 1000,
        ticks: 20,
        faults: 3,
        workers: 5,
        concurrency: 6,
        seed: 1,
        worker,
        violations_dir: out.clone(),
        check_options: CheckOptions { time_bounds: TimeBounds::Fail },
    };
    let mut options = Options { matrix, only: None, minutes: None, out_dir: out, tables_file: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n\n{HELP}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word}: {value:?} is not a number\n\n{HELP}"));
        match word.as_str() {
            "--histories" => options.matrix.histories = number()?,
            "--ops" => options.matrix.calls = number()?,
            "--faults" => options.matrix.faults = number()? as usize,
            "--at-once" => options.matrix.concurrency = number()?.max(1) as usize,
            "--seed" => options.matrix.seed = number()?,
            "--only" => options.only = Some(value),
            "--for" => options.minutes = Some(number()?),
            "--out" => options.out_dir = PathBuf::from(value),
            "--tables" => options.tables_file = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown option {word}\n\n{HELP}")),
        }
    }
    if options.only.is_some() && options.tables_file.is_some() {
        return Err("--tables needs all engines and faults: do not use it with --only".to_owned());
    }
    options.matrix.violations_dir = options.out_dir.join("broken");
    Ok(options)
}

/// Whether `--only` selects this cell; `None` selects all.
fn is_selected(cell: &Cell, only: Option<&str>) -> bool {
    let name = format!("{}/{}", cell.engine, cell.name());
    only.is_none_or(|only| name == only || name.split('/').next() == Some(only))
}

/// Runs rounds until each cell has the requested number of histories, then the negative controls.
/// Fails with a message if any history or control did not pass.
fn run_soak(options: Options) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| error.to_string())?;
    std::fs::create_dir_all(&options.out_dir).map_err(|error| format!("{}: {error}", options.out_dir.display()))?;
    let cells: Vec<Cell> =
        matrix::cells().into_iter().filter(|cell| is_selected(cell, options.only.as_deref())).collect();
    if cells.is_empty() {
        return Err(format!("--only matches no engine under any fault\n\n{HELP}"));
    }
    let mut found = load_earlier_results(&options);
    if found.histories > 0 {
        println!("resuming after {} histories of each cell", found.histories);
        write_results(&options, &found)?;
    }
    let clock = leasehold::clock::Clock::system();
    let began = clock.now();
    while found.histories < options.matrix.histories {
        let round = MatrixOptions {
            histories: HISTORIES_PER_ROUND.min(options.matrix.histories - found.histories),
            seed: options.matrix.seed + found.histories,
            ..options.matrix.clone()
        };
        println!("histories {} to {} of each cell", found.histories + 1, found.histories + round.histories);
        runtime.block_on(run_round(&cells, &round, &mut found))?;
        write_results(&options, &found)?;
        if options.minutes.is_some_and(|minutes| clock.now().duration_since(began).as_secs() >= minutes * 60) {
            break;
        }
    }
    let mut problems: Vec<String> = Vec::new();
    for outcome in found.outcomes.iter().filter(|outcome| !outcome.has_no_violations()) {
        problems.push(format!("{} under {}: {}", outcome.engine, outcome.fault, outcome.summary_line()));
    }
    if options.only.is_none() {
        problems.extend(runtime.block_on(run_controls(&options.matrix)));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// The results of an earlier run of the same soak; empty results if there was none.
fn load_earlier_results(options: &Options) -> SoakResults {
    let matrix = &options.matrix;
    let built = std::fs::metadata(&matrix.worker).and_then(|program| program.modified()).ok();
    let built = built.and_then(|built| built.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    let of = (matrix.calls, matrix.faults, matrix.seed, options.only.clone(), built.as_secs());
    let earlier = std::fs::read_to_string(options.out_dir.join("soak.json")).ok();
    let earlier =
        earlier.and_then(|text| serde_json::from_str::<SoakResults>(&text).ok()).filter(|found| found.of == of);
    earlier.unwrap_or_else(|| SoakResults { of, histories: 0, date: String::new(), outcomes: Vec::new() })
}

/// Runs one round: some histories of every cell. Adds the results of all cells or, after an error,
/// of none.
async fn run_round(cells: &[Cell], options: &MatrixOptions, results: &mut SoakResults) -> Result<(), String> {
    let total = cells.len();
    let mut number = 0;
    let running = matrix::run_cells(cells.to_vec(), options, |cell, outcome| {
        number += 1;
        println!("{number:>3} of {total}  {cell}: {}", outcome.summary_line());
    });
    let outcomes = tokio::select! {
        outcomes = running => outcomes,
        // Dropping the runtime stops all servers and unmounts small disks.
        _ = tokio::signal::ctrl_c() => return Err("interrupted: run the same command again to resume with this round".to_owned()),
    };
    if outcomes.len() < total {
        return Err(format!("{} of {total} engine and fault pairs panicked", total - outcomes.len()));
    }
    for (_, outcome) in outcomes {
        let same = |one: &&mut CellOutcome| one.engine == outcome.engine && one.fault == outcome.fault;
        match results.outcomes.iter_mut().find(same) {
            Some(earlier) => earlier.add(outcome),
            None => results.outcomes.push(outcome),
        }
    }
    results.histories += options.histories;
    results.date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Ok(())
}

/// Writes the results and the tables to their files.
fn write_results(options: &Options, results: &SoakResults) -> Result<(), String> {
    let table = matrix::guarantee_tables(&results.outcomes, &results.date);
    let json = serde_json::to_string_pretty(results).map_err(|error| error.to_string())?;
    for (name, text) in [("soak.json", &json), ("guarantees.md", &table)] {
        let path = options.out_dir.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    options.tables_file.as_ref().map_or(Ok(()), |file| insert_tables(file, &table))
}

/// Runs all negative controls concurrently; returns a message for each that failed, or that the
/// checker did not detect.
async fn run_controls(options: &MatrixOptions) -> Vec<String> {
    let options = MatrixOptions { histories: 5, ..options.clone() };
    let all = NegativeControl::ALL.map(|control| {
        let options = options.clone();
        tokio::spawn(async move { matrix::run_control(control, &options, |line| println!("control  {line}")).await })
    });
    let mut problems = Vec::new();
    for (control, running) in NegativeControl::ALL.iter().zip(all) {
        match running.await {
            Ok(Ok((detected, of))) => {
                println!("control  {}: detected in {detected} of {of}", control.description());
                if detected < of {
                    problems.push(format!(
                        "control not detected in {} of {of}: {}",
                        of - detected,
                        control.description()
                    ));
                }
            }
            Ok(Err(error)) => problems.push(format!("control {}: {error}", control.description())),
            Err(panic) => problems.push(format!("control {}: {panic}", control.description())),
        }
    }
    problems
}

/// Replaces the text between the two marker comments of a document by the tables.
fn insert_tables(file: &std::path::Path, table: &str) -> Result<(), String> {
    /// The comments before and after the tables.
    const MARKERS: [&str; 2] = ["<!-- guarantees -->\n", "<!-- /guarantees -->"];
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parts = text.split_once(MARKERS[0]).and_then(|(before, rest)| Some((before, rest.split_once(MARKERS[1])?.1)));
    let (before, after) =
        parts.ok_or_else(|| format!("{} has no {}…{}", file.display(), MARKERS[0].trim(), MARKERS[1]))?;
    let text = format!("{before}{}{table}{}{after}", MARKERS[0], MARKERS[1]);
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
