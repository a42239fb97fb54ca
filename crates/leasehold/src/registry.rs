//! The engines that this version knows, and how a URL selects one.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, EngineUrl};
use crate::types::{Error, ErrorKind, Result};

/// An engine that this version knows, with an example of its URL.
///
/// ```
/// for engine in leasehold::registry::entries() {
///     println!("{}: {} ({})", engine.scheme, engine.summary, engine.example);
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineEntry {
    /// The scheme of its URLs.
    pub scheme: &'static str,
    /// The cargo feature that puts the engine into a build.
    pub feature: &'static str,
    /// An example of its URL.
    pub example: &'static str,
    /// Which clients share its locks, and where the locks are stored, in a few words.
    pub summary: &'static str,
    /// The engine's capabilities; `None` if its feature is off in this build, or if it does not run
    /// on this system: `file:` needs Linux.
    pub capabilities: Option<Capabilities>,
    /// The techniques between which the URL's `technique=` selects, the default first. Empty if the
    /// engine has only one, or if its feature is off in this build.
    pub techniques: Vec<Technique>,
}

/// A technique with which an engine can keep its locks: the databases have several.
///
/// ```
/// for engine in leasehold::registry::entries() {
///     for technique in &engine.techniques {
///         println!("{}://…?technique={}: {}", engine.scheme, technique.name, technique.summary);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Technique {
    /// The value of the URL's `technique=`.
    pub name: &'static str,
    /// How the technique keeps a lock, in a few words.
    pub summary: &'static str,
    /// What the engine can do with this technique.
    pub capabilities: Capabilities,
}

/// The techniques of a database engine: the capabilities of each, and the summary of the last one.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn techniques(
    row: Capabilities,
    for_update: Capabilities,
    session: Capabilities,
    session_summary: &'static str,
) -> Vec<Technique> {
    vec![
        Technique { name: "row", summary: "a row of a lease table; the default", capabilities: row },
        Technique { name: "for-update", summary: "a row lock in an open transaction", capabilities: for_update },
        Technique { name: "session", summary: session_summary, capabilities: session },
    ]
}

/// The entry of an engine: its module, cargo feature, scheme, example of a URL, and summary.
macro_rules! entry {
    ($engine:ident, $feature:literal, $scheme:literal, $example:literal, $summary:literal) => {
        EngineEntry {
            scheme: $scheme,
            feature: $feature,
            example: $example,
            summary: $summary,
            #[cfg(feature = $feature)]
            capabilities: Some(crate::engine::$engine::CAPABILITIES),
            #[cfg(not(feature = $feature))]
            capabilities: None,
            techniques: Vec::new(),
        }
    };
}

/// All engines that this version knows, including those that are not in this build.
#[rustfmt::skip]
pub fn entries() -> Vec<EngineEntry> {
    vec![
        entry!(memory, "memory", "memory", "memory:",
            "the tasks of one process; the reference for every mode"),
        EngineEntry {
            scheme: "file",
            feature: "file",
            example: "file:///var/lib/leasehold",
            summary: "the processes of one Linux host, in a folder; nothing to install",
            #[cfg(all(feature = "file", target_os = "linux"))]
            capabilities: Some(crate::engine::file::CAPABILITIES),
            #[cfg(not(all(feature = "file", target_os = "linux")))]
            capabilities: None,
            techniques: Vec::new(),
        },
        entry!(redis, "redis", "redis", "redis://host:6379/0",
            "many machines, in one Redis or Valkey server; rediss: for TLS"),
        entry!(redis, "redis", "redis+sentinel", "redis+sentinel://h1,h2,h3/mymaster",
            "many machines, in a Redis master that Sentinels choose"),
        entry!(redis, "redis", "redis+cluster", "redis+cluster://h1,h2,h3",
            "many machines, in a Redis Cluster"),
        entry!(redlock, "redis", "redlock", "redlock://h1,h2,h3,h4,h5",
            "many machines, in a majority of independent Redis servers"),
        EngineEntry {
            scheme: "mysql",
            feature: "mysql",
            example: "mysql://user:password@host/database",
            summary: "many machines, in a MySQL or MariaDB database",
            #[cfg(feature = "mysql")]
            capabilities: Some(crate::engine::sql::MYSQL),
            #[cfg(not(feature = "mysql"))]
            capabilities: None,
            #[cfg(feature = "mysql")]
            techniques: techniques(
                crate::engine::sql::MYSQL,
                crate::engine::sql::session_locks::MYSQL_FOR_UPDATE,
                crate::engine::sql::session_locks::MYSQL_SESSION,
                "a named lock of the session: GET_LOCK",
            ),
            #[cfg(not(feature = "mysql"))]
            techniques: Vec::new(),
        },
        EngineEntry {
            scheme: "postgres",
            feature: "postgres",
            example: "postgres://user:password@host/database",
            summary: "many machines, in a PostgreSQL database",
            #[cfg(feature = "postgres")]
            capabilities: Some(crate::engine::sql::POSTGRES),
            #[cfg(not(feature = "postgres"))]
            capabilities: None,
            #[cfg(feature = "postgres")]
            techniques: techniques(
                crate::engine::sql::POSTGRES,
                crate::engine::sql::session_locks::POSTGRES_FOR_UPDATE,
                crate::engine::sql::session_locks::POSTGRES_SESSION,
                "an advisory lock of the session",
            ),
            #[cfg(not(feature = "postgres"))]
            techniques: Vec::new(),
        },
        entry!(zookeeper, "zookeeper", "zookeeper", "zookeeper://h1,h2,h3/locks",
            "many machines, in a ZooKeeper ensemble; fair, and no herd"),
    ]
}

