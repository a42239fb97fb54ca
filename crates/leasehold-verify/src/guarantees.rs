//! Which guarantees hold on which engine, with which options, under which fault. This one table
//! decides what the checker judges, what the matrix must have tested, and what the README's table
//! shows.
//!
//! Everything is [`Guaranteed`](GuaranteeLevel::Guaranteed) unless a rule below excludes it. A rule
//! gives its reason, and the page that documents it.

use crate::deployment::{LocalEngine, UrlOption};
use crate::history::{FaultKind, Header};
use crate::matrix::Cell;
use crate::verdict::Guarantee;

/// What leasehold claims about a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuaranteeLevel {
    /// It must hold: one counterexample is a failure.
    Guaranteed,
    /// It is not guaranteed: violations are counted and reported, and never fail the run.
    NotGuaranteed,
    /// It does not apply there.
    NotApplicable,
}

/// A claim, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The claim.
    pub level: GuaranteeLevel,
    /// The reason, in one line.
    pub reason: &'static str,
    /// The page that documents it.
    pub page: &'static str,
}

/// The conditions of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// The engine: the scheme of its URL.
    pub engine: &'a str,
    /// Whether servers that may have lost data grant nothing during a cool-down (strict mode).
    pub is_strict: bool,
    /// Whether a write counts only after replicas acknowledged it.
    pub awaits_replicas: bool,
    /// All faults that may occur.
    pub faults: &'a [FaultKind],
}

