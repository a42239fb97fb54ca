//! Concurrent updates of one row, and connections lost during an update.

use std::time::Duration;

use leasehold::versioned::{Change, UpdateError, VersionedTable};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::Proxy;

use crate::own_tables::fixture::{DatabaseFixture, IsolationLevel, wait_until_waiting};
use crate::own_tables::on_both;
use crate::own_tables::versioned::{create_stock_table, read_row};

/// Sells one unit to another buyer from a separate thread, because the update closure is not async.
fn update_concurrently<S: DatabaseFixture>(fixture: &S, table: &str) {
    let (fixture, sql) =
        (fixture.clone(), format!("UPDATE {table} SET units = units - 1, version = version + 1 WHERE id = 1"));
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut conn = fixture.connect().await;
            S::execute(&mut conn, &sql).await;
        });
    });
    other.join().expect("no panic");
}

/// Sells one unit.
fn sell_one<S: DatabaseFixture>(row: &S::Row) -> Change<S::Value> {
    Change::set("units", S::Number::from(S::column_value(row, "units") - 1))
}

async fn concurrent_updates_are_not_lost<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let buyers = (0..8).map(|_| {
        let (fixture, table) = (fixture.clone(), table.clone());
        tokio::spawn(async move {
            let mut conn = fixture.connect().await;
            let stock = VersionedTable::new(table).max_attempts(10_000).time_limit(Duration::from_secs(300));
            let mut retries = 0;
            for _ in 0..10 {
                retries += stock
                    .update(&mut conn, S::Number::from(1), |row| Ok(sell_one::<S>(row)))
                    .await
                    .expect("sold")
                    .retries;
            }
            retries
        })
    });
    let mut retries = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        retries += buyer.await.expect("no panic");
    }
    println!("{retries} retries for 80 updates");
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [20, 0, 80]);
}

async fn a_conflict_is_retried_on_the_newer_row<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let mut times = 0;
    let stock = VersionedTable::new(table.clone());
    let done = stock.update(&mut conn, S::Number::from(1), |row| {
        times += 1;
        if times < 3 {
            update_concurrently(&fixture, &table);
        }
        Ok(sell_one::<S>(row).returning(S::column_value(row, "units")))
    });
    let done = done.await.expect("updated at the third attempt");
    assert_eq!((done.value, done.retries, done.version), (98, 2, 3));
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [97, 0, 3]);
}

async fn contention_is_an_error_after_the_last_attempt<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    for (stock, most) in [
        (VersionedTable::new(table.clone()).max_attempts(3), 3),
        (VersionedTable::new(table.clone()).max_attempts(1), 1),
        (VersionedTable::new(table.clone()).time_limit(Duration::ZERO), 1),
    ] {
        let ended = stock.update(&mut conn, S::Number::from(1), |row| {
            update_concurrently(&fixture, &table);
            Ok(sell_one::<S>(row))
        });
        let ended = ended.await;
        assert!(matches!(ended, Err(UpdateError::TooContended { attempts: tries }) if tries == most), "{ended:?}");
    }
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [95, 0, 5], "the five concurrent updates");
}

/// A conflict in a transaction is not retried: above read committed, the transaction still sees the
/// old row.
async fn in_a_transaction_a_conflict_is_returned_at_once<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let stock = VersionedTable::new(table.clone());
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead] {
        let before = read_row::<S>(&mut conn, &table, 1).await[0];
        let mut tx = S::begin(&mut conn, level).await;
        let ended = stock.update_in(&mut tx, S::Number::from(1), |row| {
            update_concurrently(&fixture, &table);
            Ok(sell_one::<S>(row))
        });
        let ended = ended.await;
        assert!(matches!(ended, Err(UpdateError::Conflict(_))), "{level:?}: {ended:?}");
        let again = stock.update_in(&mut tx, S::Number::from(1), |row| Ok(sell_one::<S>(row))).await;
        assert_eq!(again.is_ok(), level == IsolationLevel::ReadCommitted, "{level:?}: {again:?}");
        if again.is_ok() {
            S::commit(tx).await.expect("committed");
        } else {
            S::rollback(tx).await;
            let mut tx = S::begin(&mut conn, level).await;
            stock
                .update_in(&mut tx, S::Number::from(1), |row| Ok(sell_one::<S>(row)))
                .await
                .expect("a new transaction");
            S::commit(tx).await.expect("committed");
        }
        assert_eq!(read_row::<S>(&mut conn, &table, 1).await[0], before - 2, "{level:?}: one unit each");
    }
}

/// Another transaction locks the row, the update waits for it, and the connection is lost. The
/// server still applies the update, so a retry would apply it twice.
async fn a_connection_lost_during_an_update_is_unknown_and_not_retried<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let proxy = Proxy::start(fixture.addr()).await.expect("a proxy");
    let mut far = fixture.via(proxy.addr()).connect().await;
    let (mut holder, stock) = (fixture.connect().await, VersionedTable::new(table.clone()));
    let mut tx = S::begin(&mut holder, IsolationLevel::ReadCommitted).await;
    S::execute_in(&mut tx, &format!("UPDATE {table} SET sold = 7 WHERE id = 1")).await.expect("locked");

    let (mut attempts, statement) = (0, format!("UPDATE \"{table}\" SET \"units\""));
    let ended = {
        let update = stock.update(&mut far, S::Number::from(1), |row| {
            attempts += 1;
            Ok(sell_one::<S>(row))
        });
        let cut = async {
            wait_until_waiting::<S>(&mut conn, &statement).await;
            proxy.cut();
        };
        tokio::join!(update, cut).0
    };
    assert!(matches!(ended, Err(UpdateError::Unknown(_))), "{ended:?}");
    assert_eq!(attempts, 1, "not retried");
    S::commit(tx).await.expect("committed");
    // The row is read column by column, so the statement must have ended.
    let ended = async {
        while S::is_running(&mut conn, &statement).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, ended).await.expect("the statement ends");
    let [units, sold, version] = read_row::<S>(&mut conn, &table, 1).await;
    assert_eq!((sold, units + version), (7, 100), "applied at most once");
}

/// If the connection is lost before the write, the outcome is known.
async fn a_connection_lost_before_an_update_is_a_known_failure<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let table = create_stock_table::<S>(&mut conn).await;
    let proxy = Proxy::start(fixture.addr()).await.expect("a proxy");
    let mut far = fixture.via(proxy.addr()).connect().await;
    proxy.cut();
    let ended =
        VersionedTable::new(table.clone()).update(&mut far, S::Number::from(1), |row| Ok(sell_one::<S>(row))).await;
    assert!(matches!(ended, Err(UpdateError::Failed(_))), "{ended:?}");
    assert_eq!(read_row::<S>(&mut conn, &table, 1).await, [100, 0, 0]);
}

on_both!(
    concurrent_updates_are_not_lost,
    a_conflict_is_retried_on_the_newer_row,
    contention_is_an_error_after_the_last_attempt,
    in_a_transaction_a_conflict_is_returned_at_once,
    a_connection_lost_during_an_update_is_unknown_and_not_retried,
    a_connection_lost_before_an_update_is_a_known_failure,
);
