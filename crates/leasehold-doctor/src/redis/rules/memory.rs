//! Memory: whether lock keys are evicted, and whether there is enough memory.

use super::super::facts::NodeFacts;
use super::super::query::Fact;
use super::{ok, unknown, warn};
use crate::{Finding, Level};

/// With a smaller output buffer, in bytes, a burst of notifications to one client could exceed the
/// limit and end its connection.
const SMALL_BUFFER: u64 = 1024 * 1024;

const PERMISSION_FIX: &str =
    "let this user run INFO and CONFIG GET (+info +config|get), or check the settings of the managed server";

/// The memory limit in bytes, 0 for none: the setting, or the value in `INFO`, because managed
/// servers often reveal only that.
fn memory_limit(node: &NodeFacts) -> Fact<u64> {
    node.setting_number("maxmemory").or_else(|_| node.info_number("maxmemory"))
}

/// The eviction policy: the setting, or the value in `INFO`.
fn configured_policy(node: &NodeFacts) -> Fact<&str> {
    node.setting("maxmemory-policy").or_else(|_| node.info("maxmemory_policy"))
}

/// Fails if the server evicts keys when its memory is full: locks could be among them.
pub(super) fn judge_eviction_policy(node: &NodeFacts) -> Finding {
    let (check, address) = ("eviction-policy", &node.address);
    match (memory_limit(node), configured_policy(node)) {
        (_, Ok("noeviction")) => ok(check, address, "maxmemory-policy is noeviction").impact("no lock key is evicted"),
        (Ok(0), Ok(policy)) => ok(check, address, format!("maxmemory is 0, so maxmemory-policy {policy} does nothing"))
            .impact("no lock key is evicted"),
        (Ok(limit), Ok(policy)) => {
            let found = format!("maxmemory is {} and maxmemory-policy {policy}", format_mebibytes(limit));
            Finding::new(Level::Fail, check, address, found)
                .impact("when memory is full the keys of held locks are evicted, and two clients may hold one lock")
                .fix("maxmemory-policy noeviction; if the data beside the locks needs eviction, a server for locks alone")
        }
        (Err(error), _) | (_, Err(error)) => unknown(check, address, &error)
            .impact("if keys are evicted when memory is full, two clients may hold one lock")
            .fix(format!("maxmemory-policy must be noeviction; {PERMISSION_FIX}")),
    }
}

/// Warns if the server has evicted keys since it started.
pub(super) fn judge_evicted_keys(node: &NodeFacts) -> Finding {
    let (check, address) = ("evicted-keys", &node.address);
    match node.info_number("evicted_keys") {
        Ok(0) => ok(check, address, "no key was evicted since it started").impact("no lock was lost in this way"),
        Ok(1) => warn_evicted_keys(check, address, "1 key was evicted since it started"),
        Ok(count) => warn_evicted_keys(check, address, &format!("{count} keys were evicted since it started")),
        Err(error) => unknown(check, address, &error).impact("locks may have been evicted").fix(PERMISSION_FIX),
    }
}

/// The warning that keys were evicted; `found` says how many.
fn warn_evicted_keys(check: &'static str, address: &str, found: &str) -> Finding {
    warn(check, address, found)
        .impact("locks may have been among them, even if the policy has changed since")
        .fix("maxmemory-policy noeviction and more memory; CONFIG RESETSTAT resets the count")
}

/// Warns if more than 80 % of the memory is used.
pub(super) fn judge_free_memory(node: &NodeFacts) -> Finding {
    let (check, address) = ("memory", &node.address);
    let most = match memory_limit(node) {
        Ok(0) => node.info_number("total_system_memory").map(|all| (all, "the machine's memory")),
        limit => limit.map(|limit| (limit, "maxmemory")),
    };
    match (node.info_number("used_memory"), most) {
        (Ok(used), Ok((most, what))) => {
            let percent = used.saturating_mul(100) / most.max(1);
            let found = format!("{} used, {percent} % of {what} ({})", format_mebibytes(used), format_mebibytes(most));
            if percent <= 80 {
                return ok(check, address, found).impact("there is space for new locks");
            }
            let full = match what {
                "maxmemory" => "when it is full, no lock can be acquired or renewed (OOM)",
                _ => "when it is full, the system may kill the server, and all locks are lost",
            };
            warn(check, address, found).impact(full).fix("more memory, or move other data elsewhere")
        }
        (Err(error), _) | (_, Err(error)) => unknown(check, address, &error)
            .impact("when memory is full, no lock can be acquired or renewed")
            .fix(PERMISSION_FIX),
    }
}

