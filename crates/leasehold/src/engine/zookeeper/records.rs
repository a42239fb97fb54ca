//! Records: a node each, that stays.
//!
//! A record's version is the transaction that wrote it last (mzxid), which never comes back. A server compares only a node's own count of
//! writes, which starts anew with a new node; so a removed record's node stays, empty, and goes on counting.
//!
//! The time is the leader's, of a write: a record's own when it is written; to read one, the folder is touched. On one session a read that
//! comes behind a write sees at least that, so what is read is not older than the time that is read with it.
//!
//! | what if | then |
//! |---|---|
//! | the answer to a write is lost | nobody knows; whoever reads again sees. Sent again over the same version, it does nothing the second time |
//! | two write at once | the second finds another count, or a node where there was none: nothing is written |
//! | the server that we ask is behind | an old version is not believed before it has caught up; an old count is refused by the leader |
//! | the leader changes | the time is the new one's; versions rise all the same |
//! | somebody deletes the node by hand | the record is gone, and made again with a higher version; only whoever has just read the count, and not yet written, may then write over the new one |

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, Stat};

use super::engine::ZookeeperEngine;
use super::session::Session;
use super::{inspect, steps};
use crate::engine::Record;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// Reads a record, and the leader's clock.
pub(super) async fn read(engine: &ZookeeperEngine, name: &LockName) -> Result<Record> {
    let session = engine.any_session().await?;
    let (path, folder) = (engine.record_path(name), engine.records());
    let (touched, mut found) = join(session.client.set_data(&folder, b"", None), session.client.get_data(&path)).await;
    let now = match touched {
        Ok(stat) => time(stat.mtime),
        Err(Cause::NoNode) => {
            let now = clock(engine, &session).await?;
            // Somebody may have made the folder, and the record, meanwhile.
            found = session.client.get_data(&path).await;
            now
        }
        Err(cause) => return Err(engine.failed(cause)),
    };
    match found {
        Ok((value, stat)) if !value.is_empty() => {
            let value = String::from_utf8(value).map_err(|_| {
                let message = format!("{path} is not a record: it is not UTF-8. Delete the node to start without it");
                Error::new(ErrorKind::Corrupt, message)
            })?;
            Ok(Record { version: stat.mzxid.cast_unsigned(), value, now })
        }
        Ok(_) | Err(Cause::NoNode) => Ok(Record::absent(now)),
        Err(cause) => Err(engine.failed(cause)),
    }
}

/// Writes a record over a version.
pub(super) async fn write(
    engine: &ZookeeperEngine,
    name: &LockName,
    over: u64,
    value: String,
) -> Result<Option<Record>> {
    let session = engine.any_session().await?;
    let path = engine.record_path(name);
    let mut there = stat(engine, &session, &path).await?;
    if version(there.as_ref()) != over {
        // The server may be behind: it catches up first.
        let (synced, looked) = join(session.client.sync(&path), session.client.check_stat(&path)).await;
        there = synced.and(looked).map_err(|cause| engine.failed(cause))?;
        if version(there.as_ref()) != over {
            return Ok(None);
        }
    }
    if over == 0 && value.is_empty() {
        return Ok(Some(Record::absent(clock(engine, &session).await?)));
    }
    let written = match there {
        Some(stat) => session.client.set_data(&path, value.as_bytes(), Some(stat.version)).await,
        None => create(engine, &session, &path, &value).await?,
    };
    match written {
        Ok(stat) if value.is_empty() => Ok(Some(Record::absent(time(stat.mtime)))),
        Ok(stat) => Ok(Some(Record { version: stat.mzxid.cast_unsigned(), value, now: time(stat.mtime) })),
        Err(Cause::BadVersion | Cause::NodeExists | Cause::NoNode) => Ok(None),
        Err(cause) => Err(engine.failed(cause)),
    }
}

/// The names of all records that begin with `prefix`, in order.
pub(super) async fn names(engine: &ZookeeperEngine, prefix: &str) -> Result<Vec<LockName>> {
    let session = engine.any_session().await?;
    let names = inspect::names(engine, &session, &engine.records(), prefix).await?;
    let mut there = Vec::new();
    for some in names.chunks(inspect::AT_ONCE) {
        let paths: Vec<String> = some.iter().map(|name| engine.record_path(name)).collect();
        let stats = try_join_all(paths.iter().map(|path| stat(engine, &session, path))).await?;
        let kept = some.iter().zip(stats).filter(|(_, stat)| version(stat.as_ref()) > 0);
        there.extend(kept.map(|(name, _)| name.clone()));
    }
    Ok(there)
}

async fn stat(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<Option<Stat>> {
    session.client.check_stat(path).await.map_err(|cause| engine.failed(cause))
}

/// The version of what a node has; an empty one has been removed.
fn version(stat: Option<&Stat>) -> u64 {
    stat.filter(|stat| stat.data_length > 0).map_or(0, |stat| stat.mzxid.cast_unsigned())
}

fn time(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).cast_unsigned())
}

/// Makes a record's node, and the folder if that is missing.
async fn create(
    engine: &ZookeeperEngine,
    session: &Session,
    path: &str,
    value: &str,
) -> Result<std::result::Result<Stat, Cause>> {
    let options = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let made = session.client.create(path, value.as_bytes(), &options).await;
    let made = match made {
        Err(Cause::NoNode) => {
            steps::make_persistent(engine, session, &engine.records()).await?;
            session.client.create(path, value.as_bytes(), &options).await
        }
        made => made,
    };
    Ok(made.map(|(stat, _)| stat))
}

/// The leader's time, where nothing else is written. The folder is made if it is missing.
async fn clock(engine: &ZookeeperEngine, session: &Session) -> Result<Duration> {
    let folder = engine.records();
    let touched = match session.client.set_data(&folder, b"", None).await {
        Err(Cause::NoNode) => {
            steps::make_persistent(engine, session, &folder).await?;
            session.client.set_data(&folder, b"", None).await
        }
        touched => touched,
    };
    touched.map(|stat| time(stat.mtime)).map_err(|cause| engine.failed(cause))
}
