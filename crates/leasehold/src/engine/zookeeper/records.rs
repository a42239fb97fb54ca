//! The records of a ZooKeeper engine: one persistent node each.
//!
//! A record's version is the number of the transaction that wrote it last (mzxid), which never
//! repeats. But a conditional write can only name a node's own count of writes, which starts again
//! with a new node. So the node of a removed record stays, empty, and keeps counting.
//!
//! The time in a reply is the leader's time of a write: the record's own write or, for a read, a
//! write to the folder of the records. On one session, a read that follows a write sees at least
//! that write. So the value that is read is not older than the time that is read with it.
//!
//! | event | consequence |
//! |---|---|
//! | the answer to a write is lost | outcome unknown; a read shows it. Sent again over the same version, the write has no second effect |
//! | two clients write at once | the second finds another count, or a node where there was none: no write |
//! | the server that is asked lags behind | a different version is not trusted before the server has caught up; the leader refuses an old count |
//! | the leader changes | the time is the new one's; versions rise all the same |
//! | the node is deleted by hand | the record is gone, and recreated with a higher version. Only a client that has just read the count, and not yet written, may then write over the new one |

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, Stat};

use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{inspect, steps, wire};
use crate::engine::Record;
use crate::types::{Error, ErrorKind, LockName, Result};

/// Reads a record, and the time on the leader's clock.
pub(super) async fn get(engine: &ZookeeperEngine, name: &LockName) -> Result<Record> {
    let session = engine.any_session().await?;
    let (path, folder) = (engine.record_path(name), engine.records_folder());
    let (touched, mut found) = join(session.client.set_data(&folder, b"", None), session.client.get_data(&path)).await;
    let now = match touched {
        Ok(stat) => time_from_millis(stat.mtime),
        Err(Cause::NoNode) => {
            let now = leader_time(engine, &session).await?;
            // Another client may have created the folder, and the record, meanwhile.
            found = session.client.get_data(&path).await;
            now
        }
        Err(cause) => return Err(engine.request_error(cause)),
    };
    match found {
        Ok((value, stat)) if !value.is_empty() => {
            let value = wire::parse_record_data(&value)?.ok_or_else(|| {
                let message = format!("{path} is not a record of leasehold's; delete the node to start without it");
                Error::new(ErrorKind::Corrupt, message)
            })?;
            Ok(Record { version: stat.mzxid.cast_unsigned(), value, engine_time: now })
        }
        Ok(_) | Err(Cause::NoNode) => Ok(Record::absent(now)),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// Writes a record if it has the version `expected_version`, as
/// [`RecordStore::compare_and_set`](crate::engine::RecordStore::compare_and_set) requires.
pub(super) async fn compare_and_set(
    engine: &ZookeeperEngine,
    name: &LockName,
    expected_version: u64,
    value: String,
) -> Result<Option<Record>> {
    let session = engine.any_session().await?;
    let path = engine.record_path(name);
    let mut current = node_stat(engine, &session, &path).await?;
    if record_version(current.as_ref()) != expected_version {
        // The server may lag behind: `sync` makes it catch up first.
        let (synced, found) = join(session.client.sync(&path), session.client.check_stat(&path)).await;
        current = synced.and(found).map_err(|cause| engine.request_error(cause))?;
        if record_version(current.as_ref()) != expected_version {
            return Ok(None);
        }
    }
    if expected_version == 0 && value.is_empty() {
        return Ok(Some(Record::absent(leader_time(engine, &session).await?)));
    }
    let written = match current {
        Some(stat) => session.client.set_data(&path, wire::record_data(&value).as_bytes(), Some(stat.version)).await,
        None => create_record(engine, &session, &path, &wire::record_data(&value)).await?,
    };
    match written {
        Ok(stat) if value.is_empty() => Ok(Some(Record::absent(time_from_millis(stat.mtime)))),
        Ok(stat) => {
            Ok(Some(Record { version: stat.mzxid.cast_unsigned(), value, engine_time: time_from_millis(stat.mtime) }))
        }
        Err(Cause::BadVersion | Cause::NodeExists | Cause::NoNode) => Ok(None),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// The names of all records that begin with `prefix`, in order.
pub(super) async fn list(engine: &ZookeeperEngine, prefix: &str) -> Result<Vec<LockName>> {
    let session = engine.any_session().await?;
    let names = inspect::list_names(engine, &session, &engine.records_folder(), prefix).await?;
    let mut listed = Vec::new();
    for batch in names.chunks(inspect::MAX_CONCURRENT) {
        let paths: Vec<String> = batch.iter().map(|name| engine.record_path(name)).collect();
        let stats = try_join_all(paths.iter().map(|path| node_stat(engine, &session, path))).await?;
        let existing = batch.iter().zip(stats).filter(|(_, stat)| record_version(stat.as_ref()) > 0);
        listed.extend(existing.map(|(name, _)| name.clone()));
    }
    Ok(listed)
}

/// The metadata of a node; `None` if it does not exist.
async fn node_stat(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<Option<Stat>> {
    session.client.check_stat(path).await.map_err(|cause| engine.request_error(cause))
}

/// The version of the record in a node; 0 if there is no record, because the node is missing or
/// empty.
fn record_version(stat: Option<&Stat>) -> u64 {
    stat.filter(|stat| stat.data_length > 0).map_or(0, |stat| stat.mzxid.cast_unsigned())
}

/// A time since 1970, from ZooKeeper's milliseconds.
fn time_from_millis(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).cast_unsigned())
}

/// Creates a record's node, and the folder of the records if it is missing. The inner result is
/// that of creating the node.
async fn create_record(
    engine: &ZookeeperEngine,
    session: &Session,
    path: &str,
    data: &str,
) -> Result<std::result::Result<Stat, Cause>> {
    let options = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let created = session.client.create(path, data.as_bytes(), &options).await;
    let created = match created {
        Err(Cause::NoNode) => {
            steps::create_persistent(engine, session, &engine.records_folder()).await?;
            session.client.create(path, data.as_bytes(), &options).await
        }
        created => created,
    };
    Ok(created.map(|(stat, _)| stat))
}

/// The time on the leader's clock, from a write to the folder of the records, which is created if
/// missing.
async fn leader_time(engine: &ZookeeperEngine, session: &Session) -> Result<Duration> {
    let folder = engine.records_folder();
    let touched = match session.client.set_data(&folder, b"", None).await {
        Err(Cause::NoNode) => {
            steps::create_persistent(engine, session, &folder).await?;
            session.client.set_data(&folder, b"", None).await
        }
        touched => touched,
    };
    touched.map(|stat| time_from_millis(stat.mtime)).map_err(|cause| engine.request_error(cause))
}
