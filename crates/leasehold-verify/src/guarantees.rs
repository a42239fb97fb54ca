//! Which guarantees hold on which engine, with which options, under which fault. This one table
//! decides what the checker judges, what the matrix must have tested, and what the README's table
//! shows.
//!
//! Everything is [`Guaranteed`](Claim::Guaranteed) unless a rule below excludes it. A rule gives
//! its reason, and the page that documents it.

use crate::deploy::{Local, UrlOption};
use crate::history::{FaultKind, Header};
use crate::matrix::Cell;
use crate::verdict::Promise;

/// What leasehold claims about a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// It must hold: one counterexample is a failure.
    Guaranteed,
    /// It is not guaranteed: violations are counted and reported, and never fail the run.
    Counted,
    /// It does not apply there.
    NotApplicable,
}

/// A claim, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The claim.
    pub claim: Claim,
    /// The reason, in one line.
    pub why: &'static str,
    /// The page that documents it.
    pub docs: &'static str,
}

/// The conditions of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms<'a> {
    /// The engine: the scheme of its URL.
    pub engine: &'a str,
    /// Whether servers that may have lost data grant nothing during a cool-down (strict mode).
    pub strict: bool,
    /// Whether a write counts only after replicas acknowledged it.
    pub replicas: bool,
    /// All faults that may occur.
    pub faults: &'a [FaultKind],
}

