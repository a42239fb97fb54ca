//! The command `leasehold verify`: its options, the run, and the report.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use leasehold_command::duration::parse_positive;
use leasehold_command::exit::{self, Failure};
use leasehold_command::{output, secret};
use leasehold_verify::checker::{CheckOptions, TimeBounds};
use leasehold_verify::deployment::{LocalEngine, UrlOption, supported_faults};
use leasehold_verify::history::{self, Event, FaultKind, Workload};
use leasehold_verify::runner::{
    Conductor, ConductorOptions, EngineTarget, NegativeControl, Progress, RunError, RunLength, RunOptions,
};
use leasehold_verify::verdict::Verdict;
use leasehold_verify::{checker, report};
use rustix::termios::isatty;
use serde::Serialize;
use tokio::signal::unix::{self, SignalKind};

/// The exit code if a guarantee was broken, or the checker did not detect a negative control.
const EXIT_VIOLATION: u8 = 1;

// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_LONG_HELP: &str = "\
Examples:
  leasehold verify --local redis                 all its faults, for a minute
  leasehold verify --local redlock --workload counter --faults partition,clock
  leasehold verify --local postgres --faults crash,disk-full --for 2m --seed 7
  leasehold verify --engine redis://db1 --faults kill,stop,cut --for 30s
  leasehold verify --local redis --workload unfenced --faults stop --guard off
  leasehold verify --check verify-redis-fenced-1.jsonl

Workloads:
  mutex       acquire, hold, release
  reentrant   acquire twice as one owner, release twice
  rwlock      readers and writers
  semaphore   some of a number of permits
  fenced      holders write to a register that refuses old tokens (default)
  unfenced    the same without refusals: shows what fencing prevents
  counter     holders read a number and write the next one, with their tokens
  queue       all wait in the queue: first come, first served
  election    candidates and one leader
  ticks       a scheduled job on every worker, due every second

Faults of the workers and of their connections (with --engine and --local):
  kill        a holder is killed (SIGKILL)
  stop        a holder is stopped (SIGSTOP) for longer than its TTL
  cut         connections are cut
  lost-reply  a request arrives and its reply does not
  delay       messages are delayed
  duplicate   requests arrive twice
  partition   the workers cannot reach the servers, or some of them

Faults of the servers (with --local only):
  crash       a server is killed and restarts with its data
  wipe        a server is killed and restarts empty
  failover    the master dies while replicas lag; one is promoted
  leader      the leader is killed
  clock       a server's wall clock is set back
  ahead       a server's wall clock jumps ahead; only tokens hold then
  evict       the server runs out of memory
  disk-full   the server's disk is full (as root)
  read-only   a server refuses writes
  hang        a master of a cluster hangs (SIGSTOP)
  reshard     slots of a cluster move from one master to another
  grow        a node joins a cluster and gets slots

What it does there:
  With --engine: worker processes acquire and release locks whose names begin
  with `verify:`. If connections are to be disturbed, they go through proxies.
  The servers themselves are never touched. With --local: it starts the real
  servers, from Debian's packages, in temporary folders on free ports, and
  stops them at the end.

Files, in the folder of --out:
  verify-ENGINE-WORKLOAD-SEED.jsonl   the history, written while it runs
  verify-ENGINE-WORKLOAD-SEED.html    the report: open it in a browser
  The next run with the same options overwrites both; --out keeps them apart.

Exit codes:
    0   every guarantee held; with --guard off: the checker found a violation
    1   a guarantee was broken; with --guard off: the checker found none;
        also if no call succeeded, the checker reached its limit, or the
        history of --check has no end
   64   wrong usage
   69   the run failed: a server is missing or unreachable
   74   a file or the output cannot be written
  128+  ended by a signal; the history until then is checked and reported";

