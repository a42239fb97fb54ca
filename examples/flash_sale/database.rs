//! The stock in a database: one row. Buying is the naive code: read, subtract, write.

use std::time::Duration;

use leasehold::Token;
use leasehold::fence::FenceTable;
use leasehold::versioned::{Change, VersionedTable};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use tokio_postgres::{Client, NoTls};

use super::stock::{BuyResult, Failure, Stock, StockConnection, StockFuture};

const DROP: &str = "DROP TABLE IF EXISTS leasehold_flash_sale, leasehold_flash_sale_fence";
const CREATE: &str =
    "CREATE TABLE leasehold_flash_sale (id BIGINT PRIMARY KEY, units BIGINT NOT NULL, version BIGINT NOT NULL)";
const READ: &str = "SELECT units FROM leasehold_flash_sale WHERE id = 1";
const FENCE: &str = "leasehold_flash_sale_fence";

/// The database of an engine's URL; the options after `?` are for the engine.
pub(crate) struct DatabaseStock {
    url: String,
}

impl DatabaseStock {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.split('?').next().unwrap_or(url).to_owned() }
    }
}

impl Stock for DatabaseStock {
    fn open<'a>(&'a self) -> StockFuture<'a, Box<dyn StockConnection>> {
        Box::pin(async {
            let row = if self.url.starts_with("mysql:") {
                DatabaseConnection::Mysql(Conn::from_url(format!("{}?prefer_socket=false", self.url)).await?)
            } else {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
                tokio::spawn(connection);
                DatabaseConnection::Postgres(client)
            };
            Ok(Box::new(row) as Box<dyn StockConnection>)
        })
    }
}

/// One connection to the database.
enum DatabaseConnection {
    Mysql(Conn),
    Postgres(Client),
}

impl DatabaseConnection {
    /// Runs statements without values.
    async fn run(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            Self::Mysql(conn) => conn.query_drop(sql).await?,
            Self::Postgres(client) => client.batch_execute(sql).await?,
        }
        Ok(())
    }

    async fn create(&mut self, items: u32) -> Result<(), Failure> {
        self.run(DROP).await?;
        self.run(CREATE).await?;
        match self {
            Self::Mysql(conn) => FenceTable::with_name(FENCE)?.create(conn).await?,
            Self::Postgres(client) => FenceTable::with_name(FENCE)?.create(client).await?,
        }
        self.run(&format!("INSERT INTO leasehold_flash_sale VALUES (1, {items}, 0)")).await
    }

    async fn units(&mut self) -> Result<i64, Failure> {
        match self {
            Self::Mysql(conn) => Ok(conn.query_first(READ).await?.ok_or("no stock")?),
            Self::Postgres(client) => Ok(client.query_one(READ, &[]).await?.try_get(0)?),
        }
    }

    /// Buys a unit in an ordinary transaction, which first checks the token if there is one.
    async fn buy_in_transaction(&mut self, token: Option<Token>) -> Result<BuyResult, Failure> {
        match self {
            Self::Mysql(conn) => {
                let mut tx = conn.start_transaction(TxOpts::default()).await?;
                if let Some(token) = token {
                    FenceTable::with_name(FENCE)?.admit(&mut tx, "flash sale", token).await?;
                }
                let units: i64 = tx.query_first(READ).await?.ok_or("no stock")?;
                if units > 0 {
                    tx.exec_drop("UPDATE leasehold_flash_sale SET units = ? WHERE id = 1", (units - 1,)).await?;
                }
                tx.commit().await?;
                Ok((units > 0, 0))
            }
            Self::Postgres(client) => {
                let mut tx = client.transaction().await?;
                if let Some(token) = token {
                    FenceTable::with_name(FENCE)?.admit(&mut tx, "flash sale", token).await?;
                }
                let units: i64 = tx.query_one(READ, &[]).await?.try_get(0)?;
                if units > 0 {
                    tx.execute("UPDATE leasehold_flash_sale SET units = $1 WHERE id = 1", &[&(units - 1)]).await?;
                }
                tx.commit().await?;
                Ok((units > 0, 0))
            }
        }
    }

    async fn buy_by_version_column(&mut self) -> Result<BuyResult, Failure> {
        let stock =
            VersionedTable::new("leasehold_flash_sale").max_attempts(10_000).time_limit(Duration::from_secs(60));
        let sold = match self {
            Self::Mysql(conn) => {
                let decide = |row: &mysql_async::Row| {
                    let units: i64 = row.get("units").ok_or("no units")?;
                    Ok(if units > 0 { Change::set("units", units - 1) } else { Change::none() }.returning(units > 0))
                };
                stock.update(conn, 1i64, decide).await?
            }
            Self::Postgres(client) => {
                let decide = |row: &tokio_postgres::Row| {
                    let units: i64 = row.try_get("units")?;
                    Ok(if units > 0 { Change::set("units", units - 1) } else { Change::none() }.returning(units > 0))
                };
                stock.update(client, 1i64, decide).await?
            }
        };
        Ok((sold.value, sold.retries))
    }
}

impl StockConnection for DatabaseConnection {
    fn fill(&mut self, items: u32) -> StockFuture<'_, ()> {
        Box::pin(self.create(items))
    }

    fn buy(&mut self, token: Option<Token>) -> StockFuture<'_, BuyResult> {
        Box::pin(self.buy_in_transaction(token))
    }

    fn buy_by_version(&mut self) -> StockFuture<'_, BuyResult> {
        Box::pin(self.buy_by_version_column())
    }

    fn units_left(&mut self) -> StockFuture<'_, i64> {
        Box::pin(self.units())
    }

    fn clear(&mut self) -> StockFuture<'_, ()> {
        Box::pin(self.run(DROP))
    }
}
