//! Records: one persistent node each.
//!
//! A record's version is the transaction that wrote it last (mzxid), which never repeats. A server
//! compares only a node's own count of writes, which starts again with a new node. So the node of a
//! removed record stays, empty, and keeps counting.
//!
//! The time is the leader's, of a write: of the record's own write, or, for a read, of touching the
//! folder. On one session, a read that follows a write sees at least that write. So the value that
//! is read is not older than the time that is read with it.
//!
//! | event | consequence |
//! |---|---|
//! | the answer to a write is lost | outcome unknown; a read shows it. Sent again over the same version, the write has no second effect |
//! | two clients write at once | the second finds another count, or a node where there was none: no write |
//! | the server that we ask lags behind | a different version is not trusted before the server has caught up; the leader refuses an old count |
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

/// Reads a record, and the leader's clock.
pub(super) async fn get(engine: &ZookeeperEngine, name: &LockName) -> Result<Record> {
    let session = engine.any_session().await?;
    let (path, folder) = (engine.record_path(name), engine.records_folder());
    let (touched, mut found) = join(session.client.set_data(&folder, b"", None), session.client.get_data(&path)).await;
    let now = match touched {
        Ok(stat) => time(stat.mtime),
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

/// Writes a record over a version.
pub(super) async fn compare_and_set(
    engine: &ZookeeperEngine,
    name: &LockName,
    expected_version: u64,
    value: String,
) -> Result<Option<Record>> {
    let session = engine.any_session().await?;
    let path = engine.record_path(name);
    let mut current = stat(engine, &session, &path).await?;
    if version(current.as_ref()) != expected_version {
        // The server may lag behind: `sync` makes it catch up first.
        let (synced, looked) = join(session.client.sync(&path), session.client.check_stat(&path)).await;
        current = synced.and(looked).map_err(|cause| engine.request_error(cause))?;
        if version(current.as_ref()) != expected_version {
            return Ok(None);
        }
    }
    if expected_version == 0 && value.is_empty() {
        return Ok(Some(Record::absent(leader_time(engine, &session).await?)));
    }
    let written = match current {
        Some(stat) => session.client.set_data(&path, wire::record_data(&value).as_bytes(), Some(stat.version)).await,
        None => create(engine, &session, &path, &wire::record_data(&value)).await?,
    };
    match written {
        Ok(stat) if value.is_empty() => Ok(Some(Record::absent(time(stat.mtime)))),
        Ok(stat) => Ok(Some(Record { version: stat.mzxid.cast_unsigned(), value, engine_time: time(stat.mtime) })),
        Err(Cause::BadVersion | Cause::NodeExists | Cause::NoNode) => Ok(None),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// The names of all records that begin with `prefix`, in order.
pub(super) async fn list(engine: &ZookeeperEngine, prefix: &str) -> Result<Vec<LockName>> {
    let session = engine.any_session().await?;
    let names = inspect::list_names(engine, &session, &engine.records_folder(), prefix).await?;
    let mut listed = Vec::new();
    for some in names.chunks(inspect::MAX_CONCURRENT) {
        let paths: Vec<String> = some.iter().map(|name| engine.record_path(name)).collect();
        let stats = try_join_all(paths.iter().map(|path| stat(engine, &session, path))).await?;
        let existing = some.iter().zip(stats).filter(|(_, stat)| version(stat.as_ref()) > 0);
        listed.extend(existing.map(|(name, _)| name.clone()));
    }
    Ok(listed)
}

async fn stat(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<Option<Stat>> {
    session.client.check_stat(path).await.map_err(|cause| engine.request_error(cause))
}

/// The version of a node's record; an empty one has been removed.
fn version(stat: Option<&Stat>) -> u64 {
    stat.filter(|stat| stat.data_length > 0).map_or(0, |stat| stat.mzxid.cast_unsigned())
}

fn time(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).cast_unsigned())
}

/// Creates a record's node, and the folder if that is missing.
async fn create(
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

/// The leader's time, without another write. Creates the folder if it is missing.
async fn leader_time(engine: &ZookeeperEngine, session: &Session) -> Result<Duration> {
    let folder = engine.records_folder();
    let touched = match session.client.set_data(&folder, b"", None).await {
        Err(Cause::NoNode) => {
            steps::create_persistent(engine, session, &folder).await?;
            session.client.set_data(&folder, b"", None).await
        }
        touched => touched,
    };
    touched.map(|stat| time(stat.mtime)).map_err(|cause| engine.request_error(cause))
}