/// Test an engine's guarantees under faults, and draw the history
///
/// Runs workers against an engine, injects faults, records every call, checks the recorded history,
/// and writes a report with a timeline.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true))]
#[command(after_long_help = AFTER_LONG_HELP, after_help = "`leasehold verify --help` lists the workloads and the faults.")]
pub(crate) struct VerifyArgs {
    /// The URL of the engine to test; LEASEHOLD_ENGINE is ignored
    ///
    /// Every user of this host can see the command line. Put a password into a file:
    /// `?password-file=/path` in the URL.
    #[arg(long, value_name = "URL", group = "where", value_parser = reveal_url)]
    engine: Option<String>,
    /// Start the real servers here: memory, file, redis, redis-sentinel, redis-cluster, redlock,
    /// zookeeper, mysql or postgres
    #[arg(long, value_name = "ENGINE", value_parser = parse_from_str::<LocalEngine>, group = "where")]
    local: Option<LocalEngine>,
    /// Start the engine with this URL option: strict, or replicas (needs --local)
    ///
    /// The default is the option that the faults need: `strict` where servers lose data.
    #[arg(long, value_name = "NAME", value_parser = parse_from_str::<UrlOption>, requires = "local")]
    option: Option<UrlOption>,
    /// Check a history again, and write its report again
    #[arg(long, value_name = "FILE", group = "where", conflicts_with_all = ["workload", "faults", "lasts", "ops", "times", "seed", "workers", "ttl", "guard", "option"])]
    check: Option<PathBuf>,
    /// What the workers do
    #[arg(long, value_name = "NAME", default_value = "fenced", value_parser = parse_from_str::<Workload>)]
    workload: Workload,
    /// What goes wrong: names with commas between them, `all` or `none`
    ///
    /// `all`: every fault that can be caused there, except `ahead`, under which exclusion is not
    /// guaranteed. With --engine: the faults of the workers and, where proxies before the servers
    /// are possible, of their connections. The default is the same without `clock` where servers
    /// lose data: with both, tokens are not guaranteed.
    #[arg(long, value_name = "NAMES")]
    faults: Option<String>,
    /// How long to run
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = parse_positive)]
    lasts: Duration,
    /// Run at least this many calls, instead of for a duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "lasts")]
    ops: Option<u64>,
    /// How many faults to inject [default: one of each kind; with --for, about one every four
    /// seconds]
    #[arg(long, value_name = "N", value_parser = parse_fault_count)]
    times: Option<usize>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// How many workers
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// The TTL of all leases [default: one that suits the engine, and not below its servers'
    /// minimum]
    #[arg(long, value_name = "DURATION", value_parser = parse_positive)]
    ttl: Option<Duration>,
    /// `off`: a negative control. One safeguard is turned off, and the checker must detect it
    #[arg(long, value_enum, default_value_t = Switch::On)]
    guard: Switch,
    /// Whether an exceeded time bound fails the run or is only reported: recovery, a deadline plus
    /// one second, the notification of a loss or a force release, the progress of ticks
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = LateMode::Fail)]
    late: LateMode,
    /// The folder for the history and the report [default: the current one; with --check, the
    /// history's]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the timeline alone to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The URL with its password, even after this program has hidden the password on its command line.
fn reveal_url(url: &str) -> Result<String, std::convert::Infallible> {
    Ok(secret::original_url(url))
}

impl VerifyArgs {
    /// Hides a password on the command line from `ps`, and warns of password files that every user
    /// can read.
    pub(crate) fn protect_password(&self) {
        if let Some(url) = &self.engine {
            secret::hide_typed_password("--engine", url, "password-file=");
            secret::warn_of_exposed_files(url);
        }
    }
}

/// Whether exceeded time bounds fail the run: the option `--late`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LateMode {
    Fail,
    Report,
}

impl LateMode {
    fn check_options(self) -> CheckOptions {
        CheckOptions {
            time_bounds: match self {
                Self::Fail => TimeBounds::Fail,
                Self::Report => TimeBounds::Report,
            },
        }
    }
}

/// The value of the option `--guard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Parses an option's value by its type's `FromStr`.
fn parse_from_str<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

