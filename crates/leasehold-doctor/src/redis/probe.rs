//! Runs a lock's commands once: scripts, the keys of one lock, a message. All keys are removed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::facts::{Deployment, Echo, Epoch, Requirements};
use super::probe_name::unused_lock_name;
use super::query::{Fact, QueryConnection, QueryError, query, redis_command};
use leasehold_internals::redis::config::{Address, Config};
use leasehold_internals::redis::{connect, wire};

/// Timeout of a message.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);

/// The digest of `return 1`.
const RETURN_1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// Makes a script continue after a refusal, and stores the first one.
const TRY_FUNCTION: &str = "\
local there, no = 0, nil
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then no = no or { err = answer.err .. ': ' .. (...) } end
  return answer
end
";

/// The keys of three locks, written, read and removed atomically: no client sees them.
const LOCK_KEYS_SCRIPT: &str = "\
for _, key in ipairs(KEYS) do
  try('HSET', key, 'm', 'F', 'x', '1')
  try('EXPIRE', key, 10)
  if try('HGET', key, 'm') == 'F' then there = there + 1 end
  try('HDEL', key, 'm', 'x')
end
if no then return no end
return there == 3 and 1 or 0";

/// The same for the textbook lock.
const SIMPLE_LOCK_KEYS_SCRIPT: &str = "\
redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 10000)
if redis.call('GET', KEYS[1]) ~= 'x' then return 0 end
return redis.call('DEL', KEYS[1])";

/// The same for one of several servers that vote, and for the keys that strict mode keeps beside
/// the locks.
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

/// Both ways to run a script; the first stores it for the second.
pub(super) async fn check_scripts(link: &QueryConnection) -> Fact<()> {
    expect_one(query(link, &redis_command(&["EVAL", "return 1", "0"])).await?)?;
    expect_one(query(link, &redis_command(&["EVALSHA", RETURN_1, "0"])).await?)
}

/// The server's clock, within a script.
pub(super) async fn check_script_time(link: &QueryConnection) -> Fact<()> {
    expect_one(query(link, &redis_command(&["EVAL", "return redis.call('TIME')[1] and 1", "0"])).await?)
}

/// The keys of probe locks. A single server must change several at once, as renewals do; a node of
/// a cluster has only the keys of one slot in one script.
pub(super) async fn check_lock_keys(
    link: &QueryConnection,
    aim: &Requirements,
    slots: &[RangeInclusive<u16>],
) -> Fact<()> {
    let (prefix, name) = (&aim.prefix, unused_lock_name(slots));
    let tries = |rest: &str| [TRY_FUNCTION, rest].concat();
    let command = if aim.simple {
        redis_command(&["EVAL", SIMPLE_LOCK_KEYS_SCRIPT, "1", &format!("{prefix}{name}")])
    } else if aim.deployment == Deployment::Redlock {
        let mut keys = ['a', 'b', 'c'].map(|end| format!("{prefix}q{name}{end}")).to_vec();
        keys.extend(aim.strict.then(|| format!("{prefix}e{name}")));
        let mut command = redis_command(&["EVAL", &tries(REDLOCK_KEYS_SCRIPT), &keys.len().to_string()]);
        command.arg(keys);
        command
    } else if aim.deployment == Deployment::Cluster {
        let [one, two, three] = ['a', 'b', 'c'].map(|end| format!("{prefix}l={{{name}}}{end}"));
        redis_command(&["EVAL", &tries(LOCK_KEYS_SCRIPT), "3", &one, &two, &three])
    } else {
        let [one, two, three] = ['a', 'b', 'c'].map(|end| format!("{prefix}l{{{name}{end}}}"));
        redis_command(&["EVAL", &tries(LOCK_KEYS_SCRIPT), "3", &one, &two, &three])
    };
    expect_one(query(link, &command).await?)
}

/// The record that strict mode keeps on the server, and the time to compare it with.
pub(super) async fn epoch(link: &QueryConnection, aim: &Requirements) -> Fact<Epoch> {
    let record: Option<Vec<u8>> =
        query(link, &redis_command(&["GET", &wire::auxiliary_key(&aim.prefix, 'e', None)])).await?;
    let record = record.as_deref().map(wire::check_format).transpose();
    let record = record.map_err(|error| QueryError::Refused(error.to_string()))?;
    let record = record.map(|record| String::from_utf8_lossy(record).into_owned());
    let (seconds, micros): (u64, u64) = query(link, &redis_command(&["TIME"])).await?;
    Ok(Epoch { now: seconds * 1_000_000 + micros, record })
}

/// Whether the server reports changes of keys.
pub(super) async fn check_tracking(link: &QueryConnection) -> Fact<()> {
    let _: String = query(link, &redis_command(&["CLIENT", "TRACKING", "ON", "OPTIN"])).await?;
    let _: String = query(link, &redis_command(&["CLIENT", "TRACKING", "OFF"])).await?;
    Ok(())
}

fn expect_one(answer: i64) -> Fact<()> {
    if answer == 1 { Ok(()) } else { Err(QueryError::Refused(format!("the script returned {answer} instead of 1"))) }
}

/// Sends a message to ourselves from within a script, as a release does.
pub(super) async fn check_echo(
    link: &QueryConnection,
    config: &Config,
    address: &Address,
    aim: &Requirements,
) -> Fact<Echo> {
    let channel = format!("{}idoctor-{:032x}", aim.prefix, leasehold_internals::random::random_bits());
    let (post, mut inbox) = mpsc::unbounded_channel();
    let push_handler: connect::PushHandler = Arc::new(move |message: PushInfo| {
        if message.kind == PushKind::Message {
            let _ = post.send(());
        }
    });
    let subscriber = connect::to_node(config, address, Some(push_handler)).await;
    let subscriber =
        QueryConnection::new(config, subscriber.map_err(|error| QueryError::NoResponse(error.to_string()))?);
    let _: redis::Value = query(&subscriber, &redis_command(&["SUBSCRIBE", &channel])).await?;
    let publish = redis_command(&["EVAL", "return redis.call('PUBLISH', ARGV[1], 'x')", "0", &channel]);
    let receivers = query(link, &publish).await?;
    let received = config.clock.timeout(ECHO_TIMEOUT, inbox.recv()).await;
    Ok(Echo { receivers, received: matches!(received, Ok(Some(()))) })
}
