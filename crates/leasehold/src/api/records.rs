//! Records: small texts beside the locks, written by compare-and-set, with the engine's own clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::locks::Locks;
use crate::clock::Instant;
use crate::core::keeper;
use crate::core::shared::Shared;
use crate::engine::{Record, RecordStore, ServerRun, Step};
use crate::logic::record_version::MAX_RECORD;
use crate::logic::{backoff, lease as rules};
use crate::types::{Error, ErrorKind, LockName, Result};

/// The records of an engine; made by [`Locks::records`]. Cheap to clone.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::Locks;
///
/// let records = Locks::open("memory:").await?.records()?;
/// let record = records.update("last-run", |_, now| Some(now.as_secs().to_string())).await?;
/// assert_eq!(records.get("last-run").await?.value, record.value);
/// assert!(records.compare_and_set("last-run", record.version - 1, "late").await?.is_none());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Records {
    shared: Arc<Shared>,
    store: Arc<dyn RecordStore>,
}

impl Locks {
    /// The records of the engine: small texts that it stores beside the locks and independent of
    /// them.
    ///
    /// # Errors
    /// `Unsupported` if the engine stores no records.
    pub fn records(&self) -> Result<Records> {
        let store = Arc::clone(&self.shared.manager.engine).records().filter(|_| self.capabilities().records);
        let store = store.ok_or_else(|| self.shared.locate(self.capabilities().unsupported_error("records")))?;
        Ok(Records { shared: Arc::clone(&self.shared), store })
    }
}

impl Records {
    /// Reads a record and the engine's clock. A record that does not exist has version zero and an
    /// empty value.
    ///
    /// # Errors
    /// `InvalidName`, or an error from the engine.
    pub async fn get(&self, name: impl AsRef<str>) -> Result<Record> {
        let name = LockName::new(name)?;
        self.read(&name).await
    }

    /// Writes a record if its version is still `expected_version`, the version that was read (zero:
    /// the record must not exist). An empty value removes the record. `None`: it has another
    /// version, and was not written.
    ///
    /// # Errors
    /// `InvalidName`, `InvalidOption` if the value has more than 64 KiB, or an error from the
    /// engine.
    ///
    /// # Ambiguity
    /// After an error with an unknown effect, the write may have happened or may still happen: read
    /// the record again. Of two writes over the same version, the second one has no effect.
    pub async fn compare_and_set(
        &self,
        name: impl AsRef<str>,
        expected_version: u64,
        value: impl Into<String>,
    ) -> Result<Option<Record>> {
        let name = LockName::new(name)?;
        self.write(&name, expected_version, value.into()).await
    }

