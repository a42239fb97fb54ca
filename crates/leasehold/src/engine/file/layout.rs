//! The layout of a lock file, and its name.
//!
//! ```text
//! 0     magic with the format number, name            written once
//! 960   last, reserved and intended token, boot, slots the counters
//! 1024  slot 0 (128 bytes), slot 1, …                 32 to a page, none across a page's end; each with its checksum
//! 2 Mi  text 0 (256 bytes), text 1, …                 the description of each slot's contender
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::clock::Instant;
use crate::engine::Claim;
use crate::logic::table::{Contender, LockTable};
use crate::types::{ClaimId, Error, FORMAT, LockName, MAX_DESCRIPTION, MAX_NAME, Mode, Owner, Token};

/// The last byte is the format number.
const MAGIC: &[u8; 8] = &[b'L', b'E', b'A', b'S', b'E', b'H', b'D', b'0' + FORMAT as u8];
pub(super) const PAGE_SIZE: usize = 4096;
pub(super) const COUNTERS_OFFSET: usize = 960;
pub(super) const SLOTS_OFFSET: usize = 1024;
pub(super) const SLOT_SIZE: usize = 128;
/// The position of a slot's checksum, which covers all bytes before it.
const CHECKSUM_OFFSET: usize = 112;
const TEXTS_OFFSET: u64 = 1 << 21;
/// The number of slots that fit before the texts.
pub(super) const MAX_SLOTS: u64 = 16_000;

/// How many tokens are put on disk at a time.
pub(super) const TOKEN_BLOCK: u64 = 4096;

/// The client of a contender, and where the contender's record is.
#[derive(Clone, Debug)]
pub(super) struct ContenderDetails {
    pub(super) client: u128,
    pub(super) since: Instant,
    pub(super) slot: SlotRef,
}

/// A contender's record: in a slot of the file already, or still to be written.
#[derive(Clone, Debug)]
pub(super) enum SlotRef {
    Slot(usize),
    /// With the description of the claim.
    New(Arc<Claim>),
}

/// The part of the header that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Counters {
    /// The last token granted.
    pub(super) last: u64,
    /// Tokens up to here are on disk as used.
    pub(super) reserved: u64,
    /// Tokens up to here may be on disk as used: written, but perhaps not synced yet.
    pub(super) intent: u64,
    /// The boot in which the slots were written.
    pub(super) boot: u128,
    /// How many slots may be in use.
    pub(super) slots: u64,
}

/// The offset of a slot.
pub(super) fn slot_offset(index: usize) -> usize {
    SLOTS_OFFSET + index * SLOT_SIZE
}

/// A new file's first page.
pub(super) fn first_page(name: &LockName, floor: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE_SIZE];
    page[..8].copy_from_slice(MAGIC);
    let bytes = name.as_str().as_bytes();
    page[8..10].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    page[10..10 + bytes.len()].copy_from_slice(bytes);
    write_counters(&mut page, Counters { last: floor, reserved: floor, intent: floor, ..Counters::default() });
    page
}

/// Refuses a first page in another format.
pub(super) fn check_format(page: &[u8]) -> Result<(), Error> {
    match (page.get(..7), page.get(7)) {
        (Some(start), Some(format)) if start == &MAGIC[..7] && *format != MAGIC[7] => {
            Err(Error::unknown_format(char::from(*format), FORMAT))
        }
        _ => Ok(()),
    }
}

/// The rest of a one-line file behind the format number and a blank; `None` if it has none.
pub(super) fn after_format(text: &str) -> Result<Option<&str>, Error> {
    match text.split_once(' ') {
        Some((format, rest)) if format.parse() == Ok(FORMAT) => Ok(Some(rest)),
        Some((format, _)) if format.parse::<u32>().is_ok() => Err(Error::unknown_format(format, FORMAT)),
        _ => Ok(None),
    }
}

/// The lock name in a file's first page.
pub(super) fn lock_name_in(page: &[u8]) -> Result<&str, &'static str> {
    if page.get(..8) != Some(MAGIC.as_slice()) {
        return Err("it does not begin like a lock file");
    }
    let length = usize::from(u16::from_le_bytes([page[8], page[9]]));
    let bytes = page.get(10..10 + length).filter(|_| length <= MAX_NAME).ok_or("its name is too long")?;
    std::str::from_utf8(bytes).map_err(|_| "its name is not UTF-8")
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut value = [0; 16];
    value.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(value)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

/// Each word times an odd number of its own, so that any change of one word changes the sum.
fn checksum(bytes: &[u8]) -> u64 {
    let word = |at: usize| u64_at(bytes, at).wrapping_mul(0x9E37_79B9_7F4A_7C15 + 2 * at as u64);
    (0..bytes.len()).step_by(8).fold(0x6C65_6173_6568_6F6C, |sum, at| sum.wrapping_add(word(at)))
}

