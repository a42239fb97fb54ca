use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::engine::LockOptions;
use crate::types::{ErrorKind, Holder};

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

#[test]
fn file_names_stay_inside_the_folder_and_are_unique() {
    let long = "x".repeat(511);
    let names = [
        ".",
        "..",
        "../../etc/passwd",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "A",
        "a",
        "a ",
        "é",
        "e\u{301}",
        "%",
        "~",
        "-rf",
        ".x",
        "x.",
        &format!("{long}a"),
        &format!("{long}b"),
        &"é".repeat(256),
    ];
    let files: HashSet<_> = names.iter().map(|n| file_name(&name(n))).collect();
    assert_eq!(files.len(), names.len());
    for file in files {
        assert!(!file.contains('/') && !file.starts_with('.') && file.len() <= 255, "{file}");
    }
}

#[test]
fn a_damaged_header_is_refused() {
    let page = first_page(&name("a"), 7);
    assert_eq!(read_counters(&page).unwrap().last, 7);
    for at in COUNTERS_OFFSET..COUNTERS_OFFSET + 56 {
        let mut bad = page.clone();
        bad[at] ^= 1;
        assert!(read_counters(&bad).is_err(), "byte {at}");
    }
    assert!(lock_name_in(&[0; PAGE_SIZE]).is_err());
    assert!(check_format(&page).is_ok() && check_format(&[0; PAGE_SIZE]).is_ok());
    let mut newer = page;
    newer[7] = b'2';
    assert_eq!(check_format(&newer).unwrap_err().kind(), ErrorKind::UnknownFormat);
    assert!(after_format("1 7").unwrap() == Some("7") && after_format("7").unwrap().is_none());
    assert_eq!(after_format("2 7").unwrap_err().kind(), ErrorKind::UnknownFormat);
}

fn contender(id: u128, mode: Mode, owner: Option<u128>, text: &str) -> Contender<ContenderDetails> {
    let holder = Arc::new(Holder::new("h", 1, "p", text));
    let options = LockOptions::new(name("n"), mode, None, Duration::from_secs(30), holder);
    Contender {
        claim: ClaimId::from_bits(id),
        owner: owner.map(Owner::from_bits),
        mode,
        ttl: Duration::from_secs(30),
        expires_at: Instant::from_nanos(5),
        token: Token(id as u64),
        order: id as u64,
        details: ContenderDetails {
            client: 9,
            since: Instant::from_nanos(3),
            slot: SlotRef::New(Arc::new(Claim::new(Arc::new(options)))),
        },
    }
}

type Comparable = (ClaimId, Option<Owner>, Mode, Token, u64, Instant, u128);

fn comparable(table: &LockTable<ContenderDetails>) -> (Vec<Comparable>, Vec<Comparable>) {
    let of =
        |p: &Contender<ContenderDetails>| (p.claim, p.owner, p.mode, p.token, p.order, p.expires_at, p.details.client);
    (table.holders.iter().map(of).collect(), table.waiters.iter().map(of).collect())
}

proptest! {
    #[test]
    fn any_two_names_have_two_files(a in "\\PC{1,80}", b in "\\PC{1,80}") {
        let (Ok(a), Ok(b)) = (LockName::new(&a), LockName::new(&b)) else { return Ok(()) };
        prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        if file_name(&a).len() < 100 {
            prop_assert_eq!(name_from_file_name(&file_name(&a)), a.as_str());
        }
    }

    #[test]
    fn a_table_is_read_back_as_it_was_written(
        contenders in prop::collection::vec((0u8..3, prop::option::of(any::<u128>()), any::<bool>(), "\\PC{0,40}"), 0..20),
        drop_every in 2usize..5,
    ) {
        let mut table = LockTable::default();
        for (id, (mode, owner, held, text)) in contenders.iter().enumerate() {
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, limit: 3 }][usize::from(*mode)];
            let contender = contender(id as u128 + 1, mode, *owner, text);
            if *held { table.holders.push(contender) } else { table.waiters.push_back(contender) }
        }
        let mut image = first_page(&name("n"), 0);
        let changes = write_table(&mut image, 0, &table);
        let slots = changes.slots;
        let mut read = super::read_table(&image, slots).unwrap();
        prop_assert_eq!(comparable(&read), comparable(&table));
        for (id, (.., written)) in contenders.iter().enumerate() {
            let all = read.holders.iter().chain(&read.waiters);
            let contender = all.into_iter().find(|p| p.claim.bits() == id as u128 + 1).unwrap();
            let SlotRef::Slot(slot) = contender.details.slot else { panic!("read from a slot") };
            prop_assert_eq!(changes.texts.contains(&slot), !written.is_empty());
            prop_assert_eq!(text_position(&image, slot).1, written.len());
        }
        // Some leave and one comes: the others stay as they are.
        read.holders.retain(|p| !(p.claim.bits() as usize).is_multiple_of(drop_every));
        read.waiters.push_back(contender(1000, Mode::Exclusive, None, "new"));
        let changes = write_table(&mut image, slots, &read);
        let left = contenders.iter().enumerate().filter(|(id, contender)| contender.2 && (id + 1).is_multiple_of(drop_every)).count();
        prop_assert_eq!(changes.taken.len(), 1, "no other contender is written again");
        prop_assert_eq!(changes.freed.len(), left.saturating_sub(1), "one slot was filled again");
        let slots = changes.slots;
        prop_assert_eq!(comparable(&super::read_table(&image, slots).unwrap()), comparable(&read));
    }
}
