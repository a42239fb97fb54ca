use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 10;

fn ask(lease: u128) -> Ask {
    Ask { lease, lease_for: 5, keep_for: 50, stale_for: 0, early: 0 }
}

fn load(lease: u128, generation: u64, version: u8) -> Load {
    Load { lease, generation, data: Some(vec![version]), version: None, cost: 1, fresh_for: 100, stale_for: 0 }
}

fn begin(mark: u128, token: u64) -> Begin {
    Begin { mark, token, mark_for: 5, stale_for: 0, keep_for: 50 }
}

/// Deliberate mistakes, to show that the check finds them.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Ours,
    /// Every value is accepted, whatever its lease.
    AnySet,
    /// A writer's value is always stored, whatever other clients did meanwhile.
    AnyFinish,
    /// Marks are ignored: the writer only invalidates at its end, which may never come.
    NoMark,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reader {
    Away,
    Asks(u8),
    Loads(u8, u64),
    Brings(u8, u64, u8),
    Bypasses,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writer {
    Away,
    Begun(u64),
    Committed(u64, u8),
    Done,
}

/// The state of everything at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    entry: Entry,
    database: u8,
    /// The highest version whose write has returned.
    returned: u8,
    readers: [(Reader, u8); 2],
    /// The first marks and commits, the second commits and invalidates.
    writers: [Writer; 2],
    /// How many leases and marks may still expire, and how many evictions may still come.
    faults: [u8; 3],
}

struct Check {
    rule: Rule,
    /// No mark expires or is lost: a write counts as soon as it is committed, since its writer may
    /// die then.
    marks_stand: bool,
    seen: HashSet<World>,
    wrong: Option<String>,
}

impl Check {
    fn run(rule: Rule, faults: [u8; 3]) -> Self {
        let marks_stand = faults[1..] == [0, 0];
        let mut check = Self { rule, marks_stand, seen: HashSet::new(), wrong: None };
        check.walk(World {
            entry: Entry::default(),
            database: 1,
            returned: 1,
            readers: [(Reader::Away, 0); 2],
            writers: [Writer::Away; 2],
            faults,
        });
        check
    }

    fn walk(&mut self, start: World) {
        let mut open = vec![start];
        while let Some(world) = open.pop() {
            if self.wrong.is_some() || !self.seen.insert(world.clone()) {
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
            Reader::Away => {
                next.readers[who].1 = world.returned;
                Reader::Asks(0)
            }
            Reader::Asks(tries) => match next.entry.ask(NOW, &ask(id(tries))) {
                Found::Hit(kept) | Found::Early(kept, _) | Found::Stale(kept) => {
                    self.returns(world, floor, kept.map_or(0, |data| data[0]))
                }
                Found::Load(generation, _) => Reader::Loads(tries, generation),
                Found::Wait(..) => return None,
                Found::Written => Reader::Bypasses,
            },
            Reader::Loads(tries, generation) => Reader::Brings(tries, generation, world.database),
            Reader::Brings(tries, generation, version) => {
                let brought = load(id(tries), generation, version);
                let answer = if self.rule == Rule::AnySet {
                    next.entry.fill(NOW, brought.data, 1, 100, 0);
                    Ok(())
                } else {
                    next.entry.set(NOW, brought)
                };
                match answer {
                    Err(Refused::Invalidated) if tries < 2 => Reader::Asks(tries + 1),
                    _ => self.returns(world, floor, version),
                }
            }
            Reader::Bypasses => self.returns(world, floor, world.database),
            Reader::Done => return None,
        };
        Some(next)
    }

    fn returns(&mut self, world: &World, floor: u8, version: u8) -> Reader {
        if version < floor {
            self.wrong = Some(format!("{version} where {floor} had returned: {world:?}"));
        }
        Reader::Done
    }

    fn write(&mut self, world: &World, who: usize) -> Option<World> {
        let mut next = world.clone();
        let marks = who == 0;
        next.writers[who] = match world.writers[who] {
            Writer::Away if marks && self.rule != Rule::NoMark => {
                Writer::Begun(next.entry.begin(NOW, &begin(7, 1)).ok()?)
            }
            Writer::Away => Writer::Begun(0),
            Writer::Begun(generation) => {
                next.database += 1;
                if marks && self.marks_stand {
                    next.returned = next.database;
                }
                Writer::Committed(generation, next.database)
            }
            Writer::Committed(generation, version) => {
                if self.rule == Rule::AnyFinish && marks {
                    let generation = next.entry.generation;
                    next.entry.finish(NOW, 7, Some(load(7, generation, version)), 50);
                } else if marks && self.rule != Rule::NoMark {
                    next.entry.finish(NOW, 7, Some(load(7, generation, version)), 50);
                } else {
                    next.entry.invalidate(NOW, 0, 0, 50);
                }
                next.returned = next.returned.max(version);
                Writer::Done
            }
            Writer::Done => return None,
        };
        Some(next)
    }

    fn faults(world: &World) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut fault = |which: usize, what: &dyn Fn(&mut Entry)| {
            if world.faults[which] > 0 {
                let mut next = world.clone();
                next.faults[which] -= 1;
                what(&mut next.entry);
                worlds.push(next);
            }
        };
        fault(0, &|entry| entry.lease.iter_mut().for_each(|lease| lease.until = NOW));
        fault(1, &|entry| entry.mark.iter_mut().for_each(|mark| mark.until = NOW));
        fault(2, &|entry| *entry = Entry::default());
        worlds
    }
}