/// Reads the counters, and refuses damaged ones.
pub(super) fn read_counters(page: &[u8]) -> Result<Counters, &'static str> {
    let area = &page[COUNTERS_OFFSET..SLOTS_OFFSET];
    if u64_at(area, 48) != checksum(&area[..48]) {
        return Err("the checksum of its counters is wrong");
    }
    let counters = Counters {
        last: u64_at(area, 0),
        reserved: u64_at(area, 8),
        boot: u128_at(area, 16),
        slots: u64_at(area, 32),
        intent: u64_at(area, 40),
    };
    if counters.last > counters.reserved || counters.reserved > counters.intent || counters.slots > MAX_SLOTS {
        return Err("its counters are inconsistent");
    }
    Ok(counters)
}

/// Writes the counters.
pub(super) fn write_counters(page: &mut [u8], counters: Counters) {
    let area = &mut page[COUNTERS_OFFSET..SLOTS_OFFSET];
    area[0..8].copy_from_slice(&counters.last.to_le_bytes());
    area[8..16].copy_from_slice(&counters.reserved.to_le_bytes());
    area[16..32].copy_from_slice(&counters.boot.to_le_bytes());
    area[32..40].copy_from_slice(&counters.slots.to_le_bytes());
    area[40..48].copy_from_slice(&counters.intent.to_le_bytes());
    let sum = checksum(&area[..48]);
    area[48..56].copy_from_slice(&sum.to_le_bytes());
}

const FREE: u8 = 0;
const WAITING: u8 = 1;
const HELD: u8 = 2;

/// Whether a slot is in use.
pub(super) fn is_in_use(image: &[u8], index: usize) -> bool {
    image[slot_offset(index)] != FREE
}

/// The position and length of a slot's text.
pub(super) fn text_position(image: &[u8], index: usize) -> (u64, usize) {
    let slot = &image[slot_offset(index)..slot_offset(index) + SLOT_SIZE];
    let length = usize::from(u16::from_le_bytes([slot[104], slot[105]])).min(MAX_DESCRIPTION);
    (TEXTS_OFFSET + (index * MAX_DESCRIPTION) as u64, length)
}

/// Reads all slots into a table.
pub(super) fn read_table(image: &[u8], slots: usize) -> Result<LockTable<ContenderDetails>, &'static str> {
    // Sorts the slots' indices, because the records are large.
    let mut order: Vec<(u64, usize)> = Vec::with_capacity(slots);
    let mut holders = 0;
    for index in 0..slots {
        let slot = &image[slot_offset(index)..slot_offset(index + 1)];
        match slot[0] {
            FREE if slot.iter().all(|byte| *byte == 0) => {}
            WAITING | HELD if u64_at(slot, CHECKSUM_OFFSET) == checksum(&slot[..CHECKSUM_OFFSET]) => {
                holders += usize::from(slot[0] == HELD);
                order.push((u64_at(slot, 72), index));
            }
            _ => return Err("a slot is not as it was written"),
        }
    }
    order.sort_unstable();
    let mut table = LockTable {
        holders: Vec::with_capacity(holders.max(1)),
        waiters: VecDeque::with_capacity(order.len() - holders + 1),
    };
    for (_, index) in order {
        let slot = &image[slot_offset(index)..slot_offset(index + 1)];
        let contender = read_contender(slot, index)?;
        if slot[0] == HELD { table.holders.push(contender) } else { table.waiters.push_back(contender) }
    }
    Ok(table)
}

fn read_contender(slot: &[u8], index: usize) -> Result<Contender<ContenderDetails>, &'static str> {
    let mode = match slot[1] {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        2 => Mode::Permits { n: u32_at(slot, 4), limit: u32_at(slot, 8) },
        _ => return Err("a slot has an unknown mode"),
    };
    Ok(Contender {
        claim: ClaimId::from_bits(u128_at(slot, 16)),
        owner: (slot[2] == 1).then(|| Owner::from_bits(u128_at(slot, 32))),
        mode,
        ttl: Duration::from_nanos(u64_at(slot, 88)),
        expires_at: Instant::from_nanos(u64_at(slot, 80)),
        token: Token(u64_at(slot, 64)),
        order: u64_at(slot, 72),
        details: ContenderDetails {
            client: u128_at(slot, 48),
            since: Instant::from_nanos(u64_at(slot, 96)),
            slot: SlotRef::Slot(index),
        },
    })
}

/// What `write_table` changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TableChanges {
    /// How many slots are in use now.
    pub(super) slots: usize,
    /// Slots that became free.
    pub(super) freed: Vec<usize>,
    /// Slots that were filled, or whose contender changed.
    pub(super) taken: Vec<usize>,
    /// The filled slots that have a text.
    pub(super) texts: Vec<usize>,
}

