//! Runs a lock's commands once: scripts, the keys of one lock, a message. All keys are removed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::facts::{Deployment, Echo, Epoch, Requirements};
use super::probe_name::unused_lock_name;
use super::query::{Fact, QueryConnection, QueryError, query, redis_command};
use leasehold_internals::redis::{Address, Config, Epoch as StoredEpoch, Stored, connect, keys};

/// How long to wait for a message that the doctor published.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);

/// The digest of `return 1`.
const RETURN_1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// The beginning of a script: `try` runs a command, continues after a refusal, and keeps the first
/// refusal in `no`.
const TRY_FUNCTION: &str = "\
local there, no = 0, nil
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then no = no or { err = answer.err .. ': ' .. (...) } end
  return answer
end
";

/// Writes, reads and removes the keys of three locks of `redis:` atomically, so that no client sees
/// them. Returns 1 if all of it worked.
const LOCK_KEYS_SCRIPT: &str = "\
for _, key in ipairs(KEYS) do
  try('HSET', key, 'm', 'F', 'x', '1')
  try('EXPIRE', key, 10)
  if try('HGET', key, 'm') == 'F' then there = there + 1 end
  try('HDEL', key, 'm', 'x')
end
if no then return no end
return there == 3 and 1 or 0";

/// Writes, reads and removes the key of a lock with `protocol=simple`. Returns 1 if all of it
/// worked.
const SIMPLE_LOCK_KEYS_SCRIPT: &str = "\
redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 10000)
if redis.call('GET', KEYS[1]) ~= 'x' then return 0 end
return redis.call('DEL', KEYS[1])";

/// Writes, reads and removes keys of locks on a node of Redlock, and the key that strict mode keeps
/// beside them. Returns 1 if all of it worked.
const REDLOCK_KEYS_SCRIPT: &str = "\
try('TIME')
for _, key in ipairs(KEYS) do
  try('SET', key, 'x', 'EX', 10)
  try('SET', key, 'y', 'KEEPTTL')
  if try('GET', key) == 'y' then there = there + 1 end
  try('DEL', key)
end
if no then return no end
return there == #KEYS and 1 or 0";

/// Runs a script in both ways: by its text, which the server stores, and by its digest.
pub(super) async fn check_scripts(connection: &QueryConnection) -> Fact<()> {
    expect_one(query(connection, &redis_command(&["EVAL", "return 1", "0"])).await?)?;
    expect_one(query(connection, &redis_command(&["EVALSHA", RETURN_1, "0"])).await?)
}

/// Reads the server's clock within a script.
pub(super) async fn check_script_time(connection: &QueryConnection) -> Fact<()> {
    expect_one(query(connection, &redis_command(&["EVAL", "return redis.call('TIME')[1] and 1", "0"])).await?)
}

/// Writes, reads and removes the keys of three probe locks in one script. On a node of a cluster
/// they are in one slot, one of `slots`.
pub(super) async fn check_lock_keys(
    connection: &QueryConnection,
    requirements: &Requirements,
    slots: &[RangeInclusive<u16>],
) -> Fact<()> {
    let (prefix, name) = (&requirements.prefix, unused_lock_name(slots));
    let tries = |rest: &str| [TRY_FUNCTION, rest].concat();
    let command = if requirements.simple {
        redis_command(&["EVAL", SIMPLE_LOCK_KEYS_SCRIPT, "1", &format!("{prefix}{name}")])
    } else if requirements.deployment == Deployment::Redlock {
        let mut keys = ['a', 'b', 'c'].map(|end| format!("{prefix}q{name}{end}")).to_vec();
        keys.extend(requirements.strict.then(|| format!("{prefix}e{name}")));
        let mut command = redis_command(&["EVAL", &tries(REDLOCK_KEYS_SCRIPT), &keys.len().to_string()]);
        command.arg(keys);
        command
    } else if requirements.deployment == Deployment::Cluster {
        let [one, two, three] = ['a', 'b', 'c'].map(|end| format!("{prefix}l={{{name}}}{end}"));
        redis_command(&["EVAL", &tries(LOCK_KEYS_SCRIPT), "3", &one, &two, &three])
    } else {
        let [one, two, three] = ['a', 'b', 'c'].map(|end| format!("{prefix}l{{{name}{end}}}"));
        redis_command(&["EVAL", &tries(LOCK_KEYS_SCRIPT), "3", &one, &two, &three])
    };
    expect_one(query(connection, &command).await?)
}

/// Reads the record that strict mode keeps on the server, and the time to compare it with.
pub(super) async fn read_epoch(connection: &QueryConnection, requirements: &Requirements) -> Fact<Epoch> {
    let record: Option<Vec<u8>> =
        query(connection, &redis_command(&["GET", &keys::auxiliary_key(&requirements.prefix, 'e', None)])).await?;
    let stored = record.as_deref().map(StoredEpoch::read).transpose();
    let stored = stored.map_err(|error| QueryError::Refused(error.to_string()))?;
    let (seconds, micros): (u64, u64) = query(connection, &redis_command(&["TIME"])).await?;
    Ok(Epoch { now: seconds * 1_000_000 + micros, stored })
}

/// Checks whether the server reports changes of keys (CLIENT TRACKING).
pub(super) async fn check_tracking(connection: &QueryConnection) -> Fact<()> {
    let _: String = query(connection, &redis_command(&["CLIENT", "TRACKING", "ON", "OPTIN"])).await?;
    let _: String = query(connection, &redis_command(&["CLIENT", "TRACKING", "OFF"])).await?;
    Ok(())
}

/// An error unless a script returned 1.
fn expect_one(answer: i64) -> Fact<()> {
    if answer == 1 { Ok(()) } else { Err(QueryError::Refused(format!("the script returned {answer} instead of 1"))) }
}

/// Publishes a message from within a script, as a release does, to a channel that the doctor
/// subscribes to.
pub(super) async fn check_echo(
    connection: &QueryConnection,
    config: &Config,
    address: &Address,
    requirements: &Requirements,
) -> Fact<Echo> {
    let channel = format!("{}idoctor-{:032x}", requirements.prefix, leasehold_internals::random::random_bits());
    let (sender, mut arrived) = mpsc::unbounded_channel();
    let push_handler: connect::PushHandler = Arc::new(move |message: PushInfo| {
        if message.kind == PushKind::Message {
            let _ = sender.send(());
        }
    });
    let subscriber = connect::to_node(config, address, Some(push_handler)).await;
    let subscriber =
        QueryConnection::new(config, subscriber.map_err(|error| QueryError::NoResponse(error.to_string()))?);
    let _: redis::Value = query(&subscriber, &redis_command(&["SUBSCRIBE", &channel])).await?;
    let publish = redis_command(&["EVAL", "return redis.call('PUBLISH', ARGV[1], 'x')", "0", &channel]);
    let receivers = query(connection, &publish).await?;
    let received = config.clock.timeout(ECHO_TIMEOUT, arrived.recv()).await;
    Ok(Echo { receivers, received: matches!(received, Ok(Some(()))) })
}
