//! The flash sale of the examples, on real servers: without a lock more is sold than there is, with each technique exactly what there is.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

#[path = "../../leasehold/examples/flash_sale/drawing.rs"]
mod drawing;
#[path = "../../leasehold/examples/flash_sale/sale.rs"]
mod sale;
#[path = "../../leasehold/examples/flash_sale/stock.rs"]
mod stock;

use leasehold_testbed::{mariadb, postgres};
use sale::{Sale, TECHNIQUES};

async fn sell(url: String) {
    let sale = Sale { url, buyers: 300, items: 100, at_once: 64 };
    let mut all = Vec::new();
    for technique in TECHNIQUES {
        let sold = sale.hold(technique).await.unwrap_or_else(|why| panic!("{technique:?}: {why}"));
        all.push((technique, sold));
    }
    println!("{}{}", drawing::table(&all), drawing::chart(&sale, &all));
    for (technique, sold) in &all {
        if technique.protects() {
            assert_eq!((sold.units, sold.left), (100, 0), "{technique:?}: {sold:?}");
        } else {
            assert!(sold.units > 100, "{technique:?}: {sold:?}");
        }
    }
    assert_eq!(drawing::json(&sale, &all)["techniques"].as_array().map(Vec::len), Some(5));
    assert_eq!(drawing::svg(&sale, &all).matches("<rect").count(), 6, "the ground and five bars");
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
