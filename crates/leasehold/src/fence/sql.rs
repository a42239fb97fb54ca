//! The fence in a table of PostgreSQL, MySQL or MariaDB, checked inside the user's own transaction.

use std::borrow::Cow;
use std::sync::Arc;

use super::{AdmitError, StaleToken};
use crate::database::{Connection, Dialect, StatementError, Transaction};
use crate::logic::sql_error::SqlErrorClass;
use crate::logic::sql_identifier;
use crate::metrics::{Metrics, OptionalMetrics};
use crate::types::{Error, ErrorKind, LockName, Owner, Token};

/// The name of the fence's table, unless [`FenceTable::with_name`] sets another one.
const DEFAULT_TABLE: &str = "leasehold_fence";

/// The statement that creates the fence's table in PostgreSQL.
pub const POSTGRES_DDL: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (\
    resource TEXT COLLATE \"C\" NOT NULL PRIMARY KEY, token BIGINT NOT NULL, owner BYTEA)";

/// The statement that creates the fence's table in MySQL or MariaDB. Resource names are bytes,
/// because every text collation of MariaDB, the binary ones included, treats `a` and `a` with a
/// trailing space as equal.
pub const MYSQL_DDL: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (\
    resource VARBINARY(512) NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, owner VARBINARY(16)) ENGINE=InnoDB";

/// The statements of [`admit`] for PostgreSQL, for other client libraries. Run them inside the
/// transaction that writes the data.
///
/// Run the first statement with the resource, the token and NULL. If it changes no row, the token
/// is stale: roll back. The second statement then returns the highest token seen, for the error
/// message.
pub const POSTGRES_ADMIT: [&str; 2] = [
    "INSERT INTO leasehold_fence AS f (resource, token, owner) VALUES ($1, $2, $3) \
     ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner \
     WHERE f.token < excluded.token OR (f.token = excluded.token AND f.owner IS NOT DISTINCT FROM excluded.owner)",
    "SELECT token FROM leasehold_fence WHERE resource = $1",
];

/// The statements of [`admit`] for MySQL or MariaDB, for other client libraries. Run them inside
/// the transaction that writes the data.
///
/// Run the first statement with the resource, the token and NULL, then the second one with the
/// resource. If it returns another token than yours, or an owner that is not NULL, yours is stale:
/// roll back.
pub const MYSQL_ADMIT: [&str; 2] = [
    "INSERT INTO leasehold_fence (resource, token, owner) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE \
     owner = IF(token < VALUES(token), VALUES(owner), owner), token = GREATEST(token, VALUES(token))",
    "SELECT token, owner FROM leasehold_fence WHERE resource = ? FOR UPDATE",
];

/// The table in which a database stores the highest token of each resource; `leasehold_fence` by
/// default.
///
/// ```
/// use leasehold::database::Dialect;
/// use leasehold::fence::FenceTable;
///
/// let table = FenceTable::with_name("shop.fence")?;
/// assert!(table.ddl(Dialect::Postgres).starts_with(r#"CREATE TABLE IF NOT EXISTS "shop"."fence" ("#));
/// assert!(FenceTable::with_name("").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FenceTable {
    name: Option<Arc<str>>,
    metrics: OptionalMetrics,
}

impl FenceTable {
    /// The table with this name, with or without a schema. The name is quoted, so upper and lower
    /// case are kept.
    ///
    /// # Errors
    /// `InvalidOption` if the name is not valid for a table.
    pub fn with_name(name: &str) -> Result<Self, Error> {
        sql_identifier::check_identifier(name).map_err(|message| Error::new(ErrorKind::InvalidOption, message))?;
        Ok(Self { name: Some(name.into()), metrics: OptionalMetrics::default() })
    }