/// Judges the size of the output buffers of connections that receive messages, as leasehold's do.
pub(super) fn judge_output_buffer(node: &NodeFacts) -> Finding {
    let (check, address) = ("output-buffer", &node.address);
    match node.setting("client-output-buffer-limit").map(|text| (parse_pubsub_limits(text), text)) {
        Ok((Some([hard, soft]), _)) => {
            let found = format!(
                "client-output-buffer-limit pubsub is {} hard, {} soft",
                format_limit(hard),
                format_limit(soft)
            );
            if [hard, soft].iter().all(|&limit| limit == 0 || limit >= SMALL_BUFFER) {
                return ok(check, address, found).impact("a burst of messages does not disconnect a client");
            }
            warn(check, address, found)
                .impact("a burst of messages disconnects a client; it reconnects, and its waiters are late")
                .fix("client-output-buffer-limit pubsub 32mb 8mb 60")
        }
        Ok((None, text)) => unknown(check, address, &super::QueryError::Refused(format!("{text:?} cannot be parsed")))
            .impact("with a small limit, a burst of messages disconnects clients")
            .fix("client-output-buffer-limit pubsub 32mb 8mb 60"),
        Err(error) => unknown(check, address, &error)
            .impact("with a small limit, a burst of messages disconnects clients")
            .fix(format!("client-output-buffer-limit pubsub 32mb 8mb 60; {PERMISSION_FIX}")),
    }
}

/// The hard and the soft limit in bytes of connections that receive messages, 0 for none, from
/// `normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60`.
fn parse_pubsub_limits(text: &str) -> Option<[u64; 2]> {
    let mut words = text.split_whitespace().skip_while(|&word| word != "pubsub").skip(1);
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

fn format_mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

/// The size limit of a buffer for people; `unlimited` for 0.
fn format_limit(limit: u64) -> String {
    match limit {
        0 => "unlimited".into(),
        limit if limit < SMALL_BUFFER => format!("{limit} bytes"),
        limit => format_mebibytes(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{assert_level, healthy, refusing_node};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn a_policy_that_evicts_lock_keys_fails() {
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"] {
            assert_level(&judge_eviction_policy(&healthy().with_setting("maxmemory-policy", policy)), Fail, policy);
        }
        let unlimited = healthy().with_setting("maxmemory-policy", "allkeys-lru").with_setting("maxmemory", "0");
        assert_level(&judge_eviction_policy(&unlimited), Good, "does nothing");
        assert_level(&judge_eviction_policy(&refusing_node()), Unknown, "noeviction");
    }

    #[test]
    fn the_policy_is_also_read_from_info() {
        let hidden = healthy().without_setting("maxmemory").without_setting("maxmemory-policy");
        assert_level(&judge_eviction_policy(&hidden), Good, "noeviction");
        assert_level(
            &judge_eviction_policy(&hidden.clone().with_info("maxmemory_policy", "allkeys-lfu")),
            Fail,
            "allkeys-lfu",
        );
        let mut half = hidden.with_info("maxmemory_policy", "allkeys-lfu");
        half.info.as_mut().unwrap().0.remove("maxmemory");
        assert_level(&judge_eviction_policy(&half), Unknown, "not known");
    }

    #[test]
    fn evicted_keys_warn() {
        assert_level(&judge_evicted_keys(&healthy().with_info("evicted_keys", "7")), Warn, "7 keys");
        assert_level(&judge_evicted_keys(&refusing_node()), Unknown, "+info");
    }

    #[test]
    fn low_memory_warns() {
        assert_level(&judge_free_memory(&healthy().with_info("used_memory", "80000000")), Good, "80 %");
        assert_level(&judge_free_memory(&healthy().with_info("used_memory", "81000000")), Warn, "OOM");
        let unlimited = healthy().with_setting("maxmemory", "0").with_info("used_memory", "7000000000");
        assert_level(&judge_free_memory(&unlimited), Warn, "kill the server");
    }

    #[test]
    fn small_buffers_cut_clients_off() {
        let with = |text| healthy().with_setting("client-output-buffer-limit", text);
        assert_level(&judge_output_buffer(&with("pubsub 1024 0 0")), Warn, "1024 bytes");
        assert_level(&judge_output_buffer(&with("pubsub 0 4096 10")), Warn, "soft");
        assert_level(&judge_output_buffer(&with("normal 0 0 0 pubsub 0 0 0")), Good, "unlimited");
        assert_level(&judge_output_buffer(&with("what")), Unknown, "cannot be parsed");
        assert_level(
            &judge_output_buffer(&healthy().without_setting("client-output-buffer-limit")),
            Unknown,
            "+config|get",
        );
    }
}
