//! The fence in Redis or Valkey: one script checks and writes in one step.
//!
//! ```no_run
//! # async fn save(conn: &mut redis::aio::MultiplexedConnection, guard: &leasehold::Guard) -> Result<(), leasehold::fence::AdmitError> {
//! use leasehold::fence;
//!
//! fence::redis::set_if_newer(conn, "stock:42", guard.token(), "41").await?;   // refused if a newer token was seen
//! # Ok(()) }
//! ```
//!
//! The key [`fence_key`], beside the data's key, stores its highest token. It does not expire: a
//! fence that loses its tokens admits stale holders. For the same reason the server must not evict
//! it (`maxmemory-policy` `noeviction` or one of `volatile-*`). A failover that loses the last
//! writes loses their tokens with them (`WAIT`, `appendfsync always`). If that is not enough, keep
//! the fence in the database.

use std::sync::{Arc, LazyLock};

use ::redis::aio::ConnectionLike;
use ::redis::{Cmd, FromRedisValue, RedisError, ServerErrorKind, Value};

use super::{AdmitError, StaleToken};
use crate::redis_client::CachedScript;
use crate::redis_client::keys::hash_tag;
use crate::types::Token;

/// The script, for other client libraries. Its keys are [`fence_key`] and, to write, the key
/// itself; its arguments are the token and the value. It returns nil, or, if your token is stale,
/// the highest token seen.
pub const SCRIPT: &str = include_str!("admit.lua");

static CACHED_ADMIT_SCRIPT: LazyLock<Arc<CachedScript>> = LazyLock::new(|| CachedScript::new(SCRIPT.to_owned()));

/// The name of the key that stores the highest token seen for the data at `key`; in a cluster, it
/// is in the slot of `key`.
///
/// A key with a `}` but no hash tag (`a}b`, `{}c`) is an exception: no other key can be made to
/// share its slot. It can be admitted, but not [set](set_if_newer) on a cluster.
///
/// ```
/// use leasehold::fence::redis::fence_key;
///
/// assert_eq!(fence_key("stock:42"), "leasehold:fence:{stock:42}");
/// assert_eq!(fence_key("{order 7}:stock"), "leasehold:fence={order 7}:stock");
/// ```
pub fn fence_key(key: &str) -> String {
    if hash_tag(key).is_some() {
        format!("leasehold:fence={key}")
    } else if key.is_empty() || key.contains('}') {
        format!("leasehold:fence~{key}")
    } else {
        format!("leasehold:fence:{{{key}}}")
    }
}

/// Admits a write to `key`, and stores its token as the highest; or refuses it. The write that
/// follows is another step; where possible, use [`set_if_newer`].
///
/// # Errors
/// [`AdmitError::Stale`] if a higher token was seen; [`AdmitError::Failed`] if the server did not
/// respond: repeat the call, which is harmless.
pub async fn admit(conn: &mut (impl ConnectionLike + Send), key: &str, token: Token) -> Result<(), AdmitError> {
    run_script(conn, token, 1, |cmd| {
        cmd.arg(fence_key(key)).arg(token.0);
    })
    .await
}

/// Sets `key` to `value` unless a newer token has been seen. The check and the write are one step.
///
/// # Errors
/// [`AdmitError::Stale`] if a higher token was seen; the value is unchanged. [`AdmitError::Failed`]
/// if the server did not respond: the value may have been written or not. Repeating the call with
/// the same value and token is harmless.
pub async fn set_if_newer(
    conn: &mut (impl ConnectionLike + Send),
    key: &str,
    token: Token,
    value: impl AsRef<[u8]> + Sync,
) -> Result<(), AdmitError> {
    run_script(conn, token, 2, |cmd| {
        cmd.arg(fence_key(key)).arg(key).arg(token.0).arg(value.as_ref());
    })
    .await
}

/// Runs [`SCRIPT`] by its digest, or from its text if the server does not have it. `key_count` is
/// the number of keys among the arguments that `add_arguments` adds.
async fn run_script(
    conn: &mut (impl ConnectionLike + Send),
    token: Token,
    key_count: usize,
    add_arguments: impl Fn(&mut Cmd),
) -> Result<(), AdmitError> {
    let failed = |error: RedisError| AdmitError::Failed(error.into());
    let mut cmd = CACHED_ADMIT_SCRIPT.evalsha(key_count);
    add_arguments(&mut cmd);
    let answer = match cmd.query_async::<Value>(conn).await {
        Err(error) if error.kind() == ::redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
            let mut cmd = CACHED_ADMIT_SCRIPT.eval(key_count);
            add_arguments(&mut cmd);
            cmd.query_async::<Value>(conn).await
        }
        answer => answer,
    };
    let seen: Option<u64> =
        FromRedisValue::from_redis_value(answer.map_err(failed)?).map_err(|error| failed(error.into()))?;
    seen.map_or(Ok(()), |seen| Err(StaleToken { token, highest: Token(seen) }.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redis_client::keys::slot;

    proptest! {
        #[test]
        fn no_two_keys_share_a_fence(a in "[{}ab=~:]{0,6}", b in "[{}ab=~:]{0,6}") {
            prop_assert_eq!(a == b, fence_key(&a) == fence_key(&b));
        }

        #[test]
        fn a_fence_is_in_the_slot_of_its_key(key in "[{}ab:]{1,6}") {
            prop_assume!(hash_tag(&key).is_some() || !key.contains('}'));
            prop_assert_eq!(slot(&key), slot(&fence_key(&key)));
        }
    }
}