#[test]
fn no_read_gets_less_than_what_had_been_written_before_it_began() {
    // Every fault once, together; in the gate, in pairs.
    let all: &[_] = if cfg!(feature = "nightly") { &[[1, 1, 1]] } else { &[[1, 1, 0], [0, 1, 1]] };
    for faults in all {
        let check = Check::run(Rule::Ours, *faults);
        assert_eq!(check.wrong, None);
        assert!(check.seen.len() > 3_000, "only {} states", check.seen.len());
    }
    let check = Check::run(Rule::Ours, [1, 0, 0]);
    assert_eq!(check.wrong, None);
}

#[test]
fn the_check_finds_what_is_wrong() {
    for (rule, faults) in
        [(Rule::AnySet, [0, 1, 0]), (Rule::AnyFinish, [0, 1, 0]), (Rule::NoMark, [0, 0, 0]), (Rule::AnySet, [0, 1, 1])]
    {
        assert!(Check::run(rule, faults).wrong.is_some(), "{faults:?}");
    }
}

#[test]
fn only_one_of_many_loads_and_the_same_request_is_the_same_one() {
    let mut entry = Entry::default();
    assert_eq!(entry.ask(NOW, &ask(1)), Found::Load(NOW, None));
    assert_eq!(entry.ask(NOW, &ask(1)), Found::Load(NOW, None), "a lost reply");
    assert_eq!(entry.ask(NOW + 2, &ask(2)), Found::Wait(1, 3));
    assert_eq!(entry.set(NOW + 3, load(1, NOW, 8)), Ok(()));
    assert!(matches!(entry.ask(NOW + 4, &ask(2)), Found::Hit(Some(data)) if data == [8]));
}

#[test]
fn a_lease_that_ended_is_anothers_and_a_value_of_the_first_is_refused() {
    let mut entry = Entry::default();
    entry.ask(NOW, &ask(1));
    assert_eq!(entry.ask(NOW + 5, &ask(2)), Found::Load(NOW, None));
    assert_eq!(entry.set(NOW + 6, load(1, NOW, 1)), Err(Refused::Overtaken));
    assert_eq!(entry.set(NOW + 6, load(2, NOW, 2)), Ok(()));
    // A lease that no other reader took is valid after its time.
    entry.invalidate(NOW + 7, 0, 0, 50);
    let Found::Load(generation, _) = entry.ask(NOW + 8, &ask(3)) else { panic!("{entry:?}") };
    assert_eq!(entry.set(NOW + 40, load(3, generation, 3)), Ok(()));
}

