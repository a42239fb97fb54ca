use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 10;

fn read_request(lease: u128) -> ReadRequest {
    ReadRequest { lease, lease_time: 5, keep_for: 50, stale_for: 0, early_factor: 0 }
}

fn load(lease: u128, generation: u64, version: u8) -> LoadedValue {
    LoadedValue {
        lease,
        generation,
        data: Some(vec![version]),
        version: None,
        load_cost: 1,
        fresh_for: 100,
        stale_for: 0,
    }
}

fn write_request(mark: u128, token: u64) -> WriteRequest {
    WriteRequest { mark, token, mark_time: 5, stale_for: 0, keep_for: 50 }
}

/// A deliberate mistake in the protocol, to show that the check finds it.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// Every value is accepted, with any lease.
    AcceptAnyLoad,
    /// A writer's value is always stored, regardless of other clients.
    AcceptAnyWrite,
    /// Marks are ignored: the writer only invalidates at its end, which may never come.
    IgnoreMarks,
}

/// What a reader does next. The first number is how often it has loaded again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reader {
    Idle,
    Requesting(u8),
    /// Reads the database, for a value of this generation.
    Loading(u8, u64),
    /// Sends the store this version of the row, for this generation.
    Storing(u8, u64, u8),
    /// Reads the database because the key is marked.
    Bypassing,
    Done,
}

/// What a writer does next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writer {
    Idle,
    /// Commits; the value will have this generation.
    Marked(u64),
    /// Has committed this version of the row, and tells the cache, with this generation.
    Committed(u64, u8),
    Done,
}

/// The state of the whole model at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    entry: CacheEntry,
    /// The version of the row in the database.
    database: u8,
    /// The highest version whose write has returned.
    returned_version: u8,
    /// The readers, each with the lowest version that it may return.
    readers: [(Reader, u8); 2],
    /// The first writer marks the key and commits, the second commits and invalidates.
    writers: [Writer; 2],
    /// How many leases and marks may still expire, and how many evictions may still come.
    faults: [u8; 3],
}

struct ModelCheck {
    flaw: Flaw,
    /// Whether no mark expires or is lost. Then a write counts as soon as it is committed, because
    /// its writer may die right after.
    marks_last: bool,
    seen: HashSet<World>,
    /// The first read that returned too old a value; `None` if there is none.
    violation: Option<String>,
}

impl ModelCheck {
    /// Explores every order of steps. `faults`: how many leases and marks expire, and how many
    /// evictions come.
    fn run(flaw: Flaw, faults: [u8; 3]) -> Self {
        let marks_last = faults[1..] == [0, 0];
        let mut check = Self { flaw, marks_last, seen: HashSet::new(), violation: None };
        check.explore(World {
            entry: CacheEntry::default(),
            database: 1,
            returned_version: 1,
            readers: [(Reader::Idle, 0); 2],
            writers: [Writer::Idle; 2],
            faults,
        });
        check
    }

    fn explore(&mut self, start: World) {
        let mut open = vec![start];
        while let Some(world) = open.pop() {
            if self.violation.is_some() || !self.seen.insert(world.clone()) {
                continue;
            }
            for reader in 0..2 {
                open.extend(self.read(&world, reader));
            }
            for writer in 0..2 {
                open.extend(self.write(&world, writer));
            }
            open.extend(Self::faults(&world));
        }
    }

    fn read(&mut self, world: &World, who: usize) -> Option<World> {
        let mut next = world.clone();
        let (state, floor) = world.readers[who];
        let id = |tries: u8| (who as u128 + 1) * 16 + u128::from(tries);
        next.readers[who].0 = match state {
            Reader::Idle => {
                next.readers[who].1 = world.returned_version;
                Reader::Requesting(0)
            }
            Reader::Requesting(tries) => match next.entry.read(NOW, &read_request(id(tries))) {
                ReadReply::Hit(kept) | ReadReply::Early(kept, _) | ReadReply::Stale(kept) => {
                    self.returns(world, floor, kept.map_or(0, |data| data[0]))
                }
                ReadReply::Load(generation, _) => Reader::Loading(tries, generation),
                ReadReply::Wait(..) => return None,
                ReadReply::WriteInProgress => Reader::Bypassing,
            },
            Reader::Loading(tries, generation) => Reader::Storing(tries, generation, world.database),
            Reader::Storing(tries, generation, version) => {
                let loaded = load(id(tries), generation, version);
                let answer = if self.flaw == Flaw::AcceptAnyLoad {
                    next.entry.set_value(NOW, loaded.data, 1, 100, 0);
                    Ok(())
                } else {
                    next.entry.store(NOW, loaded)
                };
                match answer {
                    Err(StoreRefusal::Invalidated) if tries < 2 => Reader::Requesting(tries + 1),
                    _ => self.returns(world, floor, version),
                }
            }
            Reader::Bypassing => self.returns(world, floor, world.database),
            Reader::Done => return None,
        };
        Some(next)
    }

