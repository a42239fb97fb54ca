//! The command line: every flag with its own help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use leasehold::engine::file;
use leasehold::{DEFAULT_TTL, Locks};
use leasehold_command::secret;

use crate::cron::CronArgs;
use crate::doctor::DoctorArgs;
use crate::duration::{human, parse};
use crate::engine_url::{self, ForCommand};
use crate::engines::EnginesArgs;
use crate::exit::Failure;
use crate::output;
use crate::run::RunArgs;
use crate::verify::VerifyArgs;

// Lines of at most 79 characters, so that no terminal breaks them.
const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./send-messages      one at a time, in order
  leasehold run -n nightly -- ./send-messages   not at all if it is held
  leasehold run -w 30s deploy -c 'make && make install'
  leasehold run --slots 4 encode -- ./encode    at most four at a time
  leasehold cron jobs.cron                      a timetable, each tick once
  leasehold ls                                  who holds what, and who waits
  leasehold show nightly                        everything about one lock
  leasehold evict nightly                       force the holder to release
  leasehold evict --graceful nightly            ask it to, and wait for it
  leasehold doctor --engine redis://db1         is this server fit for locks?
  leasehold verify --local redis                proof, with a picture

Environment:
  LEASEHOLD_ENGINE   the engine's URL, where --engine is not given
  LEASEHOLD_ENGINE_FILE
                     a file with that URL, where neither is given
  LEASEHOLD_LOG      what the library tells of itself on standard error: warn,
                     debug, leasehold=trace
  NO_COLOR           no colours

Exit codes (`leasehold run --help` lists those of `run`):
    0   done
    1   evict: nobody holds it, or you said no; doctor: warnings; verify: a
        promise was broken
    2   doctor: failures
   64   wrong usage, or a bad name, URL or duration
   69   the engine cannot be used: away, denied, full or corrupt
   71   the system refused us something
   74   the output cannot be written";

/// Locks that many processes and machines share.
///
/// Runs a command while it holds a lock, shows who holds what and who waits, and forces a holder to release. A lock has a name and
/// lives in an engine: `file:` (the default) is shared by the processes of this host; `leasehold engines` lists the others.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = EXAMPLES, after_help = "`leasehold --help` has examples.")]
#[command(max_term_width = 120, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line, and finds the engine that is meant.
    pub(crate) fn read() -> Result<Result<Self, Failure>, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let settled = match cli.command.engine() {
            Some(engine) => engine_url::settle(engine, innermost(&matches)),
            None => Ok(()),
        };
        Ok(settled.map(|()| cli))
    }
}

/// What was given to the innermost command.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

impl Command {
    /// The engine's options, where the command has any.
    fn engine(&mut self) -> Option<&mut EngineArg> {
        match self {
            Self::Run(args) => Some(&mut args.engine),
            Self::Cron(args) => args.engine(),
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
    /// List the locks that somebody holds or waits for
    Ls(LsArgs),
    /// Show who holds one lock and who waits for it
    Show(ShowArgs),
    Evict(EvictArgs),
    Doctor(DoctorArgs),
    Verify(Box<VerifyArgs>),
    Engines(EnginesArgs),
    /// Print the completion script of a shell
    ///
    /// For bash: `leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold`
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    ///
    /// All commands on one page: `leasehold man | man -l -`
    Man {
        /// Write one page for each command into this folder instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EngineArg {
    /// The engine that keeps the lock
    ///
    /// `file:` or `file:///folder` for the processes of this host, `redis://host:6379` for many machines,
    /// `redlock://h1,h2,h3,h4,h5` for many machines and a majority of independent servers,
    /// `zookeeper://h1,h2,h3/locks` for many machines and a ZooKeeper ensemble, `mysql://user:password@host/database` or
    /// `postgres://user:password@host/database` for many machines and a database that is there already. `leasehold engines` lists all of them.
    ///
    /// Every user of this host can see the command line: a password belongs into a file, `?password-file=/path` in the URL or
    /// --engine-file, or into LEASEHOLD_ENGINE.
    #[arg(long, value_name = "URL", env = "LEASEHOLD_ENGINE", hide_env_values = true, default_value = "file:", value_parser = named)]
    pub(crate) engine: String,
    /// A file whose first line is the engine's URL
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_ENGINE_FILE", hide_env_values = true)]
    pub(crate) engine_file: Option<PathBuf>,
    /// For how long an engine that is unreachable is tried again; `run -w` counts instead, and `cron` never gives up
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse)]
    pub(crate) connect_timeout: Duration,
}

/// Whoever names an engine by a variable that is not set means another than this host's own folder.
pub(crate) fn named(url: &str) -> Result<String, String> {
    match url.trim() {
        "" => Err("no engine is named; leave --engine away and LEASEHOLD_ENGINE unset for `file:`".to_owned()),
        _ => Ok(secret::revealed(url)),
    }
}

impl EngineArg {
    pub(crate) fn url(&self) -> &str {
        &self.engine
    }