/// Opens the engine at a URL, with one attempt. For programs that wrap an engine, or use it without
/// [`Locks`](crate::Locks).
///
/// # Errors
/// As [`Locks::open`](crate::Locks::open).
pub fn open<'a>(url: &'a str, clock: &'a Clock) -> BoxFuture<'a, Result<Arc<dyn Engine>>> {
    // Boxed here, so that not every program that opens a lock compiles the code of every engine
    // again.
    Box::pin(async move {
        let url = EngineUrl::parse(url)?;
        open_scheme(url.clone(), clock).await.map_err(|error| url.add_location(error))
    })
}

/// Opens the engine that has the URL's scheme.
async fn open_scheme(url: EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let url = url.read_password_files()?;
    match url.scheme.as_str() {
        #[cfg(feature = "memory")]
        "memory" => Ok(crate::engine::memory::MemoryEngine::open(&url, clock)?),
        #[cfg(all(feature = "file", target_os = "linux"))]
        "file" => Ok(crate::engine::file::FileEngine::open(&url, clock).await?),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => crate::engine::redis::open(&url, clock).await,
        #[cfg(feature = "redis")]
        "redlock" => crate::engine::redlock::open(&url, clock).await,
        #[cfg(feature = "mysql")]
        "mysql" => crate::engine::sql::open(&url, clock).await,
        #[cfg(feature = "postgres")]
        "postgres" => crate::engine::sql::open(&url, clock).await,
        #[cfg(feature = "zookeeper")]
        "zookeeper" => crate::engine::zookeeper::open(&url, clock).await,
        scheme => {
            let _ = clock;
            Err(unknown_scheme(scheme))
        }
    }
}

/// The error for a scheme that no engine of this build has: it names the cargo feature to turn on,
/// or the schemes that exist.
pub fn unknown_scheme(scheme: &str) -> Error {
    let entries = entries();
    if scheme == "file" && cfg!(not(target_os = "linux")) {
        let message = "the `file:` engine needs Linux; on this system use an engine with a server: redis://host, \
                       postgres://host/database, …";
        return Error::new(ErrorKind::Unsupported, message);
    }
    if let Some(entry) = entries.iter().find(|entry| entry.scheme == scheme) {
        let message = format!(
            "the `{scheme}:` engine is not in this build; turn its feature on: cargo add leasehold -F {}",
            entry.feature
        );
        return Error::new(ErrorKind::FeatureDisabled, message);
    }
    let known: Vec<_> = entries.iter().map(|entry| format!("{}:", entry.scheme)).collect();
    Error::new(
        ErrorKind::UnknownScheme,
        format!("no engine has the scheme `{scheme}:`; there are {}", known.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_know_the_scheme_of_every_engine() {
        for entry in entries() {
            assert!(crate::engine::SCHEMES.contains(&entry.scheme), "{}", entry.scheme);
        }
    }
}
