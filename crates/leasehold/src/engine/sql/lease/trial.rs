//! For `leasehold doctor`: runs a lock's statements on its table once, and rolls them back.

use std::time::Duration;

use super::state::{self, Content, moment};
use super::wire::{Statements, Swap};
use crate::engine::sql::config::Config;
use crate::engine::sql::ddl::Tables;
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::{Link, lock_wait};

/// The TTL of that lease.
const TTL: Duration = Duration::from_secs(1);

/// Acquires an unused lock, reads and writes its row, and rolls everything back.
pub(in super::super) async fn take_back(link: &mut Link, config: &Config) -> Result<(), Failure> {
    link.script("BEGIN").await?;
    let tried = take(link, config).await;
    let undone = link.script("ROLLBACK").await;
    tried.and(undone)
}

async fn take(link: &mut Link, config: &Config) -> Result<(), Failure> {
    let strange = |what: &str| Failure::Strange(what.to_owned());
    let sql = Statements::new(config.dialect, &Tables::of(config));
    let name = format!("leasehold-doctor-{:032x}", crate::random::bits());
    let nobody = state::write(&Content::default(), moment(0));
    let ttl = i64::try_from(TTL.as_micros()).unwrap_or(1);
    let wait = lock_wait(TTL);
    let (text, values) = sql.take(&name, ttl, &nobody, 0, &wait);
    let reply = link.run(text, &values).await?;
    let Some(version) = sql.made(&reply).map_err(strange)? else { return Err(strange("a new lock is held")) };
    let (text, values) = sql.read(&name);
    if link.run(text, &values).await?.row().is_none() {
        return Err(strange("what was written is not there"));
    }
    let token = u64::try_from(version).unwrap_or(0);
    let swap =
        Swap { name: &name, version, token, busy: 0, fresh: None, state: nobody, messages: &[], lock_wait: &wait };
    let (text, values) = sql.swap(&swap);
    let reply = link.run(text, &values).await?;
    sql.made(&reply).map_err(strange)?.map(drop).ok_or_else(|| strange("what was written cannot be written over"))
}

/// Why a row's state cannot be parsed, if so.
pub(in super::super) fn damage(text: &str) -> Option<&'static str> {
    state::read(text, moment(0)).err()
}
