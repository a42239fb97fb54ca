//! Updates by version, one after the other.

use leasehold::versioned::{Change, UpdateError, Versioned};

use crate::own_tables::on_both;
use crate::own_tables::site::{Level, Site, fresh};

/// A table with two rows: 1 with 100 units, and 2 with none.
pub(crate) async fn stock<S: Site>(conn: &mut S::Conn) -> String {
    let name = fresh("stock");
    let columns = "id BIGINT PRIMARY KEY, units BIGINT NOT NULL, sold BIGINT NOT NULL, version INT NOT NULL";
    S::run(conn, &format!("CREATE TABLE {name} ({columns})")).await;
    S::run(conn, &format!("INSERT INTO {name} VALUES (1, 100, 0, 0), (2, 0, 0, 0)")).await;
    name
}

/// All of a row that tests look at.
pub(crate) async fn row<S: Site>(conn: &mut S::Conn, table: &str, id: i64) -> [i64; 3] {
    // The sum makes a number of 64 bits of the version, whatever its type, in words that both databases know.
    let mut found = [0; 3];
    for (place, column) in found.iter_mut().zip(["units", "sold", "version + units - units"]) {
        *place = S::number(conn, &format!("SELECT {column} FROM {table} WHERE id = {id}")).await;
    }
    found
}

async fn a_change_is_written_and_raises_the_version<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let stock = Versioned::table(table.clone());
    for left in [99, 98] {
        let done = stock
            .update(&mut conn, S::Number::from(1), |row| {
                let (units, sold) = (S::field(row, "units"), S::field(row, "sold"));
                let change = Change::set("units", S::Number::from(units - 1)).and("sold", S::Number::from(sold + 1));
                Ok(change.giving(units - 1))
            })
            .await
            .expect("updated");
        assert_eq!((done.value, done.version, done.retries, done.changed), (left, 100 - left, 0, true));
    }
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [98, 2, 2]);
    assert_eq!(row::<S>(&mut conn, &table, 2).await, [0, 0, 0], "another row is not touched");
}

async fn what_is_not_changed_keeps_its_version<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let stock = Versioned::table(table.clone()).columns(["units"]);
    let done =
        stock.update(&mut conn, S::Number::from(2), |row| Ok(Change::none().giving(S::field(row, "units")))).await;
    let done = done.expect("read");
    assert_eq!((done.value, done.version, done.changed), (0, 0, false));
    let refused = stock.update::<_, ()>(&mut conn, S::Number::from(2), |_| Err("sold out".into())).await;
    assert!(matches!(&refused, Err(UpdateError::Refused(why)) if why.to_string() == "sold out"), "{refused:?}");
    assert_eq!(row::<S>(&mut conn, &table, 2).await, [0, 0, 0]);
}

async fn what_cannot_be_is_told_as_what_it_is<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let stock = Versioned::table(table.clone());
    let mut tell = async |stock: &Versioned, key: i64, column: &'static str| {
        let ended =
            stock.update(&mut conn, S::Number::from(key), |_| Ok(Change::set(column, S::Number::from(1)))).await;
        ended.expect_err("not possible")
    };
    assert!(matches!(tell(&stock, 7, "units").await, UpdateError::NoRow));
    assert!(matches!(tell(&stock, 1, "version").await, UpdateError::Invalid(_)));
    assert!(matches!(tell(&stock, 1, "id").await, UpdateError::Invalid(_)));
    assert!(matches!(tell(&stock, 1, "nothing").await, UpdateError::Failed(_)));
    assert!(matches!(tell(&stock.clone().key("sold"), 0, "units").await, UpdateError::NotUnique { rows: 2 }));
    assert!(matches!(tell(&stock.clone().version("\"; --"), 1, "units").await, UpdateError::Failed(_)));
    assert!(matches!(tell(&Versioned::table("a.b.c"), 1, "units").await, UpdateError::Invalid(_)));
    assert!(matches!(tell(&Versioned::table("no_such_table"), 1, "units").await, UpdateError::Failed(_)));
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [100, 0, 0], "and nothing was done");
    let name = fresh("nulls");
    S::run(&mut conn, &format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, version BIGINT)")).await;
    S::run(&mut conn, &format!("INSERT INTO {name} VALUES (1, NULL)")).await;
    let ended = Versioned::table(name).update(&mut conn, S::Number::from(1), |_| Ok(Change::none())).await;
    assert!(matches!(ended, Err(UpdateError::NoVersion)), "{ended:?}");
}

async fn in_a_transaction_it_is_committed_or_not_with_all_the_rest<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let stock = Versioned::table(table.clone());
    for commits in [false, true] {
        let mut tx = S::begin(&mut conn, Level::RepeatableRead).await;
        for id in [1, 2] {
            let sell = |row: &S::Row| Ok(Change::set("sold", S::Number::from(S::field(row, "sold") + 1)));
            stock.update_in(&mut tx, S::Number::from(id), sell).await.expect("updated");
        }
        if commits {
            S::commit(tx).await.expect("committed")
        } else {
            S::rollback(tx).await
        }
        let times = i64::from(commits);
        assert_eq!(row::<S>(&mut conn, &table, 1).await, [100, times, times]);
        assert_eq!(row::<S>(&mut conn, &table, 2).await, [0, times, times]);
    }
}

on_both!(
    a_change_is_written_and_raises_the_version,
    what_is_not_changed_keeps_its_version,
    what_cannot_be_is_told_as_what_it_is,
    in_a_transaction_it_is_committed_or_not_with_all_the_rest,
);
