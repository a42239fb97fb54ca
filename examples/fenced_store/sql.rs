//! A table in MySQL, MariaDB or PostgreSQL, fenced in the transaction that writes.

use leasehold::Token;
use leasehold::fence::{self, AdmitError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use tokio_postgres::{Client, NoTls};

use crate::common::Failure;
use crate::store::{ReadValue, Store, StoreFuture, WriteResult};

enum Connection {
    Mysql(Conn),
    Postgres(Client),
}

/// A table, and a table for its fence; both are dropped at the end.
pub(crate) struct Database {
    connection: Connection,
    table: &'static str,
    fence: fence::FenceTable,
}

fn write_result(admitted: Result<(), AdmitError>) -> Result<WriteResult, Failure> {
    match admitted {
        Ok(()) => Ok(Ok(())),
        Err(error) => error.stale_token().map(Err).ok_or_else(|| error.into()),
    }
}

impl Database {
    /// Connects to the database of an engine's URL; the options after `?` are for the engine.
    pub(crate) async fn open(url: &str, table: &'static str) -> Result<Self, Failure> {
        let url = url.split('?').next().unwrap_or(url);
        let connection = if url.starts_with("mysql:") {
            Connection::Mysql(Conn::from_url(format!("{url}?prefer_socket=false")).await?)
        } else {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            Connection::Postgres(client)
        };
        let mut database = Self { connection, table, fence: fence::FenceTable::with_name(&format!("{table}_fence"))? };
        // An earlier run may have been killed.
        database.drop_tables().await?;
        database.run(format!("CREATE TABLE {table} (id INT PRIMARY KEY, units BIGINT NOT NULL)")).await?;
        database.run(format!("INSERT INTO {table} VALUES (1, 0)")).await?;
        match &mut database.connection {
            Connection::Mysql(conn) => database.fence.create(conn).await?,
            Connection::Postgres(client) => database.fence.create(client).await?,
        }
        Ok(database)
    }

    async fn run(&mut self, sql: String) -> Result<(), Failure> {
        match &mut self.connection {
            Connection::Mysql(conn) => conn.query_drop(sql).await?,
            Connection::Postgres(client) => client.batch_execute(&sql).await?,
        }
        Ok(())
    }

    async fn drop_tables(&mut self) -> Result<(), Failure> {
        self.run(format!("DROP TABLE IF EXISTS {0}, {0}_fence", self.table)).await
    }

    /// Admits the token and writes, in one transaction.
    async fn write_row(&mut self, units: i64, token: Option<Token>) -> Result<WriteResult, Failure> {
        let update = format!("UPDATE {} SET units = {units} WHERE id = 1", self.table);
        let written = match &mut self.connection {
            Connection::Mysql(conn) => {
                let mut tx = conn.start_transaction(TxOpts::default()).await?;
                let admitted = match token {
                    Some(token) => write_result(self.fence.admit(&mut tx, "stock", token).await)?,
                    None => Ok(()),
                };
                if admitted.is_ok() {
                    tx.query_drop(update).await?;
                    tx.commit().await?;
                } else {
                    tx.rollback().await?;
                }
                admitted
            }
            Connection::Postgres(client) => {
                let mut tx = client.transaction().await?;
                let admitted = match token {
                    Some(token) => write_result(self.fence.admit(&mut tx, "stock", token).await)?,
                    None => Ok(()),
                };
                if admitted.is_ok() {
                    tx.batch_execute(&update).await?;
                    tx.commit().await?;
                } else {
                    tx.rollback().await?;
                }
                admitted
            }
        };
        Ok(written)
    }
}

impl Store for Database {
    fn name(&self) -> &'static str {
        "the table"
    }

    fn write(&mut self, units: i64, _: ReadValue, token: Option<Token>) -> StoreFuture<'_, WriteResult> {
        Box::pin(self.write_row(units, token))
    }

    fn read(&mut self) -> StoreFuture<'_, ReadValue> {
        let read = format!("SELECT units FROM {} WHERE id = 1", self.table);
        Box::pin(async move {
            let units = match &mut self.connection {
                Connection::Mysql(conn) => conn.query_first(read).await?.ok_or("no stock")?,
                Connection::Postgres(client) => client.query_one(&read, &[]).await?.try_get(0)?,
            };
            Ok(ReadValue { units, ..ReadValue::default() })
        })
    }

    fn clear(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(self.drop_tables())
    }
}