    /// A reader returns `version`; a violation if that is lower than `floor`.
    fn returns(&mut self, world: &World, floor: u8, version: u8) -> Reader {
        if version < floor {
            self.violation = Some(format!("{version} where {floor} had returned: {world:?}"));
        }
        Reader::Done
    }

    fn write(&mut self, world: &World, who: usize) -> Option<World> {
        let mut next = world.clone();
        let marks = who == 0;
        next.writers[who] = match world.writers[who] {
            Writer::Idle if marks && self.flaw != Flaw::IgnoreMarks => {
                Writer::Marked(next.entry.begin_write(NOW, &write_request(7, 1)).ok()?)
            }
            Writer::Idle => Writer::Marked(0),
            Writer::Marked(generation) => {
                next.database += 1;
                if marks && self.marks_last {
                    next.returned_version = next.database;
                }
                Writer::Committed(generation, next.database)
            }
            Writer::Committed(generation, version) => {
                if self.flaw == Flaw::AcceptAnyWrite && marks {
                    let generation = next.entry.generation;
                    next.entry.finish_write(NOW, 7, Some(load(7, generation, version)), 50);
                } else if marks && self.flaw != Flaw::IgnoreMarks {
                    next.entry.finish_write(NOW, 7, Some(load(7, generation, version)), 50);
                } else {
                    next.entry.invalidate(NOW, 0, 0, 50);
                }
                next.returned_version = next.returned_version.max(version);
                Writer::Done
            }
            Writer::Done => return None,
        };
        Some(next)
    }

    fn faults(world: &World) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut fault = |which: usize, what: &dyn Fn(&mut CacheEntry)| {
            if world.faults[which] > 0 {
                let mut next = world.clone();
                next.faults[which] -= 1;
                what(&mut next.entry);
                worlds.push(next);
            }
        };
        fault(0, &|entry| entry.lease.iter_mut().for_each(|lease| lease.until = NOW));
        fault(1, &|entry| entry.write_mark.iter_mut().for_each(|mark| mark.until = NOW));
        fault(2, &|entry| *entry = CacheEntry::default());
        worlds
    }
}

#[test]
fn no_read_gets_an_older_value_than_was_written_before_it_began() {
    // In the nightly tier all three faults come once; in the gate, two of them.
    let all: &[_] = if cfg!(feature = "nightly") { &[[1, 1, 1]] } else { &[[1, 1, 0], [0, 1, 1]] };
    for faults in all {
        let check = ModelCheck::run(Flaw::None, *faults);
        assert_eq!(check.violation, None);
        assert!(check.seen.len() > 3_000, "only {} states", check.seen.len());
    }
    let check = ModelCheck::run(Flaw::None, [1, 0, 0]);
    assert_eq!(check.violation, None);
}

#[test]
fn the_check_finds_each_flaw() {
    for (flaw, faults) in [
        (Flaw::AcceptAnyLoad, [0, 1, 0]),
        (Flaw::AcceptAnyWrite, [0, 1, 0]),
        (Flaw::IgnoreMarks, [0, 0, 0]),
        (Flaw::AcceptAnyLoad, [0, 1, 1]),
    ] {
        assert!(ModelCheck::run(flaw, faults).violation.is_some(), "{faults:?}");
    }
}

#[test]
fn only_one_reader_loads_and_a_repeated_request_gets_the_same_answer() {
    let mut entry = CacheEntry::default();
    assert_eq!(entry.read(NOW, &read_request(1)), ReadReply::Load(NOW, None));
    assert_eq!(entry.read(NOW, &read_request(1)), ReadReply::Load(NOW, None), "a lost reply");
    assert_eq!(entry.read(NOW + 2, &read_request(2)), ReadReply::Wait(1, 3));
    assert_eq!(entry.store(NOW + 3, load(1, NOW, 8)), Ok(()));
    assert!(matches!(entry.read(NOW + 4, &read_request(2)), ReadReply::Hit(Some(data)) if data == [8]));
}

