//! Examines a cluster: each node's view of it, and each node's own facts.

use std::ops::RangeInclusive;

use futures_util::future::join_all;

use super::facts::{Info, Requirements};
use super::gather;
use super::query::{Fact, QueryConnection, query, redis_command};
use super::rules::{self, ExpectedRole};
use crate::Finding;
use leasehold::Result;
use leasehold_internals::redis::{Address, Config, connect};

/// One line of `CLUSTER NODES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: String,
    /// `None` for a node whose address the queried node does not know.
    pub(crate) address: Option<Address>,
    pub(crate) is_master: bool,
    /// The id of its master, if it is a replica.
    pub(crate) master_id: Option<String>,
    /// Whether other nodes consider it unreachable.
    pub(crate) is_failing: bool,
    /// The hash slots that it serves; none if it is a replica.
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

/// One node's view of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterView {
    pub(crate) address: String,
    /// The lines of `CLUSTER INFO`.
    pub(crate) state: Fact<Info>,
    /// The lines of `CLUSTER NODES`.
    pub(crate) members: Fact<Vec<Member>>,
}

/// Asks the nodes in the URL for the cluster, and examines all nodes that they list.
pub(super) async fn examine(config: &Config, listed: &[Address], requirements: &Requirements) -> Vec<Finding> {
    let answers = join_all(listed.iter().map(|address| read_view(config, address))).await;
    let (mut findings, mut views) = (Vec::new(), Vec::new());
    for (address, answer) in listed.iter().zip(answers) {
        match answer {
            Ok(view) => views.push(view),
            Err(error) => findings.push(rules::cluster::judge_unreachable(&address.to_string(), &error)),
        }
    }
    findings.extend(rules::cluster::judge_views(&views));
    let Some(members) = views.iter().find_map(|view| view.members.as_ref().ok()) else {
        // Without the cluster's own list, only the listed servers are known.
        let servers: Vec<_> = listed.iter().map(|one| (one.clone(), ExpectedRole::Any, Vec::new())).collect();
        findings.extend(gather::examine_servers(config, &servers, requirements, None).await);
        return findings;
    };
    let servers: Vec<_> = members
        .iter()
        .filter_map(|member| {
            let expected = if member.is_master { ExpectedRole::Master } else { ExpectedRole::Replica };
            Some((member.address.clone()?, expected, member.slots.clone()))
        })
        .collect();
    findings.extend(gather::examine_servers(config, &servers, requirements, None).await);
    findings
}

/// Asks one node for its view of the cluster.
async fn read_view(config: &Config, address: &Address) -> Result<ClusterView> {
    let connection = &QueryConnection::new(config, connect::to_node(config, address, None).await?);
    let state = query::<String>(connection, &redis_command(&["CLUSTER", "INFO"])).await.map(|text| Info::parse(&text));
    let nodes = query::<String>(connection, &redis_command(&["CLUSTER", "NODES"])).await;
    let members = nodes.map(|text| text.lines().filter_map(|line| parse_member(line, address)).collect());
    Ok(ClusterView { address: address.to_string(), state, members })
}

/// Parses a line of `CLUSTER NODES`, from the node at `queried`:
/// `id ip:port@bus,hostname flags master ping pong epoch link-state slot slot-slot …`
fn parse_member(line: &str, queried: &Address) -> Option<Member> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[id, place, flags, follows, ..] = &words[..] else { return None };
    let has = |flag: &str| flags.split(',').any(|one| one == flag);
    let ranges = words.get(8..).unwrap_or_default().iter().filter_map(|word| parse_slot_range(word));
    Some(Member {
        id: id.to_owned(),
        // A node learns its own address only when the first other node joins.
        address: parse_address(place).or_else(|| has("myself").then(|| queried.clone())),
        is_master: has("master"),
        master_id: (follows != "-").then(|| follows.to_owned()),
        is_failing: has("fail") || has("fail?") || has("noaddr") || has("handshake"),
        slots: ranges.collect(),
    })
}

/// Parses `ip:port@bus,hostname`; without an ip, uses the host name. `None` for port 0.
fn parse_address(place: &str) -> Option<Address> {
    let (place, names) = place.split_once('@').unwrap_or((place, ""));
    let (ip, port) = place.rsplit_once(':')?;
    let name = names.split(',').nth(1).unwrap_or_default();
    let host = if ip.is_empty() { name } else { ip };
    let port = port.parse().ok().filter(|&port| port != 0)?;
    (!host.is_empty()).then(|| Address { host: host.to_owned(), port })
}

/// Parses `5` or `0-5460`; `None` for a migrating slot, `[93-<-id]`, which counts for its present
/// owner.
fn parse_slot_range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_nodes_as_redis_writes_them() {
        let queried = Address { host: "h".into(), port: 7 };
        let one = parse_member(
            "a1 127.0.0.1:30001@31001,host,shard=x myself,master - 0 0 1 connected 0-5460 7 [93-<-b2]",
            &queried,
        );
        let one = one.unwrap();
        assert_eq!(one.address, Some(Address { host: "127.0.0.1".into(), port: 30001 }));
        assert!(one.is_master && !one.is_failing && one.master_id.is_none());
        assert_eq!(one.slots, [0..=5460, 7..=7]);
        let two = parse_member("b2 ::1:30002@31002 slave,fail? a1 0 0 1 connected", &queried).unwrap();
        assert_eq!(two.address.unwrap().to_string(), "[::1]:30002");
        assert!(!two.is_master && two.is_failing && two.master_id.as_deref() == Some("a1"));
        let alone = parse_member("c3 :7000@17000 myself,master - 0 0 0 connected", &queried).unwrap();
        assert_eq!(alone.address, Some(queried.clone()));
        assert_eq!(parse_member("c3 :0@0 noaddr,master - 0 0 0 connected", &queried).unwrap().address, None);
        assert_eq!(parse_member("vars currentEpoch 6", &queried), None);
    }
}