    /// The names of all records that start with `prefix` (empty: all records), sorted.
    ///
    /// # Errors
    /// `Closed`, or an error from the engine.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.check_open()?;
        self.call_bounded(Arc::clone(&self.store).list(prefix.to_owned())).await
    }

    /// Reads a record, calls `change` with its value (empty if it does not exist) and the engine's
    /// clock, and writes the result. If another client wrote the record meanwhile, it starts over.
    /// `None` from `change` leaves the record as it is; an empty text removes it. Returns the
    /// record after the update.
    ///
    /// # Errors
    /// `Timeout` if writes of other clients interfered for a whole TTL; or an error from the
    /// engine, after retries for a TTL where they may help.
    ///
    /// # Ambiguity
    /// If the reply to a write is lost, the record is read again and `change` runs again, perhaps
    /// on its own result: it must tolerate that. A `change` that sets a value or a maximum does. A
    /// `change` that counts must recognise its own result in the value.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the write may have happened or not.
    pub async fn update(
        &self,
        name: impl AsRef<str>,
        mut change: impl FnMut(&str, Duration) -> Option<String>,
    ) -> Result<Record> {
        let name = LockName::new(name)?;
        let mut retries = UpdateRetries::new(&self.shared);
        loop {
            retries.attempt_started = self.shared.manager.clock.now();
            let failure = match self.read(&name).await {
                Ok(found) => {
                    let Some(value) = change(&found.value, found.engine_time) else { return Ok(found) };
                    match self.write(&name, found.version, value).await {
                        Ok(Some(written)) => return Ok(written),
                        Ok(None) => None,
                        Err(error) => Some(error),
                    }
                }
                Err(error) => Some(error),
            };
            retries.pause(failure).await.map_err(|error| error.about_record(&name))?;
        }
    }

    /// Adds the engine's URL to an error that has none.
    #[must_use]
    pub fn add_location(&self, error: Error) -> Error {
        self.shared.locate(error)
    }

    /// Reads a record from the engine, unless these locks are closed.
    async fn read(&self, name: &LockName) -> Result<Record> {
        self.check_open()?;
        let found = self.call_bounded(Arc::clone(&self.store).get(name.clone())).await;
        found.map_err(|error| error.about_record(name))
    }

    /// Reads a record and, in the same step, the [run](ServerRun) of the servers: from one restart
    /// or fail-over to the next. `None`: the engine reports no runs.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_in_run(&self, name: &LockName) -> Result<(Record, Option<ServerRun>)> {
        self.check_open()?;
        let found = self.call_bounded(Arc::clone(&self.store).get_in_run(name.clone())).await;
        found.map_err(|error| error.about_record(name))
    }

    /// Writes a record as [`compare_and_set`](Self::compare_and_set), but only if the servers are
    /// still in the run in which the record was read. Pass what [`get_in_run`](Self::get_in_run)
    /// returned; with `run` `None`, any run counts.
    ///
    /// # Errors
    /// As [`compare_and_set`](Self::compare_and_set).
    pub async fn compare_and_set_in_run(
        &self,
        name: &LockName,
        expected_version: u64,
        value: String,
        run: Option<ServerRun>,
    ) -> Result<Option<Record>> {
        let Some(run) = run else { return self.write(name, expected_version, value).await };
        self.check_size(name, &value)?;
        let store = Arc::clone(&self.store);
        let written = self.call_bounded(store.compare_and_set_in_run(name.clone(), expected_version, value, run)).await;
        written.map_err(|error| error.about_record(name))
    }

    /// Writes a record if it still has the expected version; `None`: it has another one.
    async fn write(&self, name: &LockName, expected_version: u64, value: String) -> Result<Option<Record>> {
        self.check_size(name, &value)?;
        let written =
            self.call_bounded(Arc::clone(&self.store).compare_and_set(name.clone(), expected_version, value)).await;
        written.map_err(|error| error.about_record(name))
    }

    /// Returns an error if these locks are closed, or if the value is too long for a record.
    fn check_size(&self, name: &LockName, value: &str) -> Result<()> {
        self.check_open()?;
        if value.len() > MAX_RECORD {
            let message = format!("a record has at most {MAX_RECORD} bytes, and this one would have {}", value.len());
            let error = Error::new(ErrorKind::InvalidOption, message).about_record(name);
            return Err(self.shared.locate(error));
        }
        Ok(())
    }

    /// Returns the error `Closed` if these locks are closed.
    fn check_open(&self) -> Result<()> {
        if self.shared.manager.rejects_requests() {
            let error = Error::new(ErrorKind::Closed, "this Locks was closed");
            return Err(self.shared.locate(error));
        }
        Ok(())
    }

    /// Awaits one step of the engine, no longer than the timeout of a call.
    async fn call_bounded<T>(&self, mut step: Step<T>) -> Result<T> {
        keeper::call(&self.shared.manager, &mut step, || rules::call_timeout(self.shared.ttl)).await
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("engine", &self.shared.manager.engine.url()).finish_non_exhaustive()
    }
}

/// The attempts of one [`Records::update`]: their time limit and the pauses between them.
struct UpdateRetries<'a> {
    shared: &'a Shared,
    /// From then on, an error or a conflict ends the update: one TTL after its first attempt.
    give_up_at: Instant,
    /// When the present attempt began.
    attempt_started: Instant,
    /// How many attempts ended because another client wrote first.
    conflicts: u32,
    /// How often the engine failed since its last response.
    failures: u32,
}

impl<'a> UpdateRetries<'a> {
    fn new(shared: &'a Shared) -> Self {
        let now = shared.manager.clock.now();
        Self { shared, give_up_at: now.saturating_add(shared.ttl), attempt_started: now, conflicts: 0, failures: 0 }
    }

    /// Waits before another attempt, or returns the error that ends the update. `error` is that of
    /// the last attempt; `None`: another client wrote first.
    async fn pause(&mut self, error: Option<Error>) -> Result<()> {
        let clock = &self.shared.manager.clock;
        let now = clock.now();
        let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let pause = match error {
            Some(error) if !error.is_retryable() || now >= self.give_up_at => return Err(error),
            Some(error) => {
                tracing::debug!(%error, "trying again");
                let max_pause = rules::call_timeout(self.shared.ttl);
                let pause = backoff::pause(self.failures, Duration::from_millis(10), max_pause, random_bits);
                self.failures += 1;
                pause
            }
            None if now >= self.give_up_at => return Err(self.shared.locate(contention_error(self.shared.ttl))),
            None => {
                // Clients with slow attempts need longer pauses to avoid each other.
                let attempt_duration = now.duration_since(self.attempt_started);
                let (first, max_pause) = (
                    Duration::from_millis(1).max(attempt_duration),
                    Duration::from_millis(100).max(attempt_duration * 4),
                );
                let pause = backoff::pause(self.conflicts, first, max_pause, random_bits);
                self.conflicts += 1;
                self.failures = 0;
                pause
            }
        };
        clock.sleep_until(now.saturating_add(pause).min(self.give_up_at)).await;
        Ok(())
    }
}

/// The error of an update that lost against other writers for this time.
fn contention_error(elapsed: Duration) -> Error {
    let message =
        format!("was written first by other clients for {elapsed:?}; try again, or reduce the number of writers");
    Error::new(ErrorKind::Timeout, message).retryable()
}
