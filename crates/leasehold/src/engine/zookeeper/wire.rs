//! Every node and its data.
//!
//! | node | type | content |
//! |---|---|---|
//! | `<base>` | persistent | all locks; its parents are created, too |
//! | `<base>/<name>` | container | one lock; vanishes when unused for a while. Its data is the lock's name |
//! | `<base>/%records` | persistent | all records; written to learn the leader's time. No lock's node has this name |
//! | `<base>/%records/<name>` | persistent | one record: format number, line break, value; without data: removed |
//! | `<base>/%force-released/<format>-<claim>` | persistent | the mark of a force-released claim: its waiter reads why its node is gone, and deletes the mark when its request ends. Force releases delete marks older than an hour |
//! | `<base>/%force-released/<format>-<claim>-released` | persistent | the note that a claim was released because an operator asked for it: the operator reads and deletes it |
//! | `<base>/<name>/<format>-<claim>-<mode>-<owner>-<re-entry>-<sequence>` | ephemeral, sequential | a claim; its data describes the holder |
//!
//! The names contain everything that decides, so that one list of them is enough. A node that begins
//! with another format number is an error: it may be a holder.

use std::fmt::Write;
use std::time::Duration;

use crate::logic::node_queue::{NodeQueue, QueueNode, ReentryLink};
use crate::types::{ClaimId, Error, FORMAT, Holder, LockName, Mode, Owner, Result};

/// Means no owner, or no re-entry.
const NONE: &str = "0";

/// The folder of the records.
pub const RECORDS: &str = "%records";

/// The folder of the marks that force releases leave.
pub const MARKS_FOLDER: &str = "%force-released";

/// A lock name as a node's name. Letters, digits and a few signs stay; every other byte becomes `%`
/// and two hex digits. No two names get the same node, and no server refuses or reserves one.
pub fn escape_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_:@+=,~".contains(&byte) || (byte == b'.' && at > 0);
        if is_plain && !(at == 0 && name == "zookeeper") {
            text.push(byte.into());
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The lock of a node's name; `None` if leasehold did not write it.
pub fn unescape_name(node: &str) -> Option<LockName> {
    let (mut bytes, mut rest) = (Vec::with_capacity(node.len()), node.as_bytes());
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    let name = LockName::new(String::from_utf8(bytes).ok()?).ok()?;
    // This library would have written this name differently, so it did not write it.
    (escape_name(name.as_str()) == node).then_some(name)
}

/// An owner as names show it: hashed, so that seeing it does not allow others to re-enter.
pub fn hash_owner(owner: Option<Owner>) -> Option<u64> {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(owner?.bits().to_be_bytes());
    let mut bits = [0; 8];
    bits.copy_from_slice(&digest[..8]);
    Some(u64::from_be_bytes(bits))
}

/// The name of a claim's node, up to the number that the server adds.
pub fn node_prefix(claim: ClaimId, mode: Mode, owner: Option<u64>, reentry: Option<ReentryLink>) -> String {
    let mode = match mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "s".to_owned(),
        Mode::Permits { n, limit } => format!("p{n}.{limit}"),
    };
    let owner = owner.map_or(NONE.to_owned(), |owner| format!("{owner:016x}"));
    let reentry =
        reentry.map_or(NONE.to_owned(), |reentry| format!("{:08x}.{:x}", reentry.parent_position, reentry.token));
    format!("{FORMAT}-{:032x}-{mode}-{owner}-{reentry}-", claim.bits())
}

/// The name of a claim's node.
pub fn node_name(node: &QueueNode) -> String {
    format!("{}{:010}", node_prefix(node.claim, node.mode, node.owner, node.reentry), node.sequence)
}

/// The claim of a node's name; `None` if leasehold did not write it.
pub fn parse_node_name(node: &str) -> Option<QueueNode> {
    let mut parts = node.splitn(6, '-');
    let mut part = || parts.next();
    let _ours = part()?.parse::<u32>().ok().filter(|format| *format == FORMAT)?;
    let (claim, mode, owner, reentry, seq) = (part()?, part()?, part()?, part()?, part()?);
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        other => {
            let (n, limit) = other.strip_prefix('p')?.split_once('.')?;
            Mode::Permits { n: n.parse().ok()?, limit: limit.parse().ok()? }
        }
    };
    let owner = if owner == NONE { None } else { Some(u64::from_str_radix(owner, 16).ok()?) };
    let reentry = if reentry == NONE {
        None
    } else {
        let (parent_position, token) = reentry.split_once('.')?;
        let parent_position = u32::from_str_radix(parent_position, 16).ok()?.cast_signed();
        Some(ReentryLink { parent_position, token: u64::from_str_radix(token, 16).ok()? })
    };
    let claim = ClaimId::from_bits(u128::from_str_radix(claim, 16).ok()?);
    let parsed = QueueNode { claim, mode, owner, reentry, sequence: seq.parse().ok()? };
    // This library would have written this name differently, so it did not write it.
    (self::node_name(&parsed) == node).then_some(parsed)
}

