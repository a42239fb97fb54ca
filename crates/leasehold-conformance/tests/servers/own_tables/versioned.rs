//! Updates by version, one after another.

use leasehold::versioned::{Change, UpdateError, VersionedTable};

use crate::own_tables::fixture::{DatabaseFixture, IsolationLevel, unique_name};
use crate::own_tables::on_both;

/// A table with two rows: 1 with 100 units, and 2 with none.
pub(crate) async fn create_stock_table<S: DatabaseFixture>(conn: &mut S::Conn) -> String {
    let name = unique_name("stock");
    let columns = "id BIGINT PRIMARY KEY, units BIGINT NOT NULL, sold BIGINT NOT NULL, version INT NOT NULL";
    S::execute(conn, &format!("CREATE TABLE {name} ({columns})")).await;
    S::execute(conn, &format!("INSERT INTO {name} VALUES (1, 100, 0, 0), (2, 0, 0, 0)")).await;
    name
}

/// The units, the sold units and the version of a row.
pub(crate) async fn read_row<S: DatabaseFixture>(conn: &mut S::Conn, table: &str, id: i64) -> [i64; 3] {
    // The sum turns the version into a 64-bit integer in SQL that both databases accept.
    let mut found = [0; 3];
    for (place, column) in found.iter_mut().zip(["units", "sold", "version + units - units"]) {
        *place = S::query_number(conn, &format!("SELECT {column} FROM {table} WHERE id = {id}")).await;
    }
    found
}

async fn a_change_is_written_and_raises_the_version<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let stock = VersionedTable::new(table.clone());
    for left in [99, 98] {
        let done = stock
            .update(&mut conn, S::Number::from(1), |row| {
                let (units, sold) = (S::column_value(row, "units"), S::column_value(row, "sold"));
                let change =
                    Change::set("units", S::Number::from(units - 1)).and_set("sold", S::Number::from(sold + 1));
                Ok(change.returning(units - 1))
            })
            .await
            .expect("updated");
        assert_eq!((done.value, done.version, done.retries, done.changed), (left, 100 - left, 0, true));
    }
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [98, 2, 2]);
    assert_eq!(read_row::<S>(&mut conn, &table, 2).await, [0, 0, 0], "the other row is unchanged");
}

async fn an_unchanged_row_keeps_its_version<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let stock = VersionedTable::new(table.clone()).columns(["units"]);
    let done = stock
        .update(&mut conn, S::Number::from(2), |row| Ok(Change::none().returning(S::column_value(row, "units"))))
        .await;
    let done = done.expect("read");
    assert_eq!((done.value, done.version, done.changed), (0, 0, false));
    let refused = stock.update::<_, ()>(&mut conn, S::Number::from(2), |_| Err("sold out".into())).await;
    assert!(matches!(&refused, Err(UpdateError::Rejected(why)) if why.to_string() == "sold out"), "{refused:?}");
    assert_eq!(read_row::<S>(&mut conn, &table, 2).await, [0, 0, 0]);
}

async fn each_failure_has_its_own_error<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let stock = VersionedTable::new(table.clone());
    let mut update_error = async |stock: &VersionedTable, key: i64, column: &'static str| {
        let ended =
            stock.update(&mut conn, S::Number::from(key), |_| Ok(Change::set(column, S::Number::from(1)))).await;
        ended.expect_err("the update must fail")
    };
    assert!(matches!(update_error(&stock, 7, "units").await, UpdateError::NoRow));
    assert!(matches!(update_error(&stock, 1, "version").await, UpdateError::Invalid(_)));
    assert!(matches!(update_error(&stock, 1, "id").await, UpdateError::Invalid(_)));
    assert!(matches!(update_error(&stock, 1, "nothing").await, UpdateError::Failed(_)));
    assert!(matches!(update_error(&stock.clone().key("sold"), 0, "units").await, UpdateError::NotUnique { rows: 2 }));
    assert!(matches!(update_error(&stock.clone().version("\"; --"), 1, "units").await, UpdateError::Failed(_)));
    assert!(matches!(update_error(&VersionedTable::new("a.b.c"), 1, "units").await, UpdateError::Invalid(_)));
    assert!(matches!(update_error(&VersionedTable::new("no_such_table"), 1, "units").await, UpdateError::Failed(_)));
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [100, 0, 0], "the row is unchanged");
    let name = unique_name("nulls");
    S::execute(&mut conn, &format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, version BIGINT)")).await;
    S::execute(&mut conn, &format!("INSERT INTO {name} VALUES (1, NULL)")).await;
    let ended = VersionedTable::new(name).update(&mut conn, S::Number::from(1), |_| Ok(Change::none())).await;
    assert!(matches!(ended, Err(UpdateError::NoVersion)), "{ended:?}");
}

async fn in_a_transaction_an_update_commits_or_rolls_back_with_the_rest<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let stock = VersionedTable::new(table.clone());
    for commits in [false, true] {
        let mut tx = S::begin(&mut conn, IsolationLevel::RepeatableRead).await;
        for id in [1, 2] {
            let sell = |row: &S::Row| Ok(Change::set("sold", S::Number::from(S::column_value(row, "sold") + 1)));
            stock.update_in(&mut tx, S::Number::from(id), sell).await.expect("updated");
        }
        if commits {
            S::commit(tx).await.expect("committed")
        } else {
            S::rollback(tx).await
        }
        let times = i64::from(commits);
        assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [100, times, times]);
        assert_eq!(read_row::<S>(&mut conn, &table, 2).await, [0, times, times]);
    }
}

on_both!(
    a_change_is_written_and_raises_the_version,
    an_unchanged_row_keeps_its_version,
    each_failure_has_its_own_error,
    in_a_transaction_an_update_commits_or_rolls_back_with_the_rest,
);
