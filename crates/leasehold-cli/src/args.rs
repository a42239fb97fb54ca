//! The command line: each flag carries its own help text.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use leasehold::engine::file;
use leasehold::{DEFAULT_TTL, Locks};
use leasehold_command::secret;

use crate::cron::CronArgs;
use crate::doctor::DoctorArgs;
use crate::duration::{format_duration, parse};
use crate::engine_url::{self, ChildEngine};
use crate::engines::EnginesArgs;
use crate::exit::Failure;
use crate::output;
use crate::run::RunArgs;
use crate::verify::VerifyArgs;

/// The text after the options in `leasehold --help`.
// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./send-messages      one at a time, in order
  leasehold run -n nightly -- ./send-messages   not at all if it is held
  leasehold run -w 30s deploy -c 'make && make install'
  leasehold run --slots 4 encode -- ./encode    at most four at a time
  leasehold cron jobs.cron                      scheduled jobs, each tick once
  leasehold ls                                  all locks: holders and waiters
  leasehold show nightly                        the state of one lock
  leasehold evict nightly                       force the holder to release
  leasehold evict --graceful nightly            request it, and wait
  leasehold doctor --engine redis://db1         is this server fit for locks?
  leasehold verify --local redis                test guarantees under faults

Environment:
  LEASEHOLD_ENGINE   the engine's URL, if --engine is not given
  LEASEHOLD_ENGINE_FILE
                     a file with that URL, if neither is given
  LEASEHOLD_LOG      the library's log level on standard error: warn, debug,
                     leasehold=trace
  NO_COLOR           no colours

Exit codes (`leasehold run --help` lists those of `run`):
    0   success
    1   evict: the lock has no such holder, or you declined; doctor: warnings;
        verify: a violated guarantee
    2   doctor: failures
   64   wrong usage, or an invalid name, URL or duration
   69   the engine cannot be used: unreachable, access denied, full or corrupt
   71   a system call failed
   74   the output cannot be written";

/// Distributed locks shared by many processes and machines
///
/// Runs a command while it holds a lock, lists holders and waiters, and forces a holder to release.
/// A lock has a name and lives in an engine. The default engine, `file:`, serves the processes of
/// this host; `leasehold engines` lists the others.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = EXAMPLES, after_help = "`leasehold --help` has examples.")]
#[command(max_term_width = 120, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line and resolves the engine's URL. The outer error is a usage error, or
    /// a request for help or the version; the inner one is about the engine's URL.
    pub(crate) fn parse() -> Result<Result<Self, Failure>, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let resolved = match cli.command.engine_mut() {
            Some(engine) => engine_url::resolve_engine(engine, innermost_matches(&matches)),
            None => Ok(()),
        };
        Ok(resolved.map(|()| cli))
    }
}

/// The matches of the innermost subcommand.
fn innermost_matches(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost_matches(inner))
}

impl Command {
    /// The engine options, if the command has any.
    fn engine_mut(&mut self) -> Option<&mut EngineArg> {
        match self {
            Self::Run(args) => Some(&mut args.engine),
            Self::Cron(args) => args.engine_mut(),
            Self::Ls(args) => Some(&mut args.engine),
            Self::Show(args) => Some(&mut args.engine),
            Self::Evict(args) => Some(&mut args.engine),
            Self::Doctor(args) => Some(&mut args.engine),
            Self::Verify(_) | Self::Engines(_) | Self::Completions { .. } | Self::Man { .. } => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Cron(Box<CronArgs>),
    /// List the locks that are held or waited for
    Ls(LsArgs),
    /// Show the holders and waiters of one lock
    Show(ShowArgs),
    #[command(visible_alias = "force-release")]
    Evict(EvictArgs),
    Doctor(DoctorArgs),
    Verify(Box<VerifyArgs>),
    Engines(EnginesArgs),
    /// Print the completion script for a shell
    ///
    /// For bash:
    /// `leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold`
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    ///
    /// All commands on one page: `leasehold man | man -l -`
    Man {
        /// Write one page per command into this folder instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EngineArg {
    /// The engine that keeps the lock
    ///
    /// `file:` or `file:///folder` serves the processes of this host. These serve many machines:
    /// `redis://host:6379`; `redlock://h1,h2,h3,h4,h5`, a majority of independent servers;
    /// `zookeeper://h1,h2,h3/locks`, a ZooKeeper ensemble; `mysql://user:password@host/database` or
    /// `postgres://user:password@host/database`, a database you already run. `leasehold engines`
    /// lists all of them.
    ///
    /// Every user of this host can see the command line. Put a password into a file
    /// (`?password-file=/path` in the URL, or --engine-file) or into LEASEHOLD_ENGINE.
    #[arg(long, value_name = "URL", env = "LEASEHOLD_ENGINE", hide_env_values = true, default_value = "file:", value_parser = parse_engine_url)]
    pub(crate) engine: String,
    /// A file whose first line is the engine's URL
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_ENGINE_FILE", hide_env_values = true)]
    pub(crate) engine_file: Option<PathBuf>,
    /// How long to retry an engine that is unreachable; `run -w` sets its own limit, and `cron`
    /// retries forever
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse)]
    pub(crate) connect_timeout: Duration,
}

/// Parses the value of --engine; restores a password that this program hid in it. Rejects an empty
/// value, which usually comes from an unset variable: it does not mean the default folder.
pub(crate) fn parse_engine_url(url: &str) -> Result<String, String> {
    match url.trim() {
        "" => Err("no engine is named; for `file:`, omit --engine and unset LEASEHOLD_ENGINE".to_owned()),
        _ => Ok(secret::original_url(url)),
    }
}

impl EngineArg {
    pub(crate) fn url(&self) -> &str {
        &self.engine
    }