/// Runs the command; returns its exit code.
pub(crate) async fn run_verify(options: VerifyArgs) -> Result<u8, Failure> {
    if let Some(file) = &options.check {
        return recheck(file, &options);
    }
    let target = match (&options.local, &options.engine) {
        (Some(local), _) => EngineTarget::Local(*local),
        (None, Some(url)) => EngineTarget::Remote(url.clone()),
        (None, None) => return Err(Failure::usage("choose an engine: --engine URL, or --local ENGINE")),
    };
    let options = VerifyArgs { ttl: crate::ttl::accepted_ttl(&target, options.ttl).await?, ..options };
    let faults = parse_faults(options.faults.as_deref(), &target)?;
    let control = match options.guard {
        Switch::On => None,
        Switch::Off => Some(control_for(&target, options.workload, &faults)?),
    };
    let history = history_path(&options, &target, control.is_some())?;
    let worker = std::env::current_exe().map_err(|error| Failure::system("cannot find this program's path", error))?;
    let conductor_options =
        ConductorOptions { target, faults: faults.clone(), control, ttl: options.ttl, option: options.option, worker };
    let mut progress_line = ProgressLine::new();
    progress_line.print("starting");
    let mut signals = Signals::listen().map_err(|error| Failure::system("cannot set signal handlers", error))?;
    let opened = tokio::select! {
        opened = Conductor::open(conductor_options) => opened,
        number = signals.next() => {
            progress_line.clear();
            return Ok(exit::signal_exit_code(number));
        }
    };
    let mut conductor = opened.map_err(|problem| progress_line.failure(problem))?;
    let run = RunOptions {
        workload: options.workload,
        faults,
        // One fault may not be enough to show a violation of a negative control.
        fault_count: options.times.or(control.filter(|_| options.ops.is_some()).map(|control| control.run_size().1)),
        workers: options.workers,
        length: options.ops.map_or(RunLength::ForDuration(options.lasts), RunLength::Calls),
        seed: options.seed,
        history: Some(history.clone()),
    };
    let old_modified_at = fs::metadata(&history).and_then(|old| old.modified()).ok();
    let performed = tokio::select! {
        performed = conductor.run(&run, |progress| progress_line.show_progress(progress)) => performed.map_err(EarlyEnd::Failed),
        number = signals.next() => Err(EarlyEnd::Signal(number)),
    };
    // Stop all servers that were started, before any further output.
    drop(conductor);
    progress_line.print("checking");
    let (events, cut) = match performed {
        Ok(events) => (events, None),
        Err(cut) => match load_partial_history(&history, old_modified_at) {
            Some(events) => (events, Some(cut)),
            None => return cut.into_exit_code(&progress_line),
        },
    };
    let check_options = options.late.check_options();
    let checking = tokio::task::spawn_blocking(move || (checker::check_with(&events, check_options), events));
    let (verdict, events) = tokio::select! {
        checked = checking => checked.map_err(|error| Failure::system("the check ended", error))?,
        number = signals.next() => return EarlyEnd::Signal(number).into_exit_code(&progress_line),
    };
    progress_line.clear();
    let exit_code = report(&events, &verdict, &history, &options)?;
    match cut {
        // A broken guarantee decides the exit code even if the run failed.
        Some(EarlyEnd::Failed(problem)) if control.is_none() && !verdict.has_no_violations() => {
            output::print_message(&problem.to_string());
            Ok(EXIT_VIOLATION)
        }
        Some(cut) => cut.into_exit_code(&progress_line),
        None => Ok(exit_code),
    }
}

/// Parses the value of `--times`, which must not be 0.
fn parse_fault_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1; use `--faults none` for no faults".to_owned()),
        Ok(times) => Ok(times),
        Err(error) => Err(format!("{error}")),
    }
}

/// The negative control to run with `--guard off`.
fn control_for(target: &EngineTarget, workload: Workload, faults: &[FaultKind]) -> Result<NegativeControl, Failure> {
    NegativeControl::for_run(target, workload, faults).map_err(Failure::usage)
}

/// The path of the history's file; creates its folder.
fn history_path(options: &VerifyArgs, target: &EngineTarget, is_control: bool) -> Result<PathBuf, Failure> {
    let out = options.out.clone().unwrap_or_else(|| PathBuf::from("."));
    fs::create_dir_all(&out).map_err(|error| write_failure(&out, &error))?;
    let name = match target {
        EngineTarget::Local(local) => local.to_string(),
        EngineTarget::Remote(url) => url.split([':', '+']).next().unwrap_or("engine").to_owned(),
    };
    let suffix = if is_control { "-guard-off" } else { "" };
    Ok(out.join(format!("verify-{name}-{}-{}{suffix}.jsonl", options.workload, options.seed)))
}