/// An exception from "everything is guaranteed".
struct Rule {
    promises: &'static [Promise],
    applies: fn(&Terms<'_>) -> bool,
    word: Word,
}

const fn counted(why: &'static str, docs: &'static str) -> Word {
    Word { claim: Claim::Counted, why, docs }
}

const fn nothing(why: &'static str, docs: &'static str) -> Word {
    Word { claim: Claim::NotApplicable, why, docs }
}

const GUARANTEED: Word =
    Word { claim: Claim::Guaranteed, why: "it is what the engine is for", docs: "docs/verify.md#what-is-checked" };

/// The guarantees that depend on exclusion.
const ALONE: &[Promise] = &[Promise::Exclusion, Promise::Reentry, Promise::Permits];

const RULES: &[Rule] = &[
    Rule {
        promises: &[Promise::Permits, Promise::Order, Promise::Ticks],
        applies: |terms| terms.engine == "redlock",
        word: nothing("redlock has no permits, no line and no records", "docs/verify.md#what-happens"),
    },
    Rule {
        promises: ALONE,
        applies: |terms| terms.wants(FaultKind::Ahead),
        word: counted("a clock that jumps ahead ends leases before their time", "docs/verify.md#faults"),
    },
    Rule {
        promises: &[Promise::Eviction],
        applies: |terms| terms.wants(FaultKind::Ahead),
        word: counted(
            "a clock that jumps ahead ends the lease of a holder that stays, and its token may be refused",
            "docs/verify.md#faults",
        ),
    },
    Rule {
        promises: &[Promise::Ticks],
        applies: |terms| terms.wants(FaultKind::Ahead),
        word: counted(
            "by a clock that jumps ahead leases end, and ticks come due, before their time",
            "docs/verify.md#faults",
        ),
    },
    Rule {
        promises: ALONE,
        applies: |terms| terms.may_forget() && !terms.strict,
        word: counted("a server that forgot a lease lets another in", "docs/redis.md#fail-over"),
    },
    Rule {
        promises: &[Promise::Ticks],
        applies: |terms| terms.may_forget() && !terms.strict,
        word: counted(
            "a server that forgot a record has its ticks due again",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    Rule {
        promises: &[Promise::Ticks],
        applies: |terms| terms.may_forget() && terms.wants(FaultKind::Clock),
        word: counted(
            "by a clock that was set back, a tick that was forgotten comes due after the server began to forget",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    Rule {
        promises: &[Promise::Tokens],
        applies: |terms| terms.moves_clocks() && terms.forgets_or_evicts(),
        word: counted(
            "a server that forgets, and whose clock is wrong, can give a token twice",
            "docs/verify.md#faults",
        ),
    },
];

impl Terms<'_> {
    fn wants(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether servers may lose acknowledged writes. With `replicas`, the writes survive a
    /// fail-over.
    fn may_forget(&self) -> bool {
        let on_redis = matches!(self.engine, "redis" | "redis-sentinel" | "redis-cluster" | "rediss" | "redlock");
        on_redis && (self.wants(FaultKind::Wipe) || (self.wants(FaultKind::Failover) && !self.replicas))
    }

    fn forgets_or_evicts(&self) -> bool {
        [FaultKind::Wipe, FaultKind::Failover, FaultKind::Evict].iter().any(|fault| self.wants(*fault))
    }

    /// Whether clocks that tokens are derived from are moved. A single clock that only jumps ahead
    /// does no harm to tokens.
    fn moves_clocks(&self) -> bool {
        self.wants(FaultKind::Clock) || (self.wants(FaultKind::Ahead) && self.engine == "redlock")
    }

    /// The claim about a guarantee: the weakest that the faults leave.
    pub fn word(&self, promise: Promise) -> Word {
        let rules = RULES.iter().filter(|rule| rule.promises.contains(&promise) && (rule.applies)(self));
        rules
            .map(|rule| rule.word)
            .fold(GUARANTEED, |weakest, word| if word.claim > weakest.claim { word } else { weakest })
    }

    /// Whether it must hold.
    pub fn guarantees(&self, promise: Promise) -> bool {
        self.word(promise).claim == Claim::Guaranteed
    }
}

/// The claim about a guarantee in the history with this header.
pub fn of_history(header: &Header, promise: Promise) -> Word {
    // A header may withdraw a guarantee that a table of engines cannot know about; one of older
    // histories does.
    if !header.fencing && promise == Promise::Tokens {
        return counted("the header says that tokens do not rise over these faults", "docs/verify.md#the-history");
    }
    if !header.exclusion && (ALONE.contains(&promise) || promise == Promise::Ticks) {
        return counted("the header says that two may hold under these faults", "docs/verify.md#the-history");
    }
    // In a control a safeguard is off, and the checker must detect that.
    if !header.guard {
        return GUARANTEED;
    }
    let (engine, options) = options_of(&header.url);
    // `redis+sentinel` counts as redis.
    let named = header.engine.split('+').next().filter(|name| !name.is_empty()).unwrap_or(engine);
    let has = |name: &str| options.split('&').any(|option| option.split('=').next() == Some(name));
    let (strict, replicas) = (has("strict"), has("replicas") && !options.contains("replicas=0"));
    Terms { engine: named, strict, replicas, faults: &header.faults }.word(promise)
}

/// The scheme of a URL, without the part after a plus, and its options.
fn options_of(url: &str) -> (&str, &str) {
    let engine = url.split([':', '+']).next().unwrap_or_default();
    (engine, url.split_once('?').map_or("", |(_, options)| options))
}

/// The claim for a cell of the matrix. Servers that may lose data have `strict`, unless the cell
/// has another option.
pub fn of_cell(cell: Cell, promise: Promise) -> Word {
    let faults = Vec::from_iter(cell.fault);
    let replicas = cell.option == Some(UrlOption::Replicas);
    Terms { engine: cell.local.as_str(), strict: !replicas, replicas, faults: &faults }.word(promise)
}

/// The guarantees that the histories of a cell must have tested.
pub fn to_be_tested(cell: Cell) -> Vec<Promise> {
    let always = [
        Promise::Exclusion,
        Promise::Tokens,
        Promise::Loss,
        Promise::Leaks,
        Promise::Deadlines,
        Promise::Fencing,
        Promise::Counter,
        Promise::Ticks,
        Promise::Eviction,
    ];
    // In one process all workers are stopped together, so none waits meanwhile.
    let after_faults = cell.fault.filter(|_| cell.local != Local::Memory).map(|_| Promise::Recovery);
    let load = cell.fault.filter(|fault| *fault == FaultKind::ReadOnly).map(|_| Promise::Load);
    let all = always.into_iter().chain(after_faults).chain(load);
    all.filter(|promise| of_cell(cell, *promise).claim == Claim::Guaranteed).collect()
}

/// All exceptions as rows of a Markdown table: the guarantees, the reason, and the page.
pub fn exceptions() -> Vec<String> {
    let line = |rule: &Rule| {
        let names: Vec<&str> = rule.promises.iter().map(|promise| crate::report::words::promise(*promise)).collect();
        let claim = if rule.word.claim == Claim::Counted { "counted" } else { "does not apply" };
        format!("| {} | {claim} | {} |", names.join(", "), rule.word.why)
    };
    RULES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms<'a>(engine: &'a str, strict: bool, faults: &'a [FaultKind]) -> Terms<'a> {
        Terms { engine, strict, replicas: false, faults }
    }

    #[test]
    fn ticks_are_promised_where_the_docs_say_so() {
        use FaultKind::{Ahead, Clock, Crash, Evict, Failover, Kill, Wipe};
        fn ticks(engine: &str, strict: bool, faults: &[FaultKind]) -> Claim {
            terms(engine, strict, faults).word(Promise::Ticks).claim
        }
        for fault in [Failover, Wipe] {
            assert_eq!(ticks("redis", false, &[fault]), Claim::Counted);
            assert_eq!(ticks("redis", true, &[fault]), Claim::Guaranteed);
            assert_eq!(ticks("redis", true, &[fault, Clock]), Claim::Counted);
        }
        for fault in [Kill, Crash, Clock, Evict] {
            assert_eq!(ticks("redis", false, &[fault]), Claim::Guaranteed, "nothing is forgotten: {fault}");
        }
        fn replicas(faults: &[FaultKind]) -> Claim {
            Terms { replicas: true, ..terms("redis", false, faults) }.word(Promise::Ticks).claim
        }
        assert_eq!(replicas(&[Failover]), Claim::Guaranteed);
        assert_eq!(replicas(&[Wipe]), Claim::Counted);
        assert_eq!(ticks("postgres", false, &[Ahead]), Claim::Counted);
        assert_eq!(ticks("redlock", true, &[]), Claim::NotApplicable);
    }

    #[test]
    fn every_cell_has_a_word_for_every_promise_and_most_are_guaranteed() {
        let mut exceptions = Vec::new();
        for cell in crate::matrix::cells() {
            for promise in Promise::ALL {
                let word = of_cell(cell, promise);
                assert!(!word.why.is_empty() && word.docs.starts_with("docs/"), "{word:?}");
                if word.claim == Claim::Counted {
                    exceptions.push((cell.fault, promise));
                }
            }
        }
        let only_ahead = |(fault, _): &(Option<FaultKind>, Promise)| *fault == Some(FaultKind::Ahead);
        assert!(exceptions.iter().all(only_ahead), "{exceptions:?}");
    }

    #[test]
    fn the_docs_have_the_same_list() {
        let docs = include_str!("../../../docs/verify.md");
        for line in exceptions() {
            assert!(docs.contains(&line), "docs/verify.md lacks: {line}");
        }
    }
}