/// The claims in a list of nodes. Nodes that are not leasehold's are left out.
///
/// # Errors
/// `UnknownFormat` if a node is a claim in another format.
pub fn parse_node_names(nodes: &[String]) -> Result<Vec<QueueNode>> {
    match nodes.iter().find_map(|node| other_format(node)) {
        Some(format) => Err(Error::unknown_format(format, FORMAT)),
        None => Ok(nodes.iter().filter_map(|node| parse_node_name(node)).collect()),
    }
}

/// The format number of a node, if it is another one than `FORMAT`: up to three digits before a
/// hyphen.
pub fn other_format(node: &str) -> Option<&str> {
    let (format, _) = node.split_once('-')?;
    let is_number = matches!(format.len(), 1..=3) && format.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && format.parse() != Ok(FORMAT)).then_some(format)
}

/// The data of a record's node; a removed record has none.
pub fn record_data(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!("{FORMAT}\n{value}") }
}

/// The value in a record's data; `None` if leasehold did not write it.
///
/// # Errors
/// `UnknownFormat` if it is in another format.
pub fn parse_record_data(data: &[u8]) -> Result<Option<String>> {
    let Ok(text) = std::str::from_utf8(data) else { return Ok(None) };
    match text.split_once('\n') {
        Some((format, value)) if format.parse() == Ok(FORMAT) => Ok(Some(value.to_owned())),
        Some((format, _)) if format.parse::<u32>().is_ok() => Err(Error::unknown_format(format, FORMAT)),
        _ => Ok(None),
    }
}

/// Whether a claim's number gives its position. A server counts with 31 bits. When they are used
/// up, it repeats the last number. In between, a node that is created while another is still being
/// written gets a negative one.
pub fn has_ordered_sequence(node: &QueueNode) -> bool {
    (0..i32::MAX).contains(&node.sequence)
}

/// The queue of claims whose numbers do not give the order. Each comes with the transaction that
/// created its node.
pub fn queue_by_transaction(mut nodes: Vec<(i64, QueueNode)>) -> NodeQueue {
    nodes.sort_by_key(|(created_by, node)| {
        let created_by = created_by.cast_unsigned();
        (node.reentry.map_or(created_by, |reentry| reentry.token), node.reentry.is_some(), created_by)
    });
    NodeQueue::from_sorted(nodes.into_iter().map(|(_, node)| node).collect())
}

/// The data of a claim's node.
pub fn holder_data(holder: &Holder, ttl: Duration) -> String {
    format!(
        "host={}\npid={}\nprogram={}\nttl-ms={}\ntext={}\n",
        escape_line(&holder.host),
        holder.pid,
        escape_line(&holder.program),
        ttl.as_millis(),
        escape_line(&holder.description)
    )
}

/// The line of that data by which an operator requests the claim's release.
pub const RELEASE_REQUESTED_LINE: &str = "release=requested\n";

/// Whether an operator requests the claim's release.
pub fn is_release_requested(data: &[u8]) -> bool {
    String::from_utf8_lossy(data).lines().any(|line| line == RELEASE_REQUESTED_LINE.trim_end())
}

/// Reads a node's data; missing fields stay empty.
pub fn parse_holder_data(data: &[u8]) -> (Holder, Duration) {
    let text = String::from_utf8_lossy(data);
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    };
    let pid = value("pid").parse().unwrap_or_default();
    let ttl = Duration::from_millis(value("ttl-ms").parse().unwrap_or_default());
    (Holder::new(&value("host"), pid, &value("program"), &value("text")), ttl)
}

