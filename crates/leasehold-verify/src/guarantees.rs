//! Which guarantees hold on which engine, with which options, under which fault. This one table
//! decides what the checker counts as a violation, what the matrix must have tested, and what the
//! tables in the documentation show.
//!
//! Everything is [`Guaranteed`](GuaranteeLevel::Guaranteed) unless a rule below excludes it. A rule
//! gives its reason, and the page that documents it.

use crate::deployment::{LocalEngine, UrlOption};
use crate::history::{FaultKind, Header};
use crate::matrix::Cell;
use crate::verdict::Guarantee;

/// Whether leasehold claims a guarantee under given conditions. Ordered from strong to weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuaranteeLevel {
    /// It must hold: one violation fails the run.
    Guaranteed,
    /// It may not hold: violations are counted and reported, and never fail the run.
    NotGuaranteed,
    /// The engine lacks the feature that the guarantee is about.
    NotApplicable,
}

/// Whether a guarantee is claimed, why, and where that is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// Whether it is claimed.
    pub level: GuaranteeLevel,
    /// Why, in one line.
    pub reason: &'static str,
    /// The page and heading that document it, such as `docs/verify.md#faults`.
    pub page: &'static str,
}

/// The engine, its options and the faults that decide whether a guarantee is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// The engine: the scheme of its URL, or the name of a [`LocalEngine`].
    pub engine: &'a str,
    /// Whether the URL has `strict`: a server that may have lost data grants nothing during a
    /// cool-down.
    pub is_strict: bool,
    /// Whether the URL has `replicas`: a grant counts only after replicas acknowledged it.
    pub awaits_replicas: bool,
    /// All kinds of faults that may occur.
    pub faults: &'a [FaultKind],
}

