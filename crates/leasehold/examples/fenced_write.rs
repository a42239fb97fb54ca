//! Why a lock needs a token: a holder that was paused for too long writes all the same. A store that checks tokens refuses
//! it; a naive one beside it does not. `cargo run -p leasehold --example fenced_write`
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::fence::Fence;
use leasehold::{Locks, Result, Token};

/// Two stores of one number: one asks for the token, one trusts whoever comes.
#[derive(Default)]
struct Stores {
    fence: Fence,
    fenced: u32,
    naive: u32,
}

impl Stores {
    fn write(&mut self, who: &str, token: Token, value: u32) {
        self.naive = value;
        match self.fence.admit("stock:42", token) {
            Ok(()) => self.fenced = value,
            Err(stale) => println!("{who}: refused by the fenced store: {stale}"),
        }
        println!("{who} wrote {value} with token {token}: fenced {}, naive {}", self.fenced, self.naive);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let hand = ManualClock::new(); // so that a pause of a minute takes no time
    let locks = Locks::builder().clock(hand.clock()).ttl(Duration::from_secs(30)).open("memory:").await?;
    let mut stores = Stores::default();

    let slow = locks.mutex("stock:42").lock().await?;
    println!("slow holds it with token {} and is paused for a minute: its lease ends", slow.token());
    hand.advance(Duration::from_secs(60));

    let quick = locks.mutex("stock:42").lock().await?;
    stores.write("quick", quick.token(), 7);

    println!("slow wakes up; is_held() would say {}, but it does not ask", slow.is_held());
    stores.write("slow", slow.token(), 99);

    println!(
        "at the end: fenced {} (right), naive {} (overwritten by a holder that had lost its lock)",
        stores.fenced, stores.naive
    );
    assert_eq!((stores.fenced, stores.naive), (7, 99));
    quick.release().await.map(drop)
}
