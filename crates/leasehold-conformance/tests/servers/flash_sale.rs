//! The flash sale of the examples, on real servers: without a lock more is sold than there is, with each technique exactly what there is.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

#[path = "../../../leasehold/examples/flash_sale/database.rs"]
mod database;
#[path = "../../../leasehold/examples/flash_sale/drawing.rs"]
mod drawing;
#[path = "../../../leasehold/examples/flash_sale/sale.rs"]
mod sale;
#[path = "../../../leasehold/examples/flash_sale/shelf.rs"]
mod shelf;
#[path = "../../../leasehold/examples/flash_sale/till.rs"]
mod till;

use std::sync::Arc;

use database::Database;
use leasehold_testbed::{mariadb, postgres, redis};
use sale::Sale;
use till::{Stock, is_database, techniques};

/// How many come, and how many units there are for them.
const BUYERS: u32 = if cfg!(feature = "nightly") { 1000 } else { 120 };
const ITEMS: u32 = if cfg!(feature = "nightly") { 100 } else { 12 };

async fn sell(url: String) {
    let stock: Arc<dyn Stock> =
        if is_database(&url) { Arc::new(Database::at(&url)) } else { Arc::<shelf::Shelf>::default() };
    let count = if is_database(&url) { 6 } else { 4 };
    let sale = Sale { url, stock, buyers: BUYERS, items: ITEMS, at_once: 64 };
    let mut all = Vec::new();
    for technique in techniques(&sale.url).iter().copied() {
        let sold = sale.hold(technique).await.unwrap_or_else(|why| panic!("{technique:?}: {why}"));
        all.push((technique, sold));
    }
    println!("{}{}", drawing::table(&all), drawing::chart(&sale, &all));
    for (technique, sold) in &all {
        if technique.protects() {
            assert_eq!((sold.units, sold.left), (ITEMS, 0), "{technique:?}: {sold:?}");
            assert!(sale.is_right(sold), "{technique:?}: {sold:?}");
        } else {
            assert!(sold.units > ITEMS, "{technique:?}: {sold:?}");
        }
    }
    assert_eq!(drawing::json(&sale, &all)["techniques"].as_array().map(Vec::len), Some(count));
    assert_eq!(drawing::svg(&sale, &all).matches("<rect").count(), count + 1, "the ground and the bars");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = mariadb::start().await.expect("a MariaDB");
    sell(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql() {
    let server = postgres::start().await.expect("a PostgreSQL");
    sell(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = redis::start().await.expect("a Redis");
    sell(server.url()).await;
}
