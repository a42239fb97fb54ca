//! Fencing at the resource: refuses the writes of a stale holder, however long it was paused.
//!
//! A lease can end while its holder is paused, and no lock can stop the holder from writing when it
//! resumes. The resource can: it stores the highest token that it has seen, and refuses lower ones.
//! Choose the fence by where the data is:
//!
//! | data in | use | atomic with the write |
//! |---|---|---|
//! | this process | [`Fence`] | if both happen under one lock of yours |
//! | PostgreSQL, MySQL, MariaDB | [`admit`], first in the transaction that writes | yes: committed together |
//! | Redis, Valkey | `redis::set_if_newer` | yes: one script |
//! | elsewhere, beside Redis | `redis::admit` | no: a pause between the two is possible |
//!
//! # In your own transaction
//! [`admit`] records the token in the table `leasehold_fence` and keeps its row locked until your
//! transaction ends. So the transactions of two holders of one resource run one after the other.
//! The second one waits for the first to end, and is then refused if its token is lower. A rollback
//! also removes the token, which is correct because the data was not written either.
//!
//! **Admit first**, then read the data that you write. Under `REPEATABLE READ`, a snapshot older
//! than the admission does not show the writes of the last holder. Every isolation level refuses
//! stale tokens; from `REPEATABLE READ` on, PostgreSQL answers a race with [`AdmitError::Retry`]
//! instead of resolving it by waiting.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn sell(client: &mut tokio_postgres::Client, guard: &leasehold::Guard) -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::fence;
//!
//! fence::create_table(client).await?;                                 // once
//!
//! let mut tx = client.transaction().await?;
//! fence::admit(&mut tx, "stock:42", guard.token()).await?;            // refuses a stale holder
//! tx.execute("UPDATE stock SET units = units - 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

mod error;
mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod sql;

pub use self::error::{AdmitError, StaleToken};
pub use self::memory::Fence;
pub use self::sql::{
    FenceTable, MYSQL_ADMIT, MYSQL_DDL, POSTGRES_ADMIT, POSTGRES_DDL, admit, admit_owner, create_table, ddl,
};
