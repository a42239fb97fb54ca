//! The SQL statements.

use std::borrow::Cow;

use super::Versioned;
use crate::database::Dialect;
use crate::error::{Error, ErrorKind};
use crate::logic::identifier;

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::InvalidOption, why)
}

/// A column's name, quoted.
fn column(name: &str, dialect: Dialect) -> Result<String, Error> {
    if name.contains('.') {
        return Err(refuse(format!("{name:?} is no name of a column: it has a dot")));
    }
    identifier::check(name).map_err(refuse)?;
    Ok(dialect.quoted(name))
}

/// The placeholder of a value, counted from 1.
fn place(number: usize, dialect: Dialect) -> String {
    match dialect {
        Dialect::Postgres => format!("${number}"),
        Dialect::Mysql => "?".to_owned(),
    }
}

impl Versioned {
    fn name(&self, dialect: Dialect) -> Result<String, Error> {
        identifier::check(&self.table).map_err(refuse)?;
        Ok(dialect.quoted(&self.table))
    }

    /// Reads the row. The version is the last column, cast to one integer type.
    pub(super) fn select(&self, dialect: Dialect) -> Result<String, Error> {
        let (table, key, version) = (self.name(dialect)?, column(&self.key, dialect)?, column(&self.version, dialect)?);
        let columns = self.columns.iter().map(|name| column(name, dialect)).collect::<Result<Vec<_>, _>>()?;
        let columns = if columns.is_empty() { "*".to_owned() } else { columns.join(", ") };
        let number = if dialect == Dialect::Postgres { "BIGINT" } else { "SIGNED" };
        let place = place(1, dialect);
        Ok(format!(
            "SELECT {columns}, CAST({version} AS {number}) AS leasehold_version FROM {table} WHERE {key} = {place}"
        ))
    }

    /// Writes these columns if the row still has the version that was read.
    pub(super) fn write(&self, columns: &[Cow<'static, str>], dialect: Dialect) -> Result<String, Error> {
        let (table, key, version) = (self.name(dialect)?, column(&self.key, dialect)?, column(&self.version, dialect)?);
        let mut sets = String::new();
        for (index, name) in columns.iter().enumerate() {
            let same = |other: &str| name.eq_ignore_ascii_case(other);
            if same(&self.key) || same(&self.version) || columns[..index].iter().any(|other| same(other)) {
                return Err(refuse(format!("{name:?} is the key, the version, or set twice: a change cannot set it")));
            }
            sets += &format!("{} = {}, ", column(name, dialect)?, place(index + 1, dialect));
        }
        let (at_key, at_version) = (place(columns.len() + 1, dialect), place(columns.len() + 2, dialect));
        // The version has the type with which it was read, whatever the column's type is.
        let cast = if dialect == Dialect::Postgres { "::BIGINT" } else { "" };
        Ok(format!(
            "UPDATE {table} SET {sets}{version} = {version} + 1 WHERE {key} = {at_key} AND {version} = {at_version}{cast}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_these() {
        let stock = Versioned::table("shop.stock").key("sku");
        assert_eq!(
            stock.select(Dialect::Postgres).unwrap(),
            r#"SELECT *, CAST("version" AS BIGINT) AS leasehold_version FROM "shop"."stock" WHERE "sku" = $1"#
        );
        assert_eq!(
            stock.write(&["units".into(), "sold".into()], Dialect::Postgres).unwrap(),
            r#"UPDATE "shop"."stock" SET "units" = $1, "sold" = $2, "version" = "version" + 1 WHERE "sku" = $3 AND "version" = $4::BIGINT"#
        );
        assert_eq!(
            stock.clone().columns(["units"]).select(Dialect::Mysql).unwrap(),
            "SELECT `units`, CAST(`version` AS SIGNED) AS leasehold_version FROM `shop`.`stock` WHERE `sku` = ?"
        );
        assert_eq!(
            stock.write(&["units".into()], Dialect::Mysql).unwrap(),
            "UPDATE `shop`.`stock` SET `units` = ?, `version` = `version` + 1 WHERE `sku` = ? AND `version` = ?"
        );
    }

    #[test]
    fn a_change_sets_each_column_once_and_neither_key_nor_version() {
        let stock = Versioned::table("stock");
        for columns in [vec!["id"], vec!["Version"], vec!["a", "b", "a"], vec!["a.b"], vec![""]] {
            let columns: Vec<Cow<'static, str>> = columns.into_iter().map(Into::into).collect();
            assert!(stock.write(&columns, Dialect::Mysql).is_err(), "{columns:?}");
        }
        assert!(Versioned::table("a.b.c").select(Dialect::Mysql).is_err());
        assert!(stock.key("i.d").select(Dialect::Mysql).is_err());
    }
}