/// An exception from "everything is guaranteed".
struct ExceptionRule {
    guarantees: &'static [Guarantee],
    applies: fn(&Conditions<'_>) -> bool,
    assessment: Assessment,
}

const fn not_guaranteed(reason: &'static str, docs: &'static str) -> Assessment {
    Assessment { level: GuaranteeLevel::NotGuaranteed, reason, page: docs }
}

const fn not_applicable(reason: &'static str, docs: &'static str) -> Assessment {
    Assessment { level: GuaranteeLevel::NotApplicable, reason, page: docs }
}

const GUARANTEED: Assessment = Assessment {
    level: GuaranteeLevel::Guaranteed,
    reason: "it is what the engine is for",
    page: "docs/verify.md#what-is-checked",
};

/// The guarantees that depend on exclusion.
const EXCLUSION_GUARANTEES: &[Guarantee] = &[Guarantee::Exclusion, Guarantee::Reentry, Guarantee::Permits];

const EXCEPTIONS: &[ExceptionRule] = &[
    ExceptionRule {
        guarantees: &[Guarantee::Permits, Guarantee::Order, Guarantee::Ticks],
        applies: |terms| terms.engine == "redlock",
        assessment: not_applicable("redlock has no permits, no line and no records", "docs/verify.md#what-happens"),
    },
    ExceptionRule {
        guarantees: EXCLUSION_GUARANTEES,
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed("a clock that jumps ahead ends leases before their time", "docs/verify.md#faults"),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Eviction],
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed(
            "a clock that jumps ahead ends the lease of a holder that stays, and its token may be refused",
            "docs/verify.md#faults",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed(
            "by a clock that jumps ahead leases end, and ticks come due, before their time",
            "docs/verify.md#faults",
        ),
    },
    ExceptionRule {
        guarantees: EXCLUSION_GUARANTEES,
        applies: |terms| terms.may_lose_data() && !terms.is_strict,
        assessment: not_guaranteed("a server that forgot a lease lets another in", "docs/redis.md#fail-over"),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.may_lose_data() && !terms.is_strict,
        assessment: not_guaranteed(
            "a server that forgot a record has its ticks due again",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.may_lose_data() && terms.has_fault(FaultKind::Clock),
        assessment: not_guaranteed(
            "by a clock that was set back, a tick that was forgotten comes due after the server began to forget",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Tokens],
        applies: |terms| terms.moves_token_clocks() && terms.loses_data_or_evicts_keys(),
        assessment: not_guaranteed(
            "a server that forgets, and whose clock is wrong, can give a token twice",
            "docs/verify.md#faults",
        ),
    },
];

impl Conditions<'_> {
    fn has_fault(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether servers may lose acknowledged writes. With `awaits_replicas`, the writes survive a
    /// fail-over.
    fn may_lose_data(&self) -> bool {
        let on_redis = matches!(self.engine, "redis" | "redis-sentinel" | "redis-cluster" | "rediss" | "redlock");
        on_redis && (self.has_fault(FaultKind::Wipe) || (self.has_fault(FaultKind::Failover) && !self.awaits_replicas))
    }

    fn loses_data_or_evicts_keys(&self) -> bool {
        [FaultKind::Wipe, FaultKind::Failover, FaultKind::Evict].iter().any(|fault| self.has_fault(*fault))
    }

    /// Whether clocks that tokens are derived from are moved. A single clock that only jumps ahead
    /// does no harm to tokens.
    fn moves_token_clocks(&self) -> bool {
        self.has_fault(FaultKind::Clock) || (self.has_fault(FaultKind::Ahead) && self.engine == "redlock")
    }

    /// The claim about a guarantee: the weakest that the faults leave.
    pub fn assess(&self, guarantee: Guarantee) -> Assessment {
        let rules = EXCEPTIONS.iter().filter(|rule| rule.guarantees.contains(&guarantee) && (rule.applies)(self));
        rules
            .map(|rule| rule.assessment)
            .fold(GUARANTEED, |weakest, word| if word.level > weakest.level { word } else { weakest })
    }

    /// Whether it must hold.
    pub fn is_guaranteed(&self, guarantee: Guarantee) -> bool {
        self.assess(guarantee).level == GuaranteeLevel::Guaranteed
    }
}

/// The claim about a guarantee in the history with this header.
pub fn assess_history(header: &Header, guarantee: Guarantee) -> Assessment {
    // A header may withdraw a guarantee that a table of engines cannot know about; one of older
    // histories does.
    if !header.fencing && guarantee == Guarantee::Tokens {
        return not_guaranteed("the header withdraws rising tokens under these faults", "docs/verify.md#the-history");
    }
    if !header.exclusion && (EXCLUSION_GUARANTEES.contains(&guarantee) || guarantee == Guarantee::Ticks) {
        return not_guaranteed("the header withdraws exclusion under these faults", "docs/verify.md#the-history");
    }
    // In a control a safeguard is off, and the checker must detect that.
    if !header.guard {
        return GUARANTEED;
    }
    let (engine, options) = scheme_and_options(&header.url);
    // `redis+sentinel` counts as redis.
    let named = header.engine.split('+').next().filter(|name| !name.is_empty()).unwrap_or(engine);
    let has = |name: &str| options.split('&').any(|option| option.split('=').next() == Some(name));
    let (strict, replicas) = (has("strict"), has("replicas") && !options.contains("replicas=0"));
    Conditions { engine: named, is_strict: strict, awaits_replicas: replicas, faults: &header.faults }.assess(guarantee)
}

/// The scheme of a URL, without the part after a plus, and its options.
fn scheme_and_options(url: &str) -> (&str, &str) {
    let engine = url.split([':', '+']).next().unwrap_or_default();
    (engine, url.split_once('?').map_or("", |(_, options)| options))
}

/// The claim for a cell of the matrix. Servers that may lose data have `is_strict`, unless the cell
/// has another option.
pub fn assess_cell(cell: Cell, guarantee: Guarantee) -> Assessment {
    let faults = Vec::from_iter(cell.fault);
    let replicas = cell.option == Some(UrlOption::Replicas);
    Conditions { engine: cell.engine.as_str(), is_strict: !replicas, awaits_replicas: replicas, faults: &faults }
        .assess(guarantee)
}

/// The guarantees that the histories of a cell must have tested.
pub fn required_guarantees(cell: Cell) -> Vec<Guarantee> {
    let always = [
        Guarantee::Exclusion,
        Guarantee::Tokens,
        Guarantee::Loss,
        Guarantee::Leaks,
        Guarantee::Deadlines,
        Guarantee::Fencing,
        Guarantee::Counter,
        Guarantee::Ticks,
        Guarantee::Eviction,
    ];
    // In one process all workers are stopped together, so none waits meanwhile.
    let after_faults = cell.fault.filter(|_| cell.engine != LocalEngine::Memory).map(|_| Guarantee::Recovery);
    let load = cell.fault.filter(|fault| *fault == FaultKind::ReadOnly).map(|_| Guarantee::Load);
    let all = always.into_iter().chain(after_faults).chain(load);
    all.filter(|promise| assess_cell(cell, *promise).level == GuaranteeLevel::Guaranteed).collect()
}

/// All exceptions as rows of a Markdown table: the guarantees, the reason, and the page.
pub fn exception_rows() -> Vec<String> {
    let line = |rule: &ExceptionRule| {
        let names: Vec<&str> =
            rule.guarantees.iter().map(|promise| crate::report::format::guarantee_name(*promise)).collect();
        let claim = if rule.assessment.level == GuaranteeLevel::NotGuaranteed { "counted" } else { "does not apply" };
        format!("| {} | {claim} | {} |", names.join(", "), rule.assessment.reason)
    };
    EXCEPTIONS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions<'a>(engine: &'a str, strict: bool, faults: &'a [FaultKind]) -> Conditions<'a> {
        Conditions { engine, is_strict: strict, awaits_replicas: false, faults }
    }

    #[test]
    fn ticks_are_guaranteed_where_the_docs_say_so() {
        use FaultKind::{Ahead, Clock, Crash, Evict, Failover, Kill, Wipe};
        fn ticks(engine: &str, strict: bool, faults: &[FaultKind]) -> GuaranteeLevel {
            conditions(engine, strict, faults).assess(Guarantee::Ticks).level
        }
        for fault in [Failover, Wipe] {
            assert_eq!(ticks("redis", false, &[fault]), GuaranteeLevel::NotGuaranteed);
            assert_eq!(ticks("redis", true, &[fault]), GuaranteeLevel::Guaranteed);
            assert_eq!(ticks("redis", true, &[fault, Clock]), GuaranteeLevel::NotGuaranteed);
        }
        for fault in [Kill, Crash, Clock, Evict] {
            assert_eq!(ticks("redis", false, &[fault]), GuaranteeLevel::Guaranteed, "no data is lost: {fault}");
        }
        fn replicas(faults: &[FaultKind]) -> GuaranteeLevel {
            Conditions { awaits_replicas: true, ..conditions("redis", false, faults) }.assess(Guarantee::Ticks).level
        }
        assert_eq!(replicas(&[Failover]), GuaranteeLevel::Guaranteed);
        assert_eq!(replicas(&[Wipe]), GuaranteeLevel::NotGuaranteed);
        assert_eq!(ticks("postgres", false, &[Ahead]), GuaranteeLevel::NotGuaranteed);
        assert_eq!(ticks("redlock", true, &[]), GuaranteeLevel::NotApplicable);
    }

    #[test]
    fn every_cell_has_an_assessment_of_every_guarantee_and_most_hold() {
        let mut exceptions = Vec::new();
        for cell in crate::matrix::cells() {
            for promise in Guarantee::ALL {
                let word = assess_cell(cell, promise);
                assert!(!word.reason.is_empty() && word.page.starts_with("docs/"), "{word:?}");
                if word.level == GuaranteeLevel::NotGuaranteed {
                    exceptions.push((cell.fault, promise));
                }
            }
        }
        let only_ahead = |(fault, _): &(Option<FaultKind>, Guarantee)| *fault == Some(FaultKind::Ahead);
        assert!(exceptions.iter().all(only_ahead), "{exceptions:?}");
    }

    #[test]
    fn the_docs_list_the_same_exceptions() {
        let docs = include_str!("../../../docs/verify.md");
        for line in exception_rows() {
            assert!(docs.contains(&line), "docs/verify.md lacks: {line}");
        }
    }
}