#[test]
fn an_older_row_is_refused_and_an_older_token_may_not_begin() {
    let mut entry = Entry::default();
    entry.invalidate(NOW, 9, 0, 50);
    let Found::Load(generation, _) = entry.ask(NOW, &ask(1)) else { panic!("{entry:?}") };
    assert_eq!(entry.set(NOW, Load { version: Some(8), ..load(1, generation, 1) }), Err(Refused::Older));
    assert!(entry.begin(NOW, &begin(1, 5)).is_ok());
    assert_eq!(entry.begin(NOW, &begin(2, 4)), Err(5));
    assert!(entry.extend(NOW + 4, 1, 5, 50) && !entry.extend(NOW + 20, 1, 5, 50));
}

#[test]
fn nothing_is_not_believed_where_a_row_was_announced_unless_its_writer_says_so() {
    let nothing = |lease, generation| Load { data: None, ..load(lease, generation, 0) };
    let mut entry = Entry::default();
    entry.invalidate(NOW, 9, 0, 50);
    let Found::Load(generation, _) = entry.ask(NOW, &ask(1)) else { panic!("{entry:?}") };
    assert_eq!(entry.clone().set(NOW + 50, nothing(1, generation)), Ok(()), "after the longest load");
    assert_eq!(entry.set(NOW + 49, nothing(1, generation)), Err(Refused::Absent));
    assert_eq!(entry.lease, None, "the next one may try at once");
    let generation = entry.begin(NOW, &begin(7, 1)).unwrap();
    assert_eq!(entry.finish(NOW, 7, Some(nothing(7, generation)), 50), Finished::Kept);
    assert!(matches!(entry.ask(NOW, &ask(2)), Found::Hit(None)));
    // A row that only a loader reported may have been deleted.
    let mut entry = Entry::default();
    let Found::Load(generation, _) = entry.ask(NOW, &ask(1)) else { panic!("{entry:?}") };
    entry.set(NOW, Load { version: Some(9), ..load(1, generation, 1) }).unwrap();
    entry.invalidate(NOW, 0, 0, 50);
    let Found::Load(generation, _) = entry.ask(NOW, &ask(2)) else { panic!("{entry:?}") };
    assert_eq!(entry.set(NOW, nothing(2, generation)), Ok(()));
}

#[test]
fn stale_values_are_served_while_one_loads_and_not_for_ever() {
    let stale = |lease| Ask { stale_for: 20, ..ask(lease) };
    let mut entry = Entry::default();
    entry.ask(NOW, &stale(1));
    entry.set(NOW, Load { stale_for: 20, ..load(1, NOW, 1) }).unwrap();
    entry.invalidate(NOW + 1, 0, 20, 50);
    assert!(matches!(entry.ask(NOW + 2, &stale(2)), Found::Load(_, Some(_))));
    assert!(matches!(entry.ask(NOW + 3, &stale(3)), Found::Stale(_)));
    assert!(matches!(entry.clone().ask(NOW + 3, &ask(4)), Found::Wait(2, _)), "not to those who want it fresh");
    assert!(matches!(entry.ask(NOW + 21, &stale(5)), Found::Load(_, None)));
}

/// After the clock is set back, everything lasts as long as it had left when it was written, and no
/// longer: a value, a dead loader's lease, a dead writer's mark.
#[test]
fn a_clock_that_is_set_back_makes_nothing_last_longer() {
    const BEFORE: u64 = 1_000_000;
    let mut value = Entry::default();
    let Found::Load(generation, _) = value.ask(BEFORE, &ask(1)) else { panic!("{value:?}") };
    value.set(BEFORE, load(1, generation, 1)).unwrap();
    let mut lease = Entry::default();
    lease.ask(BEFORE, &ask(1));
    let mut mark = Entry::default();
    mark.begin(BEFORE, &begin(7, 1)).unwrap();
    assert!(matches!(value.ask(NOW, &ask(2)), Found::Hit(Some(_))));
    assert!(matches!(value.ask(NOW + 99, &ask(2)), Found::Hit(Some(_))));
    assert!(matches!(value.ask(NOW + 100, &ask(2)), Found::Load(of, _) if of == generation));
    assert_eq!(lease.ask(NOW, &ask(2)), Found::Wait(1, 5));
    assert!(matches!(lease.ask(NOW + 5, &ask(2)), Found::Load(..)));
    assert_eq!(mark.ask(NOW, &ask(2)), Found::Written);
    assert!(matches!(mark.ask(NOW + 5, &ask(2)), Found::Load(of, _) if of > BEFORE));
}

