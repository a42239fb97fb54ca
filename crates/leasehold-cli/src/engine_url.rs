//! Resolves the engine: `--engine`, else `--engine-file`, else `LEASEHOLD_ENGINE`, else
//! `LEASEHOLD_ENGINE_FILE`, else `file:`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ArgMatches;
use clap::parser::ValueSource;
use leasehold::engine;
use leasehold_command::secret;

use crate::args::{EngineArg, parse_engine_url};
use crate::exit::Failure;

/// The size limit of a file with an engine's URL, in bytes.
const MAX_FILE_SIZE: u64 = 64 * 1024;

/// How a command that this process starts finds the same engine. It gets the same kind of reference
/// that this process got, so a password in a file stays in the file.
#[derive(Clone, Debug)]
pub(crate) enum ChildEngine {
    Url(String),
    /// A file with the engine's URL.
    File(PathBuf),
}

impl ChildEngine {
    /// Sets LEASEHOLD_ENGINE or LEASEHOLD_ENGINE_FILE for the command, and removes the other one.
    pub(crate) fn set_env(&self, command: &mut Command) {
        command
            .env_remove(secret::HIDDEN_URL_VARIABLE)
            .env_remove("LEASEHOLD_ENGINE")
            .env_remove("LEASEHOLD_ENGINE_FILE");
        match self {
            Self::Url(url) => command.env("LEASEHOLD_ENGINE", url),
            Self::File(path) => command.env("LEASEHOLD_ENGINE_FILE", path),
        };
    }
}

/// Replaces the parsed option by the URL of the engine to use, from the option, file or variable
/// that has priority. Hides a password given on the command line.
pub(crate) fn resolve_engine(arg: &mut EngineArg, matches: &ArgMatches) -> Result<(), Failure> {
    let source = |id| matches.value_source(id).filter(|source| *source != ValueSource::DefaultValue);
    let (typed, file) = (source("engine"), source("engine_file"));
    let is_from_file = match (typed, file) {
        (Some(ValueSource::CommandLine), Some(ValueSource::CommandLine)) => {
            return Err(Failure::usage("--engine and --engine-file both name the engine: leave one of them out"));
        }
        (_, Some(ValueSource::CommandLine)) => true,
        (None, Some(_)) => true,
        _ => false,
    };
    if !is_from_file {
        arg.engine_file = None;
    }
    if let Some(path) = &arg.engine_file {
        arg.engine = read_url_file(path)?;
        arg.engine_file = Some(fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
    } else if typed == Some(ValueSource::CommandLine) {
        secret::hide_typed_password("--engine", &arg.engine, "password-file=, --engine-file or LEASEHOLD_ENGINE");
    }
    secret::warn_of_exposed_files(&arg.engine);
    Ok(())
}

/// Reads the engine's URL from the first line of a file.
fn read_url_file(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let read = || -> io::Result<String> {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE_SIZE).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| Failure::usage(format!("cannot read the engine's URL from {shown}: {error}")))?;
    let url = parse_engine_url(text.lines().next().unwrap_or_default().trim())
        .map_err(|_| Failure::usage(format!("{shown} has no URL in its first line")))?;
    if secret::has_password(&url) && engine::is_exposed(path) {
        secret::warn_of_exposed_file(path);
    }
    Ok(url)
}