/// A rule that withdraws guarantees under some conditions; without a rule, everything is
/// guaranteed.
struct ExceptionRule {
    /// The guarantees that the rule withdraws.
    guarantees: &'static [Guarantee],
    /// Whether the rule applies under these conditions.
    applies: fn(&Conditions<'_>) -> bool,
    /// The assessment of those guarantees where the rule applies.
    assessment: Assessment,
}

const fn not_guaranteed(reason: &'static str, page: &'static str) -> Assessment {
    Assessment { level: GuaranteeLevel::NotGuaranteed, reason, page }
}

const fn not_applicable(reason: &'static str, page: &'static str) -> Assessment {
    Assessment { level: GuaranteeLevel::NotApplicable, reason, page }
}

/// The assessment where no exception rule applies.
const GUARANTEED: Assessment = Assessment {
    level: GuaranteeLevel::Guaranteed,
    reason: "every engine guarantees it unless an exception applies",
    page: "docs/verify.md#what-is-checked",
};

/// The guarantees that fail when two conflicting holders have the lock at once.
const EXCLUSION_GUARANTEES: &[Guarantee] = &[Guarantee::Exclusion, Guarantee::Reentry, Guarantee::Permits];

/// All exceptions. docs/verify.md has the same list, which a test compares.
const EXCEPTIONS: &[ExceptionRule] = &[
    ExceptionRule {
        guarantees: &[Guarantee::Permits, Guarantee::Order, Guarantee::Ticks],
        applies: |terms| terms.engine == "redlock",
        assessment: not_applicable("redlock has no permits, no queue and no records", "docs/verify.md#what-happens"),
    },
    ExceptionRule {
        guarantees: EXCLUSION_GUARANTEES,
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed("a clock that jumps ahead ends leases early", "docs/verify.md#faults"),
    },
    ExceptionRule {
        guarantees: &[Guarantee::ForceRelease],
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed(
            "a clock that jumps ahead ends the lease of a holder that was not force-released, and its token may be refused",
            "docs/verify.md#faults",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.has_fault(FaultKind::Ahead),
        assessment: not_guaranteed(
            "a clock that jumps ahead ends leases early, and makes ticks due early",
            "docs/verify.md#faults",
        ),
    },
    ExceptionRule {
        guarantees: EXCLUSION_GUARANTEES,
        applies: |terms| terms.may_lose_data() && !terms.is_strict,
        assessment: not_guaranteed(
            "a server that lost a lease grants the lock to another holder",
            "docs/redis.md#fail-over",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.may_lose_data() && !terms.is_strict,
        assessment: not_guaranteed(
            "a server that lost a schedule's record makes its ticks due again",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Ticks],
        applies: |terms| terms.may_lose_data() && terms.has_fault(FaultKind::Clock),
        assessment: not_guaranteed(
            "with a clock that was set back, a tick whose record was lost comes due after the cool-down began",
            "docs/schedule.md#what-each-engine-keeps",
        ),
    },
    ExceptionRule {
        guarantees: &[Guarantee::Tokens],
        applies: |terms| terms.moves_token_clocks() && terms.loses_data_or_evicts_keys(),
        assessment: not_guaranteed(
            "a server that loses data, and whose clock is wrong, can issue a token twice",
            "docs/verify.md#faults",
        ),
    },
];

impl Conditions<'_> {
    fn has_fault(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether servers may lose acknowledged writes under these faults.
    fn may_lose_data(&self) -> bool {
        // With `replicas`, acknowledged writes survive a fail-over.
        let on_redis = matches!(self.engine, "redis" | "redis-sentinel" | "redis-cluster" | "rediss" | "redlock");
        on_redis && (self.has_fault(FaultKind::Wipe) || (self.has_fault(FaultKind::Failover) && !self.awaits_replicas))
    }

    /// Whether a lock's record, from which the next token comes, may be lost or evicted.
    fn loses_data_or_evicts_keys(&self) -> bool {
        [FaultKind::Wipe, FaultKind::Failover, FaultKind::Evict].iter().any(|fault| self.has_fault(*fault))
    }

    /// Whether a fault moves a server's clock so that tokens derived from it may repeat. A single
    /// server's clock that only jumps ahead does not cause that.
    fn moves_token_clocks(&self) -> bool {
        self.has_fault(FaultKind::Clock) || (self.has_fault(FaultKind::Ahead) && self.engine == "redlock")
    }

    /// Assesses a guarantee: the weakest assessment of all rules that apply.
    pub fn assess(&self, guarantee: Guarantee) -> Assessment {
        let rules = EXCEPTIONS.iter().filter(|rule| rule.guarantees.contains(&guarantee) && (rule.applies)(self));
        rules
            .map(|rule| rule.assessment)
            .fold(GUARANTEED, |weakest, next| if next.level > weakest.level { next } else { weakest })
    }

    /// Whether this guarantee must hold under these conditions.
    pub fn is_guaranteed(&self, guarantee: Guarantee) -> bool {
        self.assess(guarantee).level == GuaranteeLevel::Guaranteed
    }
}

/// Assesses a guarantee for the history with this header. In a negative control everything counts
/// as guaranteed, because the checker must find the violation.
pub fn assess_history(header: &Header, guarantee: Guarantee) -> Assessment {
    // Headers of older histories withdraw guarantees that this table still gives.
    if !header.fencing && guarantee == Guarantee::Tokens {
        return not_guaranteed("the header withdraws rising tokens under these faults", "docs/verify.md#the-history");
    }
    if !header.exclusion && (EXCLUSION_GUARANTEES.contains(&guarantee) || guarantee == Guarantee::Ticks) {
        return not_guaranteed("the header withdraws exclusion under these faults", "docs/verify.md#the-history");
    }
    if !header.guard {
        return GUARANTEED;
    }
    let (engine, options) = scheme_and_options(&header.url);
    // A header's engine such as `redis+sentinel` counts as `redis`.
    let named = header.engine.split('+').next().filter(|name| !name.is_empty()).unwrap_or(engine);
    let has = |name: &str| options.split('&').any(|option| option.split('=').next() == Some(name));
    let (strict, replicas) = (has("strict"), has("replicas") && !options.contains("replicas=0"));
    Conditions { engine: named, is_strict: strict, awaits_replicas: replicas, faults: &header.faults }.assess(guarantee)
}

/// Splits a URL into its scheme, without a suffix such as `+sentinel`, and its options after the
/// `?`.
fn scheme_and_options(url: &str) -> (&str, &str) {
    let engine = url.split([':', '+']).next().unwrap_or_default();
    (engine, url.split_once('?').map_or("", |(_, options)| options))
}

/// Assesses a guarantee for a cell of the matrix. The matrix starts engines with `strict`, unless
/// the cell has another option.
pub fn assess_cell(cell: Cell, guarantee: Guarantee) -> Assessment {
    let faults = Vec::from_iter(cell.fault);
    let replicas = cell.option == Some(UrlOption::Replicas);
    Conditions { engine: cell.engine.as_str(), is_strict: !replicas, awaits_replicas: replicas, faults: &faults }
        .assess(guarantee)
}

/// The guarantees that the histories of a cell must have tested; otherwise the matrix fails.
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
        Guarantee::ForceRelease,
    ];
    // With `memory:` all workers share one process and are stopped together, so no worker waits.
    let after_faults = cell.fault.filter(|_| cell.engine != LocalEngine::Memory).map(|_| Guarantee::Recovery);
    let load = cell.fault.filter(|fault| *fault == FaultKind::ReadOnly).map(|_| Guarantee::Load);
    let all = always.into_iter().chain(after_faults).chain(load);
    all.filter(|guarantee| assess_cell(cell, *guarantee).level == GuaranteeLevel::Guaranteed).collect()
}

/// All exceptions as rows of a Markdown table: the guarantees, what happens to violations, and the
/// reason.
pub fn exception_rows() -> Vec<String> {
    let line = |rule: &ExceptionRule| {
        let names: Vec<&str> =
            rule.guarantees.iter().map(|guarantee| crate::report::format::guarantee_name(*guarantee)).collect();
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
            for guarantee in Guarantee::ALL {
                let word = assess_cell(cell, guarantee);
                assert!(!word.reason.is_empty() && word.page.starts_with("docs/"), "{word:?}");
                if word.level == GuaranteeLevel::NotGuaranteed {
                    exceptions.push((cell.fault, guarantee));
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