    /// The engine as it is passed to the user's command. A relative folder becomes absolute, so
    /// that it is the same from any working directory.
    pub(crate) fn child_engine(&self) -> ChildEngine {
        if let Some(path) = &self.engine_file {
            return ChildEngine::File(path.clone());
        }
        let here = std::env::current_dir().ok();
        let url = here.and_then(|here| absolute_file_url(self.url(), here.to_str()?));
        ChildEngine::Url(url.unwrap_or_else(|| self.url().to_owned()))
    }

    /// Opens the engine for reading only; returns the locks and the URL to show. Does not create a
    /// missing folder, but prints its path, which may be mistyped. Also prints the default folder's
    /// path, because `file:` is a different folder for each user.
    pub(crate) async fn open_read_only(&self) -> Result<(Locks, String), Failure> {
        let location = file::folder_location(self.url())?;
        if let Some(location) = &location
            && location.is_default
        {
            let folder = location.folder.display();
            output::print_message(&format!(
                "`file:` is this user's own folder {folder}; it does not show the locks of other users"
            ));
        }
        match location.filter(|location| matches!(location.folder.join("locks").try_exists(), Ok(false))) {
            None => {
                let locks = self.open(DEFAULT_TTL).await?;
                let url = locks.url();
                Ok((locks, url))
            }
            Some(location) => {
                let folder = location.folder.display();
                output::print_message(&format!(
                    "{folder} has no locks: it was never used, and this command did not create it"
                ));
                // An empty in-memory engine: the missing folder holds no locks, either.
                Ok((Locks::open("memory:").await?, format!("file://{folder}")))
            }
        }
    }

    /// Opens the engine for locks with this TTL; retries for --connect-timeout while it is
    /// unreachable.
    pub(crate) async fn open(&self, ttl: Duration) -> Result<Locks, Failure> {
        self.open_within(ttl, self.connect_timeout, output::print_message).await
    }

    /// Opens the engine, and retries for `timeout` while it is unreachable. Reports each failed attempt
    /// to `on_message`.
    pub(crate) async fn open_within(
        &self,
        ttl: Duration,
        timeout: Duration,
        on_message: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Locks, Failure> {
        let unreachable = move |error: &leasehold::Error| {
            on_message(&format!("{error}; retrying for up to {}", format_duration(timeout)))
        };
        let builder = Locks::builder().ttl(ttl).connect_timeout(timeout).on_unreachable(unreachable);
        let locks = builder.open(self.url()).await?;
        let warning = locks.capabilities().warning;
        if !warning.is_empty() {
            output::print_message(&format!("warning: {warning}"));
        }
        Ok(locks)
    }

    /// Opens the engine for reading, runs one query and closes it. Returns the answer and the
    /// engine's URL.
    pub(crate) async fn query<T>(
        &self,
        query: impl AsyncFnOnce(&Locks) -> leasehold::Result<T>,
    ) -> Result<(T, String), Failure> {
        let (locks, url) = self.open_read_only().await?;
        let answer = query(&locks).await?;
        locks.close().await?;
        Ok((answer, url))
    }
}

/// An absolute URL for `file:folder`, relative to `current_dir`; `None` for any other URL.
fn absolute_file_url(url: &str, current_dir: &str) -> Option<String> {
    let (scheme, path) = url.split_once(':')?;
    let relative = !path.is_empty() && !path.starts_with(['/', '?']);
    let here = current_dir.replace('%', "%25").replace('?', "%3F");
    (scheme.eq_ignore_ascii_case("file") && relative).then(|| format!("file://{here}/{path}"))
}

#[derive(Debug, Args)]
pub(crate) struct JsonArg {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only locks whose names start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

/// Force a holder to release, or a waiter to give up
///
/// That process gets a notification within a round trip, or within 500 ms on an engine that polls.
/// If it is stopped or partitioned, it assumes that it holds the lock until the notification
/// arrives. If a fence token is printed, write it to the resource that the lock protects. The
/// resource then refuses writes of that holder, and of no other. A waiter that must give up exits
/// with code 75.
///
/// With --graceful, the command requests a release. The next waiter acquires the lock only when the
/// holder has released it or its lease has expired, so two never hold the lock at once. On the
/// request, `leasehold run` sends TERM to its command, and KILL just before the lease expires.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The lock's name
    pub(crate) name: String,
    /// Only the holder with this token; all holders if neither this nor --claim is given
    #[arg(long, value_name = "N", conflicts_with = "claim")]
    pub(crate) token: Option<u64>,
    /// Only the holder or waiter whose claim starts with this, as `leasehold show` prints it
    #[arg(long, value_name = "PREFIX")]
    pub(crate) claim: Option<String>,
    /// Request a release, and wait until the holder releases or its lease expires
    #[arg(short, long)]
    pub(crate) graceful: bool,
    /// Skip the confirmation; required without a terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// A reason for the log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) output: JsonArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn no_help_line_exceeds_80_columns() {
        for line in EXAMPLES.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }

    #[test]
    fn only_a_relative_folder_becomes_absolute() {
        assert_eq!(absolute_file_url("file:locks?mode=0770", "/a%b").as_deref(), Some("file:///a%25b/locks?mode=0770"));
        for url in ["file:", "file:?mode=0770", "file:///a", "redis://h/0", "memory:x"] {
            assert_eq!(absolute_file_url(url, "/a"), None, "{url}");
        }
    }
}
