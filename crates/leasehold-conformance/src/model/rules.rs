//! Rules that hold for a lock at any time. They do not depend on the model, and so detect flaws of
//! the model as well.

use std::collections::HashMap;

use leasehold::engine::{ContenderView, LockView};
use leasehold::{ClaimId, Mode};

/// Checks an inspection; `owner` returns the owner of a claim.
///
/// # Errors
/// The rule that is broken.
pub(super) fn check_view(view: &LockView, owner: impl Fn(ClaimId) -> Option<char>) -> Result<(), String> {
    if view.holders.is_empty() && !view.waiters.is_empty() {
        return Err("a claim waits for a free lock".to_owned());
    }
    if let Some(holder) = view.holders.iter().find(|contender| contender.token.is_none()) {
        return Err(format!("a holder has no token: {holder:?}"));
    }
    let same = |a: &ContenderView, b: &ContenderView| owner(a.claim).is_some() && owner(a.claim) == owner(b.claim);
    for (place, one) in view.holders.iter().enumerate() {
        for other in &view.holders[place + 1..] {
            let together = match (one.mode, other.mode) {
                (Mode::Shared, Mode::Shared) => true,
                (Mode::Permits { limit, .. }, Mode::Permits { limit: same, .. }) => limit == same,
                _ => false,
            };
            if !together && !same(one, other) {
                return Err(format!("{} beside {}", one.mode, other.mode));
            }
            if same(one, other) != (one.token == other.token) {
                return Err(format!("owners and tokens do not correspond: {:?} and {:?}", one.token, other.token));
            }
        }
    }
    check_permits(view, owner)
}

/// The held permits, counting each owner's largest hold, stay within the limit.
fn check_permits(view: &LockView, owner: impl Fn(ClaimId) -> Option<char>) -> Result<(), String> {
    let (mut alone, mut owned, mut most) = (0, HashMap::new(), u32::MAX);
    for contender in &view.holders {
        let Mode::Permits { n, limit } = contender.mode else { continue };
        most = limit;
        match owner(contender.claim) {
            None => alone += n,
            Some(owner) => {
                let largest: &mut u32 = owned.entry(owner).or_default();
                *largest = n.max(*largest);
            }
        }
    }
    let out = alone + owned.values().sum::<u32>();
    if out > most { Err(format!("{out} permits of {most} are held")) } else { Ok(()) }
}
