//! The library in ten lines: `cargo run -p leasehold-examples --bin ten_lines`
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use leasehold::{Locks, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let locks = Locks::open("memory:").await?; // or file:, to share them between processes
    let guard = locks.mutex("stock:42").lock().await?; // queues until granted; the keeper renews it
    println!("held with token {}, for {:.0?} unless renewed", guard.token(), guard.remaining());
    println!(
        "another client at the same time: {:?}",
        locks.mutex("stock:42").try_lock().await?.map(|other| other.token())
    );
    let left = guard.protect(async { 41 }).await?; // dropped if the lock is lost
    println!("{left} left, written while the lock was held");
    println!("released: {:?}", guard.release().await?);
    println!("the next holder: {:?}", locks.mutex("stock:42").try_lock().await?.map(|next| next.token()));
    Ok(())
}