#[test]
fn an_expired_lease_passes_to_another_reader_and_the_first_value_is_refused() {
    let mut entry = CacheEntry::default();
    entry.read(NOW, &read_request(1));
    assert_eq!(entry.read(NOW + 5, &read_request(2)), ReadReply::Load(NOW, None));
    assert_eq!(entry.store(NOW + 6, load(1, NOW, 1)), Err(StoreRefusal::Overtaken));
    assert_eq!(entry.store(NOW + 6, load(2, NOW, 2)), Ok(()));
    // A lease that no other reader took is valid after its time.
    entry.invalidate(NOW + 7, 0, 0, 50);
    let ReadReply::Load(generation, _) = entry.read(NOW + 8, &read_request(3)) else { panic!("{entry:?}") };
    assert_eq!(entry.store(NOW + 40, load(3, generation, 3)), Ok(()));
}

#[test]
fn an_older_row_is_refused_and_an_older_token_may_not_begin() {
    let mut entry = CacheEntry::default();
    entry.invalidate(NOW, 9, 0, 50);
    let ReadReply::Load(generation, _) = entry.read(NOW, &read_request(1)) else { panic!("{entry:?}") };
    assert_eq!(entry.store(NOW, LoadedValue { version: Some(8), ..load(1, generation, 1) }), Err(StoreRefusal::Older));
    assert!(entry.begin_write(NOW, &write_request(1, 5)).is_ok());
    assert_eq!(entry.begin_write(NOW, &write_request(2, 4)), Err(5));
    assert!(entry.extend_write(NOW + 4, 1, 5, 50) && !entry.extend_write(NOW + 20, 1, 5, 50));
}

#[test]
fn not_found_is_refused_after_an_announced_row_unless_its_writer_reports_it() {
    let no_row = |lease, generation| LoadedValue { data: None, ..load(lease, generation, 0) };
    let mut entry = CacheEntry::default();
    entry.invalidate(NOW, 9, 0, 50);
    let ReadReply::Load(generation, _) = entry.read(NOW, &read_request(1)) else { panic!("{entry:?}") };
    assert_eq!(entry.clone().store(NOW + 50, no_row(1, generation)), Ok(()), "after the longest load");
    assert_eq!(entry.store(NOW + 49, no_row(1, generation)), Err(StoreRefusal::NoRow));
    assert_eq!(entry.lease, None, "the next reader may try at once");
    let generation = entry.begin_write(NOW, &write_request(7, 1)).unwrap();
    assert_eq!(entry.finish_write(NOW, 7, Some(no_row(7, generation)), 50), WriteEnd::MarkHeld);
    assert!(matches!(entry.read(NOW, &read_request(2)), ReadReply::Hit(None)));
    // A row that only a loader reported may have been deleted.
    let mut entry = CacheEntry::default();
    let ReadReply::Load(generation, _) = entry.read(NOW, &read_request(1)) else { panic!("{entry:?}") };
    entry.store(NOW, LoadedValue { version: Some(9), ..load(1, generation, 1) }).unwrap();
    entry.invalidate(NOW, 0, 0, 50);
    let ReadReply::Load(generation, _) = entry.read(NOW, &read_request(2)) else { panic!("{entry:?}") };
    assert_eq!(entry.store(NOW, no_row(2, generation)), Ok(()));
}

#[test]
fn stale_values_are_served_during_a_load_for_a_bounded_time() {
    let stale = |lease| ReadRequest { stale_for: 20, ..read_request(lease) };
    let mut entry = CacheEntry::default();
    entry.read(NOW, &stale(1));
    entry.store(NOW, LoadedValue { stale_for: 20, ..load(1, NOW, 1) }).unwrap();
    entry.invalidate(NOW + 1, 0, 20, 50);
    assert!(matches!(entry.read(NOW + 2, &stale(2)), ReadReply::Load(_, Some(_))));
    assert!(matches!(entry.read(NOW + 3, &stale(3)), ReadReply::Stale(_)));
    assert!(matches!(entry.clone().read(NOW + 3, &read_request(4)), ReadReply::Wait(2, _)), "not to strong readers");
    assert!(matches!(entry.read(NOW + 21, &stale(5)), ReadReply::Load(_, None)));
}

