//! MySQL and MariaDB, through mysql_async.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Params, Row, Value};

use super::{Connection, Dialect, IntoValue, Session, StatementError, Transaction, sealed};
use crate::logic::fence::{FenceState, admits};
use crate::logic::sql_error::{self, SqlErrorClass};
use crate::types::{Owner, Token};

impl<T: Into<Value>> IntoValue<Value> for T {
    fn into_value(self) -> Value {
        self.into()
    }
}

/// The error with its class. After an error that is not the server's (a lost connection, for
/// example), the effect of the statement is unknown.
fn statement_error(error: Error) -> StatementError {
    let class = match &error {
        Error::Server(server_error) => sql_error::classify_mysql(server_error.code),
        _ => SqlErrorClass::Unknown,
    };
    StatementError::new(class, error)
}

/// The error for a row with contents that leasehold cannot use; the statement wrote nothing.
fn malformed_row(detail: &str) -> StatementError {
    StatementError::new(SqlErrorClass::Refused, detail.to_owned())
}

/// The rows of a SELECT with this key, each with its version, which is the last column.
async fn read(conn: &mut impl Queryable, sql: &str, key: &Value) -> Result<sealed::Rows<Row>, StatementError> {
    let rows: Vec<Row> = conn.exec(sql, Params::Positional(vec![key.clone()])).await.map_err(statement_error)?;
    let versions = rows.into_iter().map(|row| {
        let version = row.get_opt(row.len().saturating_sub(1));
        let version = version.and_then(Result::ok).ok_or_else(|| malformed_row("the version is not a number"))?;
        Ok((row, version))
    });
    versions.collect()
}

/// Runs an UPDATE of the row with this key and version, and returns the number of rows written.
async fn write(
    conn: &mut impl Queryable,
    sql: &str,
    values: &[Value],
    key: &Value,
    version: i64,
) -> Result<u64, StatementError> {
    let prepared = conn.prep(sql).await.map_err(|error| statement_error(error).before_execution())?;
    let parameters = values.iter().chain([key]).cloned().chain([Value::from(version)]).collect();
    let result = conn.exec_iter(&prepared, Params::Positional(parameters)).await.map_err(statement_error)?;
    let count = result.affected_rows();
    result.drop_result().await.map_err(statement_error)?;
    Ok(count)
}

implement_session!(Conn, Dialect::Mysql, Row, Value, query_drop);
implement_session!(mysql_async::Transaction<'_>, Dialect::Mysql, Row, Value, query_drop);

impl Connection for Conn {}

impl Transaction for mysql_async::Transaction<'_> {
    async fn admit(
        &mut self,
        sql: &[String],
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> Result<Option<FenceState>, StatementError> {
        let [record_token, read_fence, ..] = sql else { return Err(malformed_row("two statements are needed")) };
        let resource = Value::from(resource.as_bytes());
        let owner_bytes = Value::from(owner.map(|owner| owner.bits().to_be_bytes().to_vec()));
        let values = vec![resource.clone(), Value::from(token.0), owner_bytes];
        self.exec_drop(record_token.as_str(), Params::Positional(values)).await.map_err(statement_error)?;
        // This statement locks the row, so it reads the current row and not the transaction's
        // snapshot. The first statement has locked the row already, so it does not wait.
        let row: Option<Row> =
            self.exec_first(read_fence.as_str(), Params::Positional(vec![resource])).await.map_err(statement_error)?;
        let seen = row.and_then(|row| {
            let token: u64 = row.get_opt(0)?.ok()?;
            let owner: Option<Vec<u8>> = row.get_opt(1)?.ok()?;
            let owner = owner.map(|bits| bits.try_into().map(u128::from_be_bytes)).transpose().ok()?;
            Some(FenceState { token: Token(token), owner: owner.map(Owner::from_bits) })
        });
        let seen = seen.ok_or_else(|| malformed_row("the fence's row is missing or was not written by leasehold"))?;
        Ok((!admits(seen, token, owner)).then_some(seen))
    }
}
