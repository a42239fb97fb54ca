//! The flash-sale example on real servers. Without a lock it oversells; with each technique it
//! sells exactly the stock.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

#[path = "../../../../examples/flash_sale/database.rs"]
mod database;
#[path = "../../../../examples/flash_sale/memory_stock.rs"]
mod memory_stock;
#[path = "../../../../examples/flash_sale/output.rs"]
mod output;
#[path = "../../../../examples/flash_sale/sale.rs"]
mod sale;
#[path = "../../../../examples/flash_sale/stock.rs"]
mod stock;

use std::sync::Arc;

use database::DatabaseStock;
use leasehold_testbed::{mariadb, postgres, redis};
use sale::Sale;
use stock::{Stock, is_database, techniques};

/// The number of buyers, and of items for sale.
const BUYERS: u32 = if cfg!(feature = "nightly") { 1000 } else { 120 };
const ITEMS: u32 = if cfg!(feature = "nightly") { 100 } else { 12 };

async fn check_sale(url: String) {
    let stock: Arc<dyn Stock> = if is_database(&url) {
        Arc::new(DatabaseStock::new(&url))
    } else {
        Arc::<memory_stock::MemoryStock>::default()
    };
    let count = if is_database(&url) { 6 } else { 4 };
    let sale = Sale { url, stock, buyers: BUYERS, items: ITEMS, concurrency: 64 };
    let mut all = Vec::new();
    for technique in techniques(&sale.url).iter().copied() {
        let sold = sale.run(technique).await.unwrap_or_else(|why| panic!("{technique:?}: {why}"));
        all.push((technique, sold));
    }
    println!("{}{}", output::table(&all), output::chart(&sale, &all));
    for (technique, sold) in &all {
        if technique.protects() {
            assert_eq!((sold.units, sold.units_left), (ITEMS, 0), "{technique:?}: {sold:?}");
            assert!(sale.is_correct(sold), "{technique:?}: {sold:?}");
        } else {
            assert!(sold.units > ITEMS, "{technique:?}: {sold:?}");
        }
    }
    assert_eq!(output::json(&sale, &all)["techniques"].as_array().map(Vec::len), Some(count));
    assert_eq!(output::svg(&sale, &all).matches("<rect").count(), count + 1, "the background and the bars");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = mariadb::start().await.expect("a MariaDB");
    check_sale(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql() {
    let server = postgres::start().await.expect("a PostgreSQL");
    check_sale(server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = redis::start().await.expect("a Redis");
    check_sale(server.url()).await;
}