/// After the clock is set back, a value, a dead loader's lease and a dead writer's mark last only
/// for the time left at the last write.
#[test]
fn a_clock_that_is_set_back_makes_nothing_last_longer() {
    const BEFORE: u64 = 1_000_000;
    let mut value = CacheEntry::default();
    let ReadReply::Load(generation, _) = value.read(BEFORE, &read_request(1)) else { panic!("{value:?}") };
    value.store(BEFORE, load(1, generation, 1)).unwrap();
    let mut lease = CacheEntry::default();
    lease.read(BEFORE, &read_request(1));
    let mut mark = CacheEntry::default();
    mark.begin_write(BEFORE, &write_request(7, 1)).unwrap();
    assert!(matches!(value.read(NOW, &read_request(2)), ReadReply::Hit(Some(_))));
    assert!(matches!(value.read(NOW + 99, &read_request(2)), ReadReply::Hit(Some(_))));
    assert!(matches!(value.read(NOW + 100, &read_request(2)), ReadReply::Load(of, _) if of == generation));
    assert_eq!(lease.read(NOW, &read_request(2)), ReadReply::Wait(1, 5));
    assert!(matches!(lease.read(NOW + 5, &read_request(2)), ReadReply::Load(..)));
    assert_eq!(mark.read(NOW, &read_request(2)), ReadReply::WriteInProgress);
    assert!(matches!(mark.read(NOW + 5, &read_request(2)), ReadReply::Load(of, _) if of > BEFORE));
}

/// The writer's mark had expired, and a reader stored a value that it had read before the commit.
#[test]
fn an_overtaken_writer_makes_the_cached_value_stale() {
    let stale = |lease| ReadRequest { stale_for: 20, ..read_request(lease) };
    let mut entry = CacheEntry::default();
    let of = entry.begin_write(NOW, &WriteRequest { stale_for: 20, ..write_request(7, 1) }).unwrap();
    let ReadReply::Load(generation, None) = entry.read(NOW + 5, &stale(1)) else { panic!("{entry:?}") };
    entry.store(NOW + 5, LoadedValue { fresh_for: 1000, stale_for: 20, ..load(1, generation, 1) }).unwrap();
    for written in [None, Some(load(7, of, 2))] {
        let mut entry = entry.clone();
        assert_eq!(entry.finish_write(NOW + 10, 7, written, 50), WriteEnd::Overtaken);
        assert!(matches!(entry.clone().read(NOW + 29, &stale(2)), ReadReply::Load(_, Some(_))));
        assert!(
            matches!(entry.read(NOW + 30, &stale(2)), ReadReply::Load(_, None)),
            "for longer than it may be served"
        );
    }
}

proptest! {
    /// The generation never falls while there is a record, and a value that is served as fresh
    /// belongs to the present generation.
    #[test]
    fn generations_rise(steps in prop::collection::vec((0u8..7, 1u128..4, 0u64..8, prop::bool::weighted(0.05)), 1..60)) {
        let (mut entry, mut now, mut last) = (CacheEntry::default(), 10 * NOW, 0);
        for (step, id, pause, back) in steps {
            now = if back { NOW } else { now + pause };
            let before = entry.clone();
            match step {
                0 | 1 => {
                    let found = entry.read(now, &ReadRequest { early_factor: 500, ..read_request(id) });
                    if let ReadReply::Hit(_) | ReadReply::Early(..) = found {
                        let kept = entry.value.as_ref().unwrap();
                        prop_assert!(kept.generation == entry.generation && entry.write_mark.is_none() && now < kept.fresh_until);
                    }
                }
                2 => {
                    let set = entry.store(now, load(id, before.generation, 1));
                    prop_assert_eq!(set.is_ok(), before.lease.is_some_and(|lease| lease.id == id)
                        && before.write_mark.is_none());
                }
                3 => entry.invalidate(now, 0, 0, 50),
                4 => drop(entry.begin_write(now, &write_request(id, id as u64))),
                5 => drop(entry.extend_write(now, id, 5, 50)),
                _ => drop(entry.finish_write(now, id, None, 50)),
            }
            prop_assert!(entry.generation >= last);
            prop_assert!(entry.lease.is_none() || entry.write_mark.is_none(), "no reader loads while a client writes");
            last = entry.generation;
        }
    }

    #[test]
    fn early_reloads_are_rare_while_much_time_is_left(beta in 0.1f64..3.0, random: u32) {
        prop_assert!(early_factor(beta, random) <= early_factor(beta, random / 2));
        prop_assert!(early_factor(beta, u32::MAX) == 0 && early_factor(0.0, random) == 0);
    }

    #[test]
    fn jitter_only_shortens(ms in 1u64..100_000, jitter in 0.0f64..1.0, random: u32) {
        let (ttl, less) = (Duration::from_millis(ms), jittered(Duration::from_millis(ms), jitter, random));
        prop_assert!(less <= ttl && less >= ttl.mul_f64(1.0 - jitter) - Duration::from_nanos(10));
    }
}