    /// How a command finds the same engine, wherever it goes: a folder is named from the root.
    pub(crate) fn for_command(&self) -> ForCommand {
        if let Some(path) = &self.engine_file {
            return ForCommand::File(path.clone());
        }
        let here = std::env::current_dir().ok();
        let url = here.and_then(|here| from_root(self.url(), here.to_str()?));
        ForCommand::Url(url.unwrap_or_else(|| self.url().to_owned()))
    }

    /// Opens it only to look: a folder that is not there is not made. It is named, because it may have been mistyped; and so is one that
    /// another user's `file:` does not mean. The locks, and the engine's URL to show.
    pub(crate) async fn open_to_look(&self) -> Result<(Locks, String), Failure> {
        let place = file::place(self.url())?;
        if let Some(place) = &place
            && place.is_default
        {
            let folder = place.folder.display();
            output::say(&format!("`file:` is this user's own folder {folder}; locks of other users are not seen here"));
        }
        match place.filter(|place| matches!(place.folder.join("locks").try_exists(), Ok(false))) {
            None => {
                let locks = self.open(DEFAULT_TTL).await?;
                let url = locks.url();
                Ok((locks, url))
            }
            Some(place) => {
                let folder = place.folder.display();
                output::say(&format!("{folder} has no locks: no lock was ever taken there, and nothing was made"));
                // Nothing is held in there, either.
                Ok((Locks::open("memory:").await?, format!("file://{folder}")))
            }
        }
    }

    pub(crate) async fn open(&self, ttl: Duration) -> Result<Locks, Failure> {
        self.open_within(ttl, self.connect_timeout, output::say).await
    }

    /// Opens it, and tries again for `within` while it is unreachable; `tell` has one line for that.
    pub(crate) async fn open_within(
        &self,
        ttl: Duration,
        within: Duration,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Locks, Failure> {
        let unreachable =
            move |error: &leasehold::Error| tell(&format!("{error}; retrying for up to {}", human(within)));
        let builder = Locks::builder().ttl(ttl).connect_timeout(within).on_unreachable(unreachable);
        let locks = builder.open(self.url()).await?;
        let caution = locks.capabilities().caution;
        if !caution.is_empty() {
            output::say(&format!("warning: {caution}"));
        }
        Ok(locks)
    }

    /// Opens the engine to look, asks it for something and closes it. The answer, and the engine's URL.
    pub(crate) async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&Locks) -> leasehold::Result<T>,
    ) -> Result<(T, String), Failure> {
        let (locks, url) = self.open_to_look().await?;
        let answer = question(&locks).await?;
        locks.close().await?;
        Ok((answer, url))
    }
}

/// `file:folder` as seen from `here`; `None` for any other URL.
fn from_root(url: &str, here: &str) -> Option<String> {
    let (scheme, path) = url.split_once(':')?;
    let relative = !path.is_empty() && !path.starts_with(['/', '?']);
    let here = here.replace('%', "%25").replace('?', "%3F");
    (scheme.eq_ignore_ascii_case("file") && relative).then(|| format!("file://{here}/{path}"))
}

#[derive(Debug, Args)]
pub(crate) struct JsonArg {
    /// JSON for programs instead of a table for people
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only locks whose names start so
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
/// An evicted holder is told within a round trip, or within 500 ms where the engine polls, but it may have been stopped or
/// cut off: until it hears of it, it believes that it holds the lock. If a token is printed, write it to whatever the lock
/// protects: it refuses the writes of the evicted holder, and of no other. An evicted waiter ends with exit code 75.
///
/// With --graceful the holder is asked to release, and the next is granted only when it has released, or when its lease has
/// ended: two never hold the lock at once. `leasehold run` then sends TERM to its command, and KILL just before the lease ends.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The lock's name
    pub(crate) name: String,
    /// Only the holders with this token; all holders if neither this nor --claim is given
    #[arg(long, value_name = "N", conflicts_with = "claim")]
    pub(crate) token: Option<u64>,
    /// Only the holder or waiter whose claim starts so, as `leasehold show` has it
    #[arg(long, value_name = "PREFIX")]
    pub(crate) claim: Option<String>,
    /// Ask the holder to release, and wait until it has, or until its lease has ended
    #[arg(short, long)]
    pub(crate) graceful: bool,
    /// Do not ask; needed where there is no terminal to ask on
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Why, for the record
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
    fn no_line_of_the_help_is_broken_by_a_terminal() {
        for line in EXAMPLES.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }

    #[test]
    fn only_a_folder_named_from_here_is_named_anew() {
        assert_eq!(from_root("file:locks?mode=0770", "/a%b").as_deref(), Some("file:///a%25b/locks?mode=0770"));
        for url in ["file:", "file:?mode=0770", "file:///a", "redis://h/0", "memory:x"] {
            assert_eq!(from_root(url, "/a"), None, "{url}");
        }
    }
}
