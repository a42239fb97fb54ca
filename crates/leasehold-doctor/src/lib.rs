//! Examines a deployment: which settings could lose locks, block them or grant them twice, and
//! which settings to use instead.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use leasehold_doctor::{self as doctor, Level, Options};
//!
//! let report = doctor::examine("memory:", &Options::default()).await?;
//! assert_eq!(report.worst(), Level::Ok);
//! # Ok::<(), leasehold::Error>(()) }).unwrap();
//! ```
//! The report assumes no defaults: a fact that a server does not reveal is [`Level::Unknown`],
//! never [`Level::Ok`]. Each [`Finding`] names the observation, its effect on locks, and the fix.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "file", target_os = "linux"))]
mod file;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold::engine::EngineUrl;
use leasehold::{DEFAULT_TTL, Result};

/// The severity of a finding, in ascending order.
///
/// ```
/// use leasehold_doctor::Level;
///
/// assert!(Level::Unknown < Level::Warn && Level::Warn < Level::Fail);
/// assert_eq!(Level::Fail.to_string(), "fail");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The setting is safe.
    Ok,
    /// The deployment does not reveal the setting.
    Unknown,
    /// Locks work, but are lost or late when another part fails.
    Warn,
    /// Locks do not work, or two clients may hold one lock.
    Fail,
}

impl Level {
    /// A short stable word, as `--json` uses it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of one check.
///
/// ```
/// use leasehold_doctor::{Finding, Level};
///
/// let finding = Finding::new(Level::Warn, "clock", "db1:6379", "it is 2 s ahead")
///     .impact("tokens come from this clock")
///     .fix("run chrony or ntpd");
/// assert_eq!((finding.check, finding.subject.as_str()), ("clock", "db1:6379"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The check: a stable word such as `eviction-policy`.
    pub check: &'static str,
    /// The server or folder; empty if the finding is about all of them.
    pub subject: String,
    /// The severity.
    pub level: Level,
    /// The observation.
    pub found: String,
    /// The effect on locks.
    pub impact: String,
    /// The fix; empty if none is needed.
    pub fix: String,
}

impl Finding {
    /// A finding with only an observation: its effect and its fix are empty.
    pub fn new(level: Level, check: &'static str, subject: &str, found: impl Into<String>) -> Self {
        let (means, fix) = (String::new(), String::new());
        Self { check, subject: subject.to_owned(), level, found: found.into(), impact: means, fix }
    }

    /// The same finding, with the effect on locks.
    #[must_use]
    pub fn impact(mut self, text: impl Into<String>) -> Self {
        self.impact = text.into();
        self
    }

    /// The same finding, with the fix.
    #[must_use]
    pub fn fix(mut self, text: impl Into<String>) -> Self {
        self.fix = text.into();
        self
    }
}

/// All findings of an examination.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_doctor::{Level, Options, examine};
///
/// let report = examine("memory:", &Options::default()).await?;
/// println!("{}: {}, {} warnings", report.engine, report.worst(), report.count(Level::Warn));
/// for finding in &report.findings {
///     println!("{} {}: {}", finding.level, finding.check, finding.found);
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The engine's URL, without secrets.
    pub engine: String,
    /// The TTL for which the deployment was examined.
    pub ttl: Duration,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// A report with these findings.
    pub fn new(engine: &EngineUrl, options: &Options, mut findings: Vec<Finding>) -> Self {
        // The sort is stable: among findings of one level, the order of the checks remains.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        Self { engine: engine.to_string(), ttl: options.ttl, findings }
    }

    /// The worst level of all findings.
    pub fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// How many findings have this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

/// A finding of [`Level::Ok`].
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
pub(crate) fn ok(check: &'static str, subject: &str, found: impl Into<String>) -> Finding {
    Finding::new(Level::Ok, check, subject, found)
}

/// A finding of [`Level::Warn`].
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
pub(crate) fn warn(check: &'static str, subject: &str, found: impl Into<String>) -> Finding {
    Finding::new(Level::Warn, check, subject, found)
}

/// A finding of [`Level::Fail`].
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
pub(crate) fn fail(check: &'static str, subject: &str, found: impl Into<String>) -> Finding {
    Finding::new(Level::Fail, check, subject, found)
}

/// A duration for people: `250 µs`, `1.5 ms`, `25 ms`, `2.5 s`, `3 min`.
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "mysql", feature = "postgres"))]
pub(crate) fn format_short(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1000 => format!("{micros} µs"),
        1000..10_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{} ms", duration.as_millis()),
        1_000_000..60_000_000 if micros.is_multiple_of(1_000_000) => format!("{} s", duration.as_secs()),
        1_000_000..60_000_000 => format!("{:.1} s", duration.as_secs_f64()),
        60_000_000..120_000_000 if micros > 60_000_000 => format!("{} s", duration.as_secs()),
        _ => format!("{} min", duration.as_secs() / 60),
    }
}

