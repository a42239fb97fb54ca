//! The stock: one row in the database. Buying is what everybody writes first: read, subtract, write.

use std::time::Duration;

use leasehold::versioned::{Change, Versioned};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use tokio_postgres::{Client, NoTls};

use crate::sale::Failure;

const DROP: &str = "DROP TABLE IF EXISTS leasehold_flash_sale";
const CREATE: &str =
    "CREATE TABLE leasehold_flash_sale (id BIGINT PRIMARY KEY, units BIGINT NOT NULL, version BIGINT NOT NULL)";
const READ: &str = "SELECT units FROM leasehold_flash_sale WHERE id = 1";

/// One connection to it.
pub(crate) enum Till {
    Mysql(Conn),
    Postgres(Client),
}

impl Till {
    /// Connects to the database of an engine's URL; the options after `?` are the engine's.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let url = url.split('?').next().unwrap_or(url);
        if url.starts_with("mysql:") {
            return Ok(Self::Mysql(Conn::from_url(format!("{url}?prefer_socket=false")).await?));
        }
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self::Postgres(client))
    }

    /// Runs statements without values.
    async fn run(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            Self::Mysql(conn) => conn.query_drop(sql).await?,
            Self::Postgres(client) => client.batch_execute(sql).await?,
        }
        Ok(())
    }

    /// Puts so many units there.
    pub(crate) async fn fill(&mut self, items: u32) -> Result<(), Failure> {
        self.run(DROP).await?;
        self.run(CREATE).await?;
        self.run(&format!("INSERT INTO leasehold_flash_sale VALUES (1, {items}, 0)")).await
    }

    /// How many are left.
    pub(crate) async fn left(&mut self) -> Result<i64, Failure> {
        match self {
            Self::Mysql(conn) => Ok(conn.query_first(READ).await?.ok_or("no stock")?),
            Self::Postgres(client) => Ok(client.query_one(READ, &[]).await?.try_get(0)?),
        }
    }

    /// Takes everything away.
    pub(crate) async fn clear(&mut self) -> Result<(), Failure> {
        self.run(DROP).await
    }

    /// Reads, subtracts and writes in an ordinary transaction. Right only if nobody else does so at the same time.
    pub(crate) async fn buy(&mut self) -> Result<(bool, u32), Failure> {
        match self {
            Self::Mysql(conn) => {
                let mut tx = conn.start_transaction(TxOpts::default()).await?;
                let units: i64 = tx.query_first(READ).await?.ok_or("no stock")?;
                if units > 0 {
                    tx.exec_drop("UPDATE leasehold_flash_sale SET units = ? WHERE id = 1", (units - 1,)).await?;
                }
                tx.commit().await?;
                Ok((units > 0, 0))
            }
            Self::Postgres(client) => {
                let tx = client.transaction().await?;
                let units: i64 = tx.query_one(READ, &[]).await?.try_get(0)?;
                if units > 0 {
                    tx.execute("UPDATE leasehold_flash_sale SET units = $1 WHERE id = 1", &[&(units - 1)]).await?;
                }
                tx.commit().await?;
                Ok((units > 0, 0))
            }
        }
    }

    /// The same by version: whoever comes second reads again.
    pub(crate) async fn buy_by_version(&mut self) -> Result<(bool, u32), Failure> {
        let stock = Versioned::table("leasehold_flash_sale").tries(10_000).within(Duration::from_secs(60));
        let sold = match self {
            Self::Mysql(conn) => {
                let decide = |row: &mysql_async::Row| {
                    let units: i64 = row.get("units").ok_or("no units")?;
                    Ok(if units > 0 { Change::set("units", units - 1) } else { Change::none() }.giving(units > 0))
                };
                stock.update(conn, 1i64, decide).await?
            }
            Self::Postgres(client) => {
                let decide = |row: &tokio_postgres::Row| {
                    let units: i64 = row.try_get("units")?;
                    Ok(if units > 0 { Change::set("units", units - 1) } else { Change::none() }.giving(units > 0))
                };
                stock.update(client, 1i64, decide).await?
            }
        };
        Ok((sold.value, sold.retries))
    }
}