/// Why a run ended before it completed.
enum EarlyEnd {
    /// It failed with this error.
    Failed(RunError),
    /// This signal ended it.
    Signal(i32),
}

impl EarlyEnd {
    /// The exit code after a signal, or the failure to report.
    fn into_exit_code(self, progress_line: &ProgressLine) -> Result<u8, Failure> {
        match self {
            Self::Failed(problem) => Err(progress_line.failure(problem)),
            Self::Signal(number) => {
                progress_line.clear();
                Ok(exit::signal_exit_code(number))
            }
        }
    }
}

/// The events of a run that ended early. `None`: it wrote none, so the file is still an older one,
/// which was modified at `old_modified_at`, or does not exist.
fn load_partial_history(history: &Path, old_modified_at: Option<std::time::SystemTime>) -> Option<Vec<Event>> {
    let now = fs::metadata(history).and_then(|new| new.modified()).ok()?;
    if old_modified_at == Some(now) {
        return None;
    }
    history::parse(&history::load(history).ok()?).ok().filter(|events| !events.is_empty())
}

/// The signals that end a run early: SIGINT, SIGTERM and SIGHUP, each with its number.
struct Signals([(i32, unix::Signal); 3]);

impl Signals {
    fn listen() -> io::Result<Self> {
        let listen = |kind: SignalKind| unix::signal(kind).map(|signal| (kind.as_raw_value(), signal));
        let all = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [a, b, c] = all.map(listen);
        Ok(Self([a?, b?, c?]))
    }

    /// Waits for one of the signals; returns its number.
    async fn next(&mut self) -> i32 {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.1.recv() => a.0,
            _ = b.1.recv() => b.0,
            _ = c.1.recv() => c.0,
        }
    }
}

/// Checks an existing history again, and writes its report: the option `--check`.
fn recheck(file: &Path, options: &VerifyArgs) -> Result<u8, Failure> {
    let text =
        history::load(file).map_err(|error| Failure::usage(format!("{} cannot be read: {error}", file.display())))?;
    let events = history::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let verdict = checker::check_with(&events, options.late.check_options());
    report(&events, &verdict, file, options)
}

/// What `--json` prints: the verdict, and the paths of the history and the report.
#[derive(Serialize)]
struct JsonVerdict<'a> {
    /// Whether the exit code is 0.
    passed: bool,
    history: String,
    report: String,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// Writes the report beside the history or to `--out`, and the verdict to standard output; returns
/// the exit code.
fn report(events: &[Event], verdict: &Verdict, history: &Path, options: &VerifyArgs) -> Result<u8, Failure> {
    let mut page = history.with_extension("html");
    if let (Some(out), Some(name)) = (&options.out, page.file_name()) {
        page = out.join(name);
    }
    let written = write_report(events, verdict, &page, options);
    let passed = verdict.is_as_expected();
    if options.json {
        let (history, report) = (history.display().to_string(), page.display().to_string());
        output::write_stdout(&output::to_json_line(&JsonVerdict { passed, history, report, verdict }))?;
    } else {
        let colour = isatty(io::stdout()) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let width = usize::from(output::terminal_width().unwrap_or(100)).min(120);
        output::write_stdout(&report::text::verdict(verdict, width, colour))?;
        let report = if written.is_ok() { format!("report   {}\n", page.display()) } else { String::new() };
        output::write_stdout(&format!("\nhistory  {}\n{report}", history.display()))?;
    }
    // The verdict is printed even if the report cannot be written.
    written?;
    Ok(if passed { 0 } else { EXIT_VIOLATION })
}

/// Writes the HTML report, and the SVG of the timeline if requested.
fn write_report(events: &[Event], verdict: &Verdict, page: &Path, options: &VerifyArgs) -> Result<(), Failure> {
    let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), fs::create_dir_all).map_err(|error| write_failure(page, &error))?;
    fs::write(page, report::html::page(events, verdict)).map_err(|error| write_failure(page, &error))?;
    if let Some(picture) = &options.svg {
        let drawn = report::svg::timeline(events, verdict, report::svg::Size::default());
        fs::write(picture, drawn).map_err(|error| write_failure(picture, &error))?;
    }
    Ok(())
}

