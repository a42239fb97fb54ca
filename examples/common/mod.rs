//! Shared by the examples: the command line, the engine, and the exit code.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use tempfile::TempDir;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The command line. It handles `--engine` and `--help`, which are the same for all examples.
pub(crate) struct Arguments {
    usage: &'static str,
    rest: std::iter::Skip<std::env::Args>,
    engine: Option<String>,
}

impl Arguments {
    pub(crate) fn new(usage: &'static str) -> Self {
        Self { usage, rest: std::env::args().skip(1), engine: None }
    }

    /// The next option of the example.
    pub(crate) fn next(&mut self) -> Result<Option<String>, Failure> {
        while let Some(word) = self.rest.next() {
            match word.as_str() {
                "--engine" => self.engine = Some(self.value(&word)?),
                "--help" | "-h" => return Err(EarlyExit::Help(self.usage).into()),
                _ => return Ok(Some(word)),
            }
        }
        Ok(None)
    }

    /// The value of an option.
    pub(crate) fn value(&mut self, option: &str) -> Result<String, Failure> {
        self.rest.next().ok_or_else(|| self.usage_error(format!("{option} needs a value")))
    }

    /// The value of an option, as a number from 1.
    pub(crate) fn number(&mut self, option: &str) -> Result<u32, Failure> {
        let text = self.value(option)?;
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| self.usage_error(format!("{option} needs a number from 1, not {text:?}")))
    }

    pub(crate) fn unknown_option(&self, word: &str) -> Failure {
        self.usage_error(format!("{word:?} is no option"))
    }

    pub(crate) fn usage_error(&self, why: String) -> Failure {
        EarlyExit::Usage(format!("{why}\n{}", self.usage)).into()
    }

    /// The requested engine, or the embedded one in a temporary folder.
    pub(crate) fn engine_location(self) -> Result<EngineLocation, Failure> {
        if let Some(url) = self.engine {
            return Ok(EngineLocation { url, folder: None });
        }
        let folder = tempfile::Builder::new().prefix("leasehold-example-").tempdir()?;
        Ok(EngineLocation { url: format!("file://{}", folder.path().display()), folder: Some(folder) })
    }
}

/// The engine that an example uses: its URL, and its temporary folder if it has one.
pub(crate) struct EngineLocation {
    pub(crate) url: String,
    /// The temporary folder of the embedded engine, removed on drop; `None` with `--engine`.
    folder: Option<TempDir>,
}

impl fmt::Display for EngineLocation {
    /// Omits the URL, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.folder {
            Some(_) => f.write_str("the embedded engine (file:, in a temporary folder)"),
            None => f.write_str(self.url.split(':').next().unwrap_or_default()),
        }
    }
}

/// The command line ended the example: `--help`, or a usage error.
#[derive(Debug)]
enum EarlyExit {
    Help(&'static str),
    Usage(String),
}

impl fmt::Display for EarlyExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Help(text) => f.write_str(text),
            Self::Usage(text) => f.write_str(text),
        }
    }
}

impl Error for EarlyExit {}

/// The exit code: 0 if what the example shows held, 1 if not or if the engine failed, 64 if the
/// command line is wrong.
pub(crate) fn exit_code(shown: Result<bool, Failure>) -> ExitCode {
    let why = match shown {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("\nThis result is wrong.");
            return ExitCode::FAILURE;
        }
        Err(why) => why,
    };
    match why.downcast_ref() {
        Some(EarlyExit::Help(usage)) => {
            println!("{usage}");
            ExitCode::SUCCESS
        }
        Some(EarlyExit::Usage(text)) => {
            eprintln!("{text}");
            ExitCode::from(64)
        }
        None => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
