//! Updates of one row at the same time, and connections that are lost in the middle of one.

use std::time::Duration;

use leasehold::versioned::{Change, UpdateError, Versioned};
use leasehold_conformance::world::SOON;
use leasehold_testbed::Proxy;

use crate::own_tables::on_both;
use crate::own_tables::site::{Level, Site, until_waiting};
use crate::own_tables::versioned::{row, stock};

/// Sells one unit to somebody else, from a thread of its own: a caller's function may not wait.
fn interfere<S: Site>(site: &S, table: &str) {
    let (site, sql) =
        (site.clone(), format!("UPDATE {table} SET units = units - 1, version = version + 1 WHERE id = 1"));
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut conn = site.connect().await;
            S::run(&mut conn, &sql).await;
        });
    });
    other.join().expect("no panic");
}

/// One unit less.
fn sell<S: Site>(row: &S::Row) -> Change<S::Value> {
    Change::set("units", S::Number::from(S::field(row, "units") - 1))
}

async fn in_a_crowd_no_update_is_lost<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let buyers = (0..8).map(|_| {
        let (site, table) = (site.clone(), table.clone());
        tokio::spawn(async move {
            let mut conn = site.connect().await;
            let stock = Versioned::table(table).tries(10_000).within(Duration::from_secs(300));
            let mut retries = 0;
            for _ in 0..10 {
                retries +=
                    stock.update(&mut conn, S::Number::from(1), |row| Ok(sell::<S>(row))).await.expect("sold").retries;
            }
            retries
        })
    });
    let mut retries = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        retries += buyer.await.expect("no panic");
    }
    println!("{retries} retries for 80 updates");
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [20, 0, 80]);
}

async fn a_conflict_is_tried_again_on_what_the_other_wrote<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let mut times = 0;
    let stock = Versioned::table(table.clone());
    let done = stock.update(&mut conn, S::Number::from(1), |row| {
        times += 1;
        if times < 3 {
            interfere(&site, &table);
        }
        Ok(sell::<S>(row).giving(S::field(row, "units")))
    });
    let done = done.await.expect("the third time");
    assert_eq!((done.value, done.retries, done.version), (98, 2, 3));
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [97, 0, 3]);
}

async fn too_much_contention_is_told_after_the_last_try<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    for (stock, most) in [
        (Versioned::table(table.clone()).tries(3), 3),
        (Versioned::table(table.clone()).tries(1), 1),
        (Versioned::table(table.clone()).within(Duration::ZERO), 1),
    ] {
        let ended = stock.update(&mut conn, S::Number::from(1), |row| {
            interfere(&site, &table);
            Ok(sell::<S>(row))
        });
        let ended = ended.await;
        assert!(matches!(ended, Err(UpdateError::TooContended { tries }) if tries == most), "{ended:?}");
    }
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [95, 0, 5], "the others' five");
}

/// Why there is one try only: read committed shows the newer row, everything above goes on showing the older one.
async fn in_a_transaction_a_conflict_is_told_at_once<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let stock = Versioned::table(table.clone());
    for level in [Level::ReadCommitted, Level::RepeatableRead] {
        let before = row::<S>(&mut conn, &table, 1).await[0];
        let mut tx = S::begin(&mut conn, level).await;
        let ended = stock.update_in(&mut tx, S::Number::from(1), |row| {
            interfere(&site, &table);
            Ok(sell::<S>(row))
        });
        let ended = ended.await;
        assert!(matches!(ended, Err(UpdateError::Conflict(_))), "{level:?}: {ended:?}");
        let again = stock.update_in(&mut tx, S::Number::from(1), |row| Ok(sell::<S>(row))).await;
        assert_eq!(again.is_ok(), level == Level::ReadCommitted, "{level:?}: {again:?}");
        if again.is_ok() {
            S::commit(tx).await.expect("committed");
        } else {
            S::rollback(tx).await;
            let mut tx = S::begin(&mut conn, level).await;
            stock.update_in(&mut tx, S::Number::from(1), |row| Ok(sell::<S>(row))).await.expect("a new transaction");
            S::commit(tx).await.expect("committed");
        }
        assert_eq!(row::<S>(&mut conn, &table, 1).await[0], before - 2, "{level:?}: one of each");
    }
}

/// The row is locked by somebody, the update waits for it, and the connection is lost. The server goes on and does it: had it been
/// tried again, it would have been done twice.
async fn a_connection_lost_in_the_middle_is_unknown_and_not_tried_again<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let proxy = Proxy::start(site.addr()).await.expect("a proxy");
    let mut far = site.by(proxy.addr()).connect().await;
    let (mut holder, stock) = (site.connect().await, Versioned::table(table.clone()));
    let mut tx = S::begin(&mut holder, Level::ReadCommitted).await;
    S::write(&mut tx, &format!("UPDATE {table} SET sold = 7 WHERE id = 1")).await.expect("locked");

    let (mut asked, statement) = (0, format!("UPDATE \"{table}\" SET \"units\""));
    let ended = {
        let update = stock.update(&mut far, S::Number::from(1), |row| {
            asked += 1;
            Ok(sell::<S>(row))
        });
        let cut = async {
            until_waiting::<S>(&mut conn, &statement).await;
            proxy.cut();
        };
        tokio::join!(update, cut).0
    };
    assert!(matches!(ended, Err(UpdateError::Unknown(_))), "{ended:?}");
    assert_eq!(asked, 1, "tried once");
    S::commit(tx).await.expect("committed");
    // Its row is read column by column: only once nobody changes it any more.
    let ended = async {
        while S::running(&mut conn, &statement).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, ended).await.expect("the statement ends");
    let [units, sold, version] = row::<S>(&mut conn, &table, 1).await;
    assert_eq!((sold, units + version), (7, 100), "done once or not at all");
}

/// Before anything is written, a lost connection is no riddle.
async fn a_connection_lost_before_is_a_plain_failure<S: Site>(site: S) {
    let mut conn = site.connect().await;
    let table = stock::<S>(&mut conn).await;
    let proxy = Proxy::start(site.addr()).await.expect("a proxy");
    let mut far = site.by(proxy.addr()).connect().await;
    proxy.cut();
    let ended = Versioned::table(table.clone()).update(&mut far, S::Number::from(1), |row| Ok(sell::<S>(row))).await;
    assert!(matches!(ended, Err(UpdateError::Failed(_))), "{ended:?}");
    assert_eq!(row::<S>(&mut conn, &table, 1).await, [100, 0, 0]);
}

on_both!(
    in_a_crowd_no_update_is_lost,
    a_conflict_is_tried_again_on_what_the_other_wrote,
    too_much_contention_is_told_after_the_last_try,
    in_a_transaction_a_conflict_is_told_at_once,
    a_connection_lost_in_the_middle_is_unknown_and_not_tried_again,
    a_connection_lost_before_is_a_plain_failure,
);
