//! For `leasehold doctor`: runs these techniques' statements on our tables once, and rolls them
//! back.

use super::wire::{Server, Wire};
use crate::claim::Mode;
use crate::engine::sql::config::{Config, Technique};
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::Link;

/// Creates and locks the row of an unused lock, increments its counter, and rolls everything back.
pub(in super::super) async fn take_back(link: &mut Link, config: &Config) -> Result<(), Failure> {
    link.script("BEGIN").await?;
    let tried = take(link, config).await;
    let undone = link.script("ROLLBACK").await;
    tried.and(undone)
}

async fn take(link: &mut Link, config: &Config) -> Result<(), Failure> {
    let strange = |what: &str| Failure::Strange(what.to_owned());
    let wire = Wire::new(config, Server::default());
    let name = format!("leasehold-doctor-{:032x}", crate::random::bits());
    if config.technique == Technique::ForUpdate {
        let (_, (sql, values)) = wire.make_row(&name);
        link.run(&sql, &values).await?;
        let (sql, values) = wire.take(&name, Mode::Exclusive);
        if !wire.is_taken(&link.run(&sql, &values).await?, &name) {
            return Err(strange("a new row cannot be locked"));
        }
    }
    for _ in 0..2 {
        // The second time, the row exists.
        let (sql, values) = wire.token(&name);
        wire.token_of(&link.run(&sql, &values).await?)?;
    }
    Ok(())
}