/// Options of an examination.
///
/// ```
/// use leasehold_doctor::Options;
/// use std::time::Duration;
///
/// // Compares round trips and clocks with locks of ten seconds, instead of the default of 30.
/// let options = Options::default().ttl(Duration::from_secs(10));
/// assert_eq!(options.ttl, Duration::from_secs(10));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The TTL that the locks will have: round trips, clocks and failovers are compared with it.
    pub ttl: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL }
    }
}

impl Options {
    /// The same options, for locks of this TTL.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }
}

/// Examines the deployment that a URL names, and returns what was found. An unreachable deployment
/// is a finding, not an error.
///
/// # Errors
/// Only if the URL names no deployment: `InvalidUrl`, `UnknownScheme` or `FeatureDisabled`.
pub fn examine<'a>(url: &'a str, options: &'a Options) -> BoxFuture<'a, Result<Report>> {
    Box::pin(async move {
        let url = EngineUrl::parse(url)?;
        let findings = match url.clone().read_password_files() {
            Ok(url) => collect_findings(&url, options).await,
            Err(error) => Err(error),
        };
        let findings = findings.map_err(|error| url.add_location(error))?;
        Ok(Report::new(&url, options, findings))
    })
}

/// Runs the checks of the URL's engine; passwords in files are already part of the URL.
async fn collect_findings(url: &EngineUrl, options: &Options) -> Result<Vec<Finding>> {
    match url.scheme.as_str() {
        #[cfg(feature = "memory")]
        "memory" => memory_findings(url).await,
        #[cfg(all(feature = "file", target_os = "linux"))]
        "file" => file::examine(url),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => redis::examine(url, options.ttl).await,
        #[cfg(feature = "redis")]
        "redlock" => redlock::examine(url, options.ttl).await,
        #[cfg(feature = "zookeeper")]
        "zookeeper" => zookeeper::examine(url, options.ttl).await,
        #[cfg(feature = "mysql")]
        "mysql" => sql::examine(url, options.ttl).await,
        #[cfg(feature = "postgres")]
        "postgres" => sql::examine(url, options.ttl).await,
        scheme => {
            let _ = options;
            Err(leasehold::registry::unknown_scheme(scheme))
        }
    }
}

/// The findings for `memory:`, which has no settings: only that its locks exist inside one process.
#[cfg(feature = "memory")]
async fn memory_findings(url: &EngineUrl) -> Result<Vec<Finding>> {
    leasehold::Locks::open(&url.to_string()).await?;
    let reach = Finding::new(Level::Ok, "reach", "", "the locks exist inside one process").impact(
        "the tasks of that process exclude each other; other processes, including other runs of a command, do not",
    );
    Ok(vec![reach])
}

/// Asserts a finding's level, that its texts contain `text`, and that it has a fix unless it is ok.
#[cfg(all(test, any(feature = "mysql", feature = "postgres", feature = "redis", feature = "zookeeper")))]
#[track_caller]
fn assert_level(finding: &Finding, level: Level, text: &str) {
    assert_eq!(finding.level, level, "{finding:?}");
    let all = format!("{} {} {}", finding.found, finding.impact, finding.fix);
    assert!(all.contains(text), "{text:?} is not in {all}");
    assert!(!finding.impact.is_empty(), "{finding:?}");
    assert_eq!(finding.fix.is_empty(), level == Level::Ok, "{finding:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_counts() {
        let url = EngineUrl::parse("redis://u:hunter2@h").unwrap();
        let all = [Level::Ok, Level::Warn, Level::Unknown, Level::Fail, Level::Warn];
        let findings = all.iter().map(|&level| Finding::new(level, "x", "", "")).collect();
        let report = Report::new(&url, &Options::default(), findings);
        let levels: Vec<_> = report.findings.iter().map(|finding| finding.level.as_str()).collect();
        assert_eq!(levels, ["fail", "warn", "warn", "unknown", "ok"]);
        assert_eq!((report.worst(), report.count(Level::Warn)), (Level::Fail, 2));
        assert!(!format!("{report:?}").contains("hunter2"));
        assert_eq!(Report::new(&url, &Options::default(), vec![]).worst(), Level::Ok);
    }

    #[tokio::test]
    async fn an_unknown_engine_is_an_error() {
        let error = examine("carrier-pigeon:", &Options::default()).await.unwrap_err();
        assert_eq!(error.kind(), leasehold::ErrorKind::UnknownScheme);
    }
}