/// Writes a table over `image`: each known contender in its slot, new ones in free slots. `slots`
/// were in use before.
pub(super) fn write_table(image: &mut Vec<u8>, slots: usize, table: &LockTable<ContenderDetails>) -> TableChanges {
    let contenders = || table.holders.iter().map(|p| (HELD, p)).chain(table.waiters.iter().map(|p| (WAITING, p)));
    let mut changes = TableChanges::default();
    let mut is_kept = vec![false; slots];
    for (state, contender) in contenders() {
        if let SlotRef::Slot(index) = contender.details.slot {
            is_kept[index] = true;
            let slot = &mut image[slot_offset(index)..slot_offset(index + 1)];
            if !is_up_to_date(slot, state, contender) {
                write_contender(slot, state, contender);
                changes.taken.push(index);
            }
        }
    }
    for index in (0..slots).filter(|index| !is_kept[*index] && is_in_use(image, *index)) {
        changes.freed.push(index);
    }
    for (state, contender) in contenders() {
        if let SlotRef::New(claim) = &contender.details.slot {
            let index = is_kept.iter().position(|is_kept| !is_kept).unwrap_or(is_kept.len());
            if index == is_kept.len() {
                is_kept.push(true);
                image.resize(slot_offset(index + 1).max(image.len()), 0);
            }
            is_kept[index] = true;
            let slot = &mut image[slot_offset(index)..slot_offset(index + 1)];
            slot.fill(0);
            let text = claim.options.holder.description.len().min(MAX_DESCRIPTION);
            slot[104..106].copy_from_slice(&(text as u16).to_le_bytes());
            write_contender(slot, state, contender);
            changes.taken.push(index);
            if text > 0 {
                changes.texts.push(index);
            }
        }
    }
    // A slot that was left and filled again in one step was not freed.
    changes.freed.retain(|index| !is_kept[*index]);
    for index in &changes.freed {
        image[slot_offset(*index)..slot_offset(*index + 1)].fill(0);
    }
    changes.slots = is_kept.iter().rposition(|is_kept| *is_kept).map_or(0, |last| last + 1);
    changes
}

/// Whether a contender's record is up to date. These are the only fields that change while a
/// contender has a slot.
fn is_up_to_date(slot: &[u8], state: u8, contender: &Contender<ContenderDetails>) -> bool {
    slot[0] == state
        && u64_at(slot, 64) == contender.token.0
        && u64_at(slot, 72) == contender.order
        && u64_at(slot, 80) == contender.expires_at.as_nanos()
        && u64_at(slot, 96) == contender.details.since.as_nanos()
}

/// Writes a contender's record; the length of its text is written already.
fn write_contender(slot: &mut [u8], state: u8, contender: &Contender<ContenderDetails>) {
    let (mode, n, limit) = match contender.mode {
        Mode::Exclusive => (0, 0, 0),
        Mode::Shared => (1, 0, 0),
        Mode::Permits { n, limit } => (2, n, limit),
    };
    slot[0] = state;
    slot[1] = mode;
    slot[2] = u8::from(contender.owner.is_some());
    slot[4..8].copy_from_slice(&u32::to_le_bytes(n));
    slot[8..12].copy_from_slice(&u32::to_le_bytes(limit));
    slot[16..32].copy_from_slice(&contender.claim.bits().to_le_bytes());
    slot[32..48].copy_from_slice(&contender.owner.map_or(0, Owner::bits).to_le_bytes());
    slot[48..64].copy_from_slice(&contender.details.client.to_le_bytes());
    slot[64..72].copy_from_slice(&contender.token.0.to_le_bytes());
    slot[72..80].copy_from_slice(&contender.order.to_le_bytes());
    slot[80..88].copy_from_slice(&contender.expires_at.as_nanos().to_le_bytes());
    slot[88..96].copy_from_slice(&u64::try_from(contender.ttl.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    slot[96..104].copy_from_slice(&contender.details.since.as_nanos().to_le_bytes());
    let sum = checksum(&slot[..CHECKSUM_OFFSET]);
    slot[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].copy_from_slice(&sum.to_le_bytes());
}

/// The file name of a lock: plain characters unchanged, all others as `%XX`. A name that is too
/// long for a file is shortened and made unique by its SHA-256. No two locks have the same file
/// name, and none points outside the folder.
pub(super) fn file_name(name: &LockName) -> String {
    const LONGEST: usize = 200;
    const HEAD: usize = 100;
    let mut encoded = String::with_capacity(name.as_str().len() + 1);
    for (at, byte) in name.as_str().bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || (byte == b'.' && at > 0);
        if plain {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() <= LONGEST {
        return encoded;
    }
    encoded.truncate(HEAD);
    // `~` is in no short name, so the files of long and short names never collide.
    encoded.push('~');
    for byte in Sha256::digest(name.as_str().as_bytes()) {
        encoded.push_str(&format!("{byte:02x}"));
    }
    encoded
}

/// The lock name for a file name; for a long name only its beginning is known.
pub(super) fn name_from_file_name(file: &str) -> String {
    let mut bytes = Vec::with_capacity(file.len());
    let mut rest = file.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
