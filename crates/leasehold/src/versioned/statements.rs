//! The SQL statements of an update by version.

use std::borrow::Cow;

use super::VersionedTable;
use crate::database::Dialect;
use crate::logic::sql_identifier;
use crate::types::{Error, ErrorKind};

/// The error for the name of a table or a column that cannot be used.
fn invalid_name(message: String) -> Error {
    Error::new(ErrorKind::InvalidOption, message)
}

/// A column's name, quoted.
fn quote_column(name: &str, dialect: Dialect) -> Result<String, Error> {
    if name.contains('.') {
        return Err(invalid_name(format!("{name:?} is not the name of a column: it has a dot")));
    }
    sql_identifier::check_identifier(name).map_err(invalid_name)?;
    Ok(dialect.quote(name))
}

/// The placeholder of a value, counted from 1.
fn placeholder(number: usize, dialect: Dialect) -> String {
    match dialect {
        Dialect::Postgres => format!("${number}"),
        Dialect::Mysql => "?".to_owned(),
    }
}

impl VersionedTable {
    /// The table's name, quoted.
    fn name(&self, dialect: Dialect) -> Result<String, Error> {
        sql_identifier::check_identifier(&self.table).map_err(invalid_name)?;
        Ok(dialect.quote(&self.table))
    }

    /// The SELECT that reads the row with a key. Its last column is the version, cast to a 64-bit
    /// integer.
    pub(super) fn select(&self, dialect: Dialect) -> Result<String, Error> {
        let (table, key, version) =
            (self.name(dialect)?, quote_column(&self.key, dialect)?, quote_column(&self.version, dialect)?);
        let columns = self.columns.iter().map(|name| quote_column(name, dialect)).collect::<Result<Vec<_>, _>>()?;
        let columns = if columns.is_empty() { "*".to_owned() } else { columns.join(", ") };
        let number = if dialect == Dialect::Postgres { "BIGINT" } else { "SIGNED" };
        let parameter = placeholder(1, dialect);
        Ok(format!(
            "SELECT {columns}, CAST({version} AS {number}) AS leasehold_version FROM {table} WHERE {key} = {parameter}"
        ))
    }

    /// The UPDATE that writes these columns and raises the version, if the row still has the
    /// version that was read.
    pub(super) fn write(&self, columns: &[Cow<'static, str>], dialect: Dialect) -> Result<String, Error> {
        let (table, key, version) =
            (self.name(dialect)?, quote_column(&self.key, dialect)?, quote_column(&self.version, dialect)?);
        let mut sets = String::new();
        for (index, name) in columns.iter().enumerate() {
            let is_name = |other: &str| name.eq_ignore_ascii_case(other);
            if is_name(&self.key) || is_name(&self.version) || columns[..index].iter().any(|other| is_name(other)) {
                return Err(invalid_name(format!(
                    "{name:?} is the key, the version, or set twice: a change cannot set it"
                )));
            }
            sets += &format!("{} = {}, ", quote_column(name, dialect)?, placeholder(index + 1, dialect));
        }
        let (key_value, version_value) =
            (placeholder(columns.len() + 1, dialect), placeholder(columns.len() + 2, dialect));
        // PostgreSQL would take the version's value for the type of its column; it is sent as
        // BIGINT.
        let cast = if dialect == Dialect::Postgres { "::BIGINT" } else { "" };
        Ok(format!(
            "UPDATE {table} SET {sets}{version} = {version} + 1 WHERE {key} = {key_value} AND {version} = {version_value}{cast}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_as_expected() {
        let table = VersionedTable::new("shop.stock").key("sku");
        assert_eq!(
            table.select(Dialect::Postgres).unwrap(),
            r#"SELECT *, CAST("version" AS BIGINT) AS leasehold_version FROM "shop"."stock" WHERE "sku" = $1"#
        );
        assert_eq!(
            table.write(&["units".into(), "sold".into()], Dialect::Postgres).unwrap(),
            r#"UPDATE "shop"."stock" SET "units" = $1, "sold" = $2, "version" = "version" + 1 WHERE "sku" = $3 AND "version" = $4::BIGINT"#
        );
        assert_eq!(
            table.clone().columns(["units"]).select(Dialect::Mysql).unwrap(),
            "SELECT `units`, CAST(`version` AS SIGNED) AS leasehold_version FROM `shop`.`stock` WHERE `sku` = ?"
        );
        assert_eq!(
            table.write(&["units".into()], Dialect::Mysql).unwrap(),
            "UPDATE `shop`.`stock` SET `units` = ?, `version` = `version` + 1 WHERE `sku` = ? AND `version` = ?"
        );
    }

    #[test]
    fn a_change_sets_each_column_once_and_neither_key_nor_version() {
        let table = VersionedTable::new("stock");
        for columns in [vec!["id"], vec!["Version"], vec!["a", "b", "a"], vec!["a.b"], vec![""]] {
            let columns: Vec<Cow<'static, str>> = columns.into_iter().map(Into::into).collect();
            assert!(table.write(&columns, Dialect::Mysql).is_err(), "{columns:?}");
        }
        assert!(VersionedTable::new("a.b.c").select(Dialect::Mysql).is_err());
        assert!(table.key("i.d").select(Dialect::Mysql).is_err());
    }
}