fn escape_line(text: &str) -> String {
    text.replace('%', "%25").replace('\n', "%0A").replace('\r', "%0D")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_round_trip_and_never_collide(one in "[^\\p{Cc}]{1,40}", other in "[^\\p{Cc}]{1,40}") {
            let node = escape_name(&one);
            prop_assert!(node.is_ascii() && !node.contains('/') && node != "." && node != ".." && node != "zookeeper");
            prop_assert_eq!(unescape_name(&node).map(|name| name.as_str().to_owned()), Some(one.clone()));
            prop_assert_eq!(one == other, node == escape_name(&other));
        }

        #[test]
        fn claims_round_trip(
            claim: u128, seq: i32, owner: Option<u64>, reentry: Option<(i32, u64)>, mode in 0u8..3, n: u32, limit: u32,
        ) {
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { n, limit }][usize::from(mode)];
            let reentry = reentry.map(|(parent_position, token)| ReentryLink { parent_position, token });
            let claim = ClaimId::from_bits(claim);
            // As the server writes it.
            let node = format!("{}{seq:010}", node_prefix(claim, mode, owner, reentry));
            let found = QueueNode { claim, mode, owner, reentry, sequence: seq };
            prop_assert_eq!(&self::node_name(&found), &node);
            prop_assert_eq!(parse_node_name(&node), Some(found));
        }

        #[test]
        fn holder_data_round_trips(host in ".{0,20}", pid: u32, program in ".{0,20}", text in "(?s).{0,40}", ms in 0u64..1 << 50) {
            let holder = Holder::new(&host.replace(['\n', '\r'], ""), pid, &program.replace(['\n', '\r'], ""), &text);
            let ttl = Duration::from_millis(ms);
            prop_assert_eq!(parse_holder_data(holder_data(&holder, ttl).as_bytes()), (holder, ttl));
        }
    }

    #[test]
    fn exhausted_sequence_numbers_do_not_give_the_order() {
        let node = |claim: u128, seq, reentry: Option<ReentryLink>| {
            let (claim, mode) = (ClaimId::from_bits(claim), Mode::Exclusive);
            QueueNode { claim, mode, owner: reentry.map(|_| 7), reentry, sequence: seq }
        };
        for (seq, is_ordered) in [(0, true), (i32::MAX - 1, true), (i32::MAX, false), (i32::MIN, false), (-1, false)] {
            assert_eq!(has_ordered_sequence(&node(1, seq, None)), is_ordered, "{seq}");
        }
        let reentry = ReentryLink { parent_position: i32::MAX, token: 5 };
        let queue = queue_by_transaction(vec![
            (9, node(1, i32::MAX, None)),
            (11, node(2, i32::MAX, Some(reentry))),
            (7, node(3, i32::MIN, None)),
            (5, node(4, i32::MAX, None)),
            (12, node(5, i32::MIN, Some(reentry))),
        ]);
        let order: Vec<u128> = queue.nodes().iter().map(|node| node.claim.bits()).collect();
        assert_eq!(order, [4, 2, 5, 3, 1]);
    }

    #[test]
    fn a_claim_in_another_format_is_an_error() {
        let nodes = |second: &str| {
            [node_prefix(ClaimId::from_bits(1), Mode::Exclusive, None, None) + "0000000000", second.to_owned()]
        };
        assert_eq!(parse_node_names(&nodes("lock-0000000001")).expect("one claim").len(), 1);
        let error = parse_node_names(&nodes("2-anything")).expect_err("a newer format");
        assert_eq!(error.kind(), crate::types::ErrorKind::UnknownFormat);
        assert!(error.to_string().contains("format 2") && error.to_string().contains("format 1"), "{error}");
    }

    #[test]
    fn record_data_round_trips() {
        assert_eq!(parse_record_data(record_data("a\nb").as_bytes()).expect("ours"), Some("a\nb".to_owned()));
        assert!(parse_record_data(b"2\na").is_err());
        assert_eq!(parse_record_data(b"a\nb").expect("not ours"), None);
    }

    #[test]
    fn foreign_nodes_are_not_parsed() {
        for node in [
            "",
            "lock-0000000001",
            "_c_0-x-0-0-1",
            "zookeeper",
            "00-q-0-0-1",
            "1-x-0-0-0000000001",
            "12",
            "2020-01-01",
            "%2",
            "a/b",
            "%zz",
            RECORDS,
            MARKS_FOLDER,
        ] {
            assert_eq!(
                (parse_node_name(node), unescape_name(node).filter(|name| name.as_str() != node)),
                (None, None),
                "{node}"
            );
        }
    }
}