/// The kinds of faults for the option `--faults`; `None`: the option is absent.
fn parse_faults(requested: Option<&str>, target: &EngineTarget) -> Result<Vec<FaultKind>, Failure> {
    let possible = || match target {
        EngineTarget::Local(local) => Ok(local.faults()),
        EngineTarget::Remote(_) if target.is_in_memory() => Ok(vec![FaultKind::Stop]),
        EngineTarget::Remote(url) => supported_faults(url).map_err(|problem| Failure::usage(problem.to_string())),
    };
    match requested {
        // `ahead` must be requested by name, because exclusion is not guaranteed with it.
        Some("all") => Ok(possible()?.into_iter().filter(|kind| *kind != FaultKind::Ahead).collect()),
        None => {
            let mut kinds = possible()?;
            kinds.retain(|kind| *kind != FaultKind::Ahead);
            let lose_data = [FaultKind::Wipe, FaultKind::Failover, FaultKind::Evict];
            if kinds.iter().any(|kind| lose_data.contains(kind)) {
                kinds.retain(|kind| *kind != FaultKind::Clock);
            }
            Ok(kinds)
        }
        Some("none") => Ok(Vec::new()),
        Some(names) => {
            let fault_names = || names.split(',').map(str::trim);
            if let Some(alone) = fault_names().find(|name| ["all", "none"].contains(name)) {
                return Err(Failure::usage(format!("--faults: {alone} cannot be combined with other names")));
            }
            let kinds: Result<Vec<FaultKind>, String> = fault_names().map(str::parse).collect();
            let kinds = kinds.map_err(|problem| Failure::usage(format!("--faults: {problem}")))?;
            for kind in &kinds {
                match target {
                    EngineTarget::Local(local) => local.check_fault(*kind).map_err(Failure::usage)?,
                    // With `memory:` all workers share one process, so only `stop` is possible.
                    EngineTarget::Remote(_) if target.is_in_memory() => {
                        LocalEngine::Memory.check_fault(*kind).map_err(Failure::usage)?
                    }
                    EngineTarget::Remote(_) if kind.targets_servers() => {
                        return Err(Failure::usage(format!(
                            "{kind} is a server fault, and needs servers that are started here: use --local ENGINE instead of --engine"
                        )));
                    }
                    EngineTarget::Remote(_) => {}
                }
            }
            Ok(kinds)
        }
    }
}

/// The failure to write a file.
fn write_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(exit::OUTPUT, "output", format!("{} cannot be written: {error}", path.display()))
}

/// The progress line on standard error, if it is a terminal.
struct ProgressLine {
    is_terminal: bool,
    /// The run's elapsed time when the line was last updated.
    last_shown: Duration,
}

impl ProgressLine {
    fn new() -> Self {
        Self { is_terminal: isatty(io::stderr()), last_shown: Duration::ZERO }
    }

    /// Replaces the line.
    fn print(&self, text: &str) {
        if self.is_terminal {
            output::write_stderr(&format!("\r\u{1b}[K{text}"));
        }
    }

    /// Replaces the line by the run's progress, at most ten times a second.
    fn show_progress(&mut self, progress: &Progress) {
        let elapsed = Duration::from_nanos(progress.elapsed);
        if elapsed.saturating_sub(self.last_shown) < Duration::from_millis(100) {
            return;
        }
        self.last_shown = elapsed;
        self.print(&format!(
            "{:6.1} s  {} calls  {} grants  {} lost  {}",
            elapsed.as_secs_f64(),
            progress.calls,
            progress.grants,
            progress.losses,
            progress.activity
        ));
    }

    fn clear(&self) {
        self.print("");
    }

    /// Clears the line; returns the failure to report.
    fn failure(&self, error: RunError) -> Failure {
        self.clear();
        if error.is_usage() {
            return Failure::usage(error.to_string());
        }
        Failure::new(exit::UNAVAILABLE, "unavailable", error.to_string())
    }
}
