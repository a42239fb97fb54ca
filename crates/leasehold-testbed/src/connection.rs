//! The connections that a database server reports.

/// One connection of the user [`USER`](crate::mariadb::USER), as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The connection's id in MariaDB, or the id of its server process in PostgreSQL.
    pub id: u64,
    /// What the connection does: `Sleep` or `Query` in MariaDB; `idle`, `active` and others in
    /// PostgreSQL.
    pub state: String,
    /// The statement that it executes; for an idle connection `None` in MariaDB, and the last
    /// statement in PostgreSQL.
    pub query: Option<String>,
}

/// Parses rows of id, state and query; `None` if a row has another form.
pub(crate) fn from_rows(rows: Vec<Vec<Option<String>>>) -> Option<Vec<Connection>> {
    rows.into_iter().map(from_row).collect()
}

fn from_row(row: Vec<Option<String>>) -> Option<Connection> {
    let [id, state, query] = <[Option<String>; 3]>::try_from(row).ok()?;
    Some(Connection { id: id?.parse().ok()?, state: state.unwrap_or_default(), query })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_kind_are_none() {
        let cell = |text: &str| Some(text.to_owned());
        let expected = Connection { id: 7, state: "Sleep".to_owned(), query: None };
        assert_eq!(from_rows(vec![vec![cell("7"), cell("Sleep"), None]]), Some(vec![expected]));
        assert_eq!(from_rows(vec![vec![cell("seven"), None, None]]), None);
        assert_eq!(from_rows(vec![vec![cell("7")]]), None);
    }
}