    /// The same table, which counts each refusal in the metric `leasehold_fencing_rejected_total`.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = OptionalMetrics::new(metrics);
        self
    }

    /// The statement that creates this table unless it exists.
    pub fn ddl(&self, dialect: Dialect) -> String {
        let text = match dialect {
            Dialect::Postgres => POSTGRES_DDL,
            Dialect::Mysql => MYSQL_DDL,
        };
        self.substitute_name(text, dialect)
    }

    /// The statements of [`admit`](Self::admit) with this table's name: see [`POSTGRES_ADMIT`] and
    /// [`MYSQL_ADMIT`].
    pub fn statements(&self, dialect: Dialect) -> [String; 2] {
        let texts = match dialect {
            Dialect::Postgres => POSTGRES_ADMIT,
            Dialect::Mysql => MYSQL_ADMIT,
        };
        texts.map(|text| self.substitute_name(text, dialect))
    }

    /// A statement for the default table, with the name of this table instead.
    fn substitute_name(&self, text: &str, dialect: Dialect) -> String {
        let name = self.name.as_ref().map_or(Cow::Borrowed(DEFAULT_TABLE), |name| Cow::Owned(dialect.quote(name)));
        text.replacen(DEFAULT_TABLE, &name, 1)
    }

    /// Creates this table unless it exists.
    ///
    /// # Errors
    /// [`AdmitError::Failed`] or [`AdmitError::Retry`], with the database's error.
    pub async fn create<C: Connection>(&self, conn: &mut C) -> Result<(), AdmitError> {
        let ddl = self.ddl(C::DIALECT);
        conn.run(&ddl).await.map_err(|error| self.admit_error(error, C::DIALECT))
    }

    /// Admits the transaction's write to `resource`, or refuses a stale token: as
    /// [`fence::admit`](fn@admit), with this table.
    ///
    /// # Errors
    /// See [`AdmitError`]. Roll the transaction back after any of them.
    pub async fn admit<T: Transaction>(&self, tx: &mut T, resource: &str, token: Token) -> Result<(), AdmitError> {
        self.check(tx, resource, token, None).await
    }

    /// As [`admit`](Self::admit), and also refuses a second owner with the same token: as
    /// [`fence::admit_owner`](fn@admit_owner), with this table.
    ///
    /// # Errors
    /// See [`AdmitError`]. Roll the transaction back after any of them.
    pub async fn admit_owner<T: Transaction>(
        &self,
        tx: &mut T,
        resource: &str,
        token: Token,
        owner: &Owner,
    ) -> Result<(), AdmitError> {
        self.check(tx, resource, token, Some(*owner)).await
    }

    /// Admits a transaction's write, with or without its owner, or refuses it.
    async fn check<T: Transaction>(
        &self,
        tx: &mut T,
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> Result<(), AdmitError> {
        let resource = LockName::new(resource).map_err(AdmitError::Invalid)?;
        let sql = self.statements(T::DIALECT);
        let seen = tx.admit(&sql, resource.as_str(), token, owner).await;
        match seen.map_err(|error| self.admit_error(error, T::DIALECT))? {
            None => Ok(()),
            Some(seen) => {
                self.metrics.increment("leasehold_fencing_rejected_total", None);
                Err(StaleToken { token, highest: seen.token }.into())
            }
        }
    }

    /// The error of [`admit`](Self::admit) for a statement that failed.
    fn admit_error(&self, error: StatementError, dialect: Dialect) -> AdmitError {
        match error.class {
            SqlErrorClass::Retry => AdmitError::Retry(error.cause),
            SqlErrorClass::NoTable => AdmitError::NoTable { ddl: self.ddl(dialect), cause: error.cause },
            SqlErrorClass::Refused | SqlErrorClass::Unknown => AdmitError::Failed(error.cause),
        }
    }
}

/// The statement that creates the table `leasehold_fence`.
pub fn ddl(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => POSTGRES_DDL,
        Dialect::Mysql => MYSQL_DDL,
    }
}

/// Creates the table `leasehold_fence` unless it exists.
///
/// # Errors
/// [`AdmitError::Failed`] or [`AdmitError::Retry`], with the database's error.
pub async fn create_table<C: Connection>(conn: &mut C) -> Result<(), AdmitError> {
    FenceTable::default().create(conn).await
}

/// Admits the transaction's write to `resource`, or refuses a stale token. See [how to use
/// it](crate::fence#in-your-own-transaction). The resource's name follows the rules of lock names,
/// and is usually the lock's name.
///
/// Until the transaction ends, other calls for the same resource wait.
///
/// # Errors
/// See [`AdmitError`]. Roll the transaction back after any of them.
pub async fn admit<T: Transaction>(tx: &mut T, resource: &str, token: Token) -> Result<(), AdmitError> {
    FenceTable::default().admit(tx, resource, token).await
}

/// As [`admit`], and also refuses a second owner with the same token: an engine that lost its
/// counter may grant a token twice.
///
/// # Errors
/// See [`AdmitError`]: the same token from another owner is stale, too.
pub async fn admit_owner<T: Transaction>(
    tx: &mut T,
    resource: &str,
    token: Token,
    owner: &Owner,
) -> Result<(), AdmitError> {
    FenceTable::default().admit_owner(tx, resource, token, owner).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_table_name_appears_in_every_statement() {
        let table = FenceTable::with_name("my fence").unwrap();
        for (dialect, name) in [(Dialect::Postgres, "\"my fence\""), (Dialect::Mysql, "`my fence`")] {
            for text in table.statements(dialect).into_iter().chain([table.ddl(dialect)]) {
                assert!(text.contains(name) && !text.contains(DEFAULT_TABLE), "{text}");
            }
            assert_eq!(FenceTable::default().ddl(dialect), ddl(dialect));
        }
    }
}