/// Its mark had expired, and a reader stored a value that it had read before the commit.
#[test]
fn what_an_overtaken_writer_finds_in_the_cache_is_old_from_then_on() {
    let stale = |lease| Ask { stale_for: 20, ..ask(lease) };
    let mut entry = Entry::default();
    let of = entry.begin(NOW, &Begin { stale_for: 20, ..begin(7, 1) }).unwrap();
    let Found::Load(generation, None) = entry.ask(NOW + 5, &stale(1)) else { panic!("{entry:?}") };
    entry.set(NOW + 5, Load { fresh_for: 1000, stale_for: 20, ..load(1, generation, 1) }).unwrap();
    for written in [None, Some(load(7, of, 2))] {
        let mut entry = entry.clone();
        assert_eq!(entry.finish(NOW + 10, 7, written, 50), Finished::Overtaken);
        assert!(matches!(entry.clone().ask(NOW + 29, &stale(2)), Found::Load(_, Some(_))));
        assert!(matches!(entry.ask(NOW + 30, &stale(2)), Found::Load(_, None)), "for longer than it may be served");
    }
}

proptest! {
    /// The generation never falls while there is a record, and a value that is served as fresh
    /// belongs to the present generation.
    #[test]
    fn generations_rise(steps in prop::collection::vec((0u8..7, 1u128..4, 0u64..8, prop::bool::weighted(0.05)), 1..60)) {
        let (mut entry, mut now, mut last) = (Entry::default(), 10 * NOW, 0);
        for (step, id, pause, back) in steps {
            now = if back { NOW } else { now + pause };
            let before = entry.clone();
            match step {
                0 | 1 => {
                    let found = entry.ask(now, &Ask { early: 500, ..ask(id) });
                    if let Found::Hit(_) | Found::Early(..) = found {
                        let kept = entry.value.as_ref().unwrap();
                        prop_assert!(kept.of == entry.generation && entry.mark.is_none() && now < kept.fresh_until);
                    }
                }
                2 => {
                    let set = entry.set(now, load(id, before.generation, 1));
                    prop_assert_eq!(set.is_ok(), before.lease.is_some_and(|lease| lease.id == id)
                        && before.mark.is_none());
                }
                3 => entry.invalidate(now, 0, 0, 50),
                4 => drop(entry.begin(now, &begin(id, id as u64))),
                5 => drop(entry.extend(now, id, 5, 50)),
                _ => drop(entry.finish(now, id, None, 50)),
            }
            prop_assert!(entry.generation >= last);
            prop_assert!(entry.lease.is_none() || entry.mark.is_none(), "nobody loads while another writes");
            last = entry.generation;
        }
    }

    #[test]
    fn early_is_rare_when_much_is_left(beta in 0.1f64..3.0, dice: u32) {
        prop_assert!(early_factor(beta, dice) <= early_factor(beta, dice / 2));
        prop_assert!(early_factor(beta, u32::MAX) == 0 && early_factor(0.0, dice) == 0);
    }

    #[test]
    fn jitter_only_shortens(ms in 1u64..100_000, jitter in 0.0f64..1.0, dice: u32) {
        let (ttl, less) = (Duration::from_millis(ms), jittered(Duration::from_millis(ms), jitter, dice));
        prop_assert!(less <= ttl && less >= ttl.mul_f64(1.0 - jitter) - Duration::from_nanos(10));
    }
}
