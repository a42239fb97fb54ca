//! Random bits from the operating system, fetched some hundred at a time.

use std::cell::RefCell;

/// How many values one call to the system brings.
const STOCK: usize = 256;

struct Stock {
    bytes: [u8; STOCK * 16],
    left: usize,
}

thread_local! {
    static RANDOM: RefCell<Stock> = const { RefCell::new(Stock { bytes: [0; STOCK * 16], left: 0 }) };
}

/// 128 random bits.
pub(crate) fn bits() -> u128 {
    RANDOM.with_borrow_mut(|stock| {
        if stock.left == 0 {
            #[allow(clippy::expect_used, reason = "without randomness no claim is unique: nothing could go on safely")]
            getrandom::fill(&mut stock.bytes).expect("the operating system gives random bytes");
            stock.left = STOCK;
        }
        stock.left -= 1;
        let at = stock.left * 16;
        let mut value = [0; 16];
        value.copy_from_slice(&stock.bytes[at..at + 16]);
        stock.bytes[at..at + 16].fill(0);
        u128::from_ne_bytes(value)
    })
}
