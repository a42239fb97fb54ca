//! PostgreSQL, through tokio-postgres.

use std::error::Error as _;

use tokio_postgres::types::{ToSql, Type, WrongType};
use tokio_postgres::{Client, Error, GenericClient, Row};

use super::{Connection, Dialect, IntoValue, Session, StatementError, Transaction, sealed};
use crate::logic::fence::FenceState;
use crate::logic::sql_error::{self, SqlErrorClass};
use crate::types::{Owner, Token};

/// A column's value for PostgreSQL: a boxed value of any type with `ToSql`.
pub type PostgresValue = Box<dyn ToSql + Send + Sync>;

impl<T: ToSql + Send + Sync + 'static> IntoValue<PostgresValue> for T {
    fn into_value(self) -> PostgresValue {
        Box::new(self)
    }
}

/// The error with its class. After an error that is not the server's (a lost connection, for
/// example), the effect of the statement is unknown, unless a value had the wrong type.
fn statement_error(error: Error) -> StatementError {
    let class = match error.code() {
        Some(state) => sql_error::classify_postgres(state.code()),
        None if error.source().is_some_and(|cause| cause.is::<WrongType>()) => SqlErrorClass::Refused,
        None => SqlErrorClass::Unknown,
    };
    StatementError::new(class, error)
}

/// The rows of a SELECT with this key, each with its version, which is the last column.
async fn read(
    client: &(impl GenericClient + Sync),
    sql: &str,
    key: &PostgresValue,
) -> Result<sealed::Rows<Row>, StatementError> {
    let rows = client.query(sql, &[key.as_ref() as &(dyn ToSql + Sync)]).await.map_err(statement_error)?;
    let versions = rows.into_iter().map(|row| {
        let version = row.try_get(row.len().saturating_sub(1))?;
        Ok((row, version))
    });
    versions.collect::<Result<_, _>>().map_err(statement_error)
}

/// Runs an UPDATE of the row with this key and version, and returns the number of rows written.
async fn write(
    client: &(impl GenericClient + Sync),
    sql: &str,
    values: &[PostgresValue],
    key: &PostgresValue,
    version: i64,
) -> Result<u64, StatementError> {
    let prepared = client.prepare(sql).await.map_err(|error| statement_error(error).before_execution())?;
    let mut parameters: Vec<&(dyn ToSql + Sync)> =
        values.iter().map(|value| value.as_ref() as &(dyn ToSql + Sync)).collect();
    parameters.push(key.as_ref());
    parameters.push(&version);
    client.execute(&prepared, &parameters).await.map_err(statement_error)
}

implement_session!(Client, Dialect::Postgres, Row, PostgresValue, batch_execute);
implement_session!(tokio_postgres::Transaction<'_>, Dialect::Postgres, Row, PostgresValue, batch_execute);

impl Connection for Client {}

impl Transaction for tokio_postgres::Transaction<'_> {
    async fn admit(
        &mut self,
        sql: &[String],
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> Result<Option<FenceState>, StatementError> {
        let [record_token, read_fence, ..] = sql else {
            return Err(StatementError::new(SqlErrorClass::Refused, "two statements are needed"));
        };
        let number = i64::try_from(token.0).map_err(|_| {
            StatementError::new(SqlErrorClass::Refused, format!("token {token} does not fit into PostgreSQL's BIGINT"))
        })?;
        let owner_bytes = owner.map(|owner| owner.bits().to_be_bytes().to_vec());
        let values: [(&(dyn ToSql + Sync), Type); 3] =
            [(&resource, Type::TEXT), (&number, Type::INT8), (&owner_bytes, Type::BYTEA)];
        if self.execute_typed(record_token, &values).await.map_err(statement_error)? > 0 {
            return Ok(None);
        }
        // The token is stale. The first statement has locked the row that shows it: no other
        // transaction can change or remove the row before this read.
        let row = self.query_typed_one(read_fence, &values[..1]).await.map_err(statement_error)?;
        let seen: i64 = row.try_get(0).map_err(statement_error)?;
        Ok(Some(FenceState { token: Token(u64::try_from(seen).unwrap_or(0)), owner: None }))
    }
}
