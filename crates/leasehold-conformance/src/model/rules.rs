//! What must be true of a lock at any moment, whatever happened before: it does not come from the model, and so finds what
//! the model itself does wrong.

use std::collections::HashMap;

use leasehold::engine::{ContenderView, LockView};
use leasehold::{ClaimId, Mode};

/// Checks what an inspection shows; `owner` knows whose a claim is.
///
/// # Errors
/// Which rule is broken.
pub(super) fn check_view(view: &LockView, owner: impl Fn(ClaimId) -> Option<char>) -> Result<(), String> {
    if view.holders.is_empty() && !view.waiters.is_empty() {
        return Err("somebody waits for a free lock".to_owned());
    }
    if let Some(untold) = view.holders.iter().find(|contender| contender.token.is_none()) {
        return Err(format!("a holder has no token: {untold:?}"));
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
                return Err(format!("a token is one owner's: {:?} and {:?}", one.token, other.token));
            }
        }
    }
    check_permits(view, owner)
}

/// The permits that are out, each owner's largest hold, stay within the limit.
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
    if out > most { Err(format!("{out} permits of {most} are out")) } else { Ok(()) }
}
