//! Records: small texts that an engine stores beside its locks.

use std::sync::Arc;
use std::time::Duration;

use super::Step;
use crate::types::LockName;

/// A small text that the engine stores under a name, beside the locks and independent of them.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let records = locks.records()?;
/// assert_eq!(records.get("last-run").await?.version, 0, "it does not exist");
/// let record = records.compare_and_set("last-run", 0, "12:00").await?.expect("written");
/// assert_eq!(record.value, "12:00");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises with every write of this record, also over its removal. 0: the record does not exist.
    pub version: u64,
    /// Empty if the record does not exist.
    pub value: String,
    /// When it was read or written, on the engine's clock: time since 1970, UTC. Never a client's
    /// clock.
    pub engine_time: Duration,
}

impl Record {
    /// What reading a record returns that does not exist.
    pub fn absent(engine_time: Duration) -> Self {
        Self { version: 0, value: String::new(), engine_time }
    }
}

/// A run of an engine's servers: from a start, a promotion or a flush until the next one. A run
/// keeps the data that it acknowledged, but may have lost data from before it began.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let records = locks.records()?;
/// let (_record, run) = records.get_in_run(&leasehold::LockName::new("last-run")?).await?;
/// assert!(run.is_none(), "this engine reports no runs");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun {
    /// Its id, different for each run. Only a flush begins a run without a new id.
    pub id: String,
    /// When a client first saw this run, on the engine's clock. Everything that an earlier run
    /// acknowledged was acknowledged before that.
    pub began_at: Duration,
}

/// Small texts beside the locks, each with a version that a writer must have read.
///
/// As those of [`Engine`], every method takes one bounded step that is safe to repeat.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{LockName, clock::Clock, engine::{Engine, RecordStore}, registry};
///
/// let store = registry::open("memory:", &Clock::system()).await?.records().expect("records");
/// assert_eq!(store.get(LockName::new("last-run")?).await?.version, 0);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub trait RecordStore: Send + Sync + 'static {
    /// Reads a record, and the engine's clock at that moment.
    fn get(self: Arc<Self>, name: LockName) -> Step<Record>;

    /// Reads a record, and in the same step the run of the servers that answered. A run of `None`:
    /// the engine never loses data that it acknowledged, or cannot detect such a loss.
    ///
    /// Only an engine that may lose data *and* can detect it overrides this and
    /// [`compare_and_set_in_run`](Self::compare_and_set_in_run).
    fn get_in_run(self: Arc<Self>, name: LockName) -> Step<(Record, Option<ServerRun>)> {
        let read = self.get(name);
        Step::new(async move { Ok((read.await?, None)) })
    }

    /// Writes a record if its version is still `expected_version`, the version that was read (zero:
    /// the record must not exist). `None`: it has another version, and was not written. An empty
    /// value removes the record.
    ///
    /// The versions of a name rise over everything ever written to it, removals included. A write
    /// gives the version after the highest that the engine knows, or the engine's time in
    /// microseconds since 1970 if that is higher. So a late writer that read an old version never
    /// succeeds, also if the engine has dropped what it knew of a removed record.
    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>>;

    /// Writes a record as [`compare_and_set`](Self::compare_and_set) does, but only if the servers
    /// are still in `run`, in which the record was read. In another run it writes nothing and
    /// returns `None`, because versions may repeat after a loss of data.
    fn compare_and_set_in_run(
        self: Arc<Self>,
        name: LockName,
        expected_version: u64,
        value: String,
        run: ServerRun,
    ) -> Step<Option<Record>> {
        drop(run);
        self.compare_and_set(name, expected_version, value)
    }

    /// The names of all records that start with `prefix`, in order.
    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>>;
}
