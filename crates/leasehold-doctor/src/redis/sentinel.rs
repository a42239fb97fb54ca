//! The Sentinels' views of a master, and the servers that they name.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::facts::Requirements;
use super::gather;
use super::query::{Fact, QueryConnection, QueryError, query, redis_command};
use super::rules::{self, ExpectedRole};
use crate::Finding;
use leasehold::Result;
use leasehold_internals::redis::{Address, Config, connect};

/// What one Sentinel reports about the master.
#[derive(Clone, Debug)]
pub(crate) struct SentinelView {
    pub(crate) address: String,
    /// The master's address, according to this Sentinel.
    pub(crate) master: Fact<String>,
    /// Its facts about the master: `quorum`, `num-other-sentinels`, `down-after-milliseconds`, …
    pub(crate) master_info: Fact<HashMap<String, String>>,
    /// The reply to `SENTINEL CKQUORUM`: whether enough Sentinels are reachable for a failover.
    pub(crate) quorum: Fact<String>,
}

impl SentinelView {
    /// A number from the Sentinel's facts about the master.
    pub(crate) fn number(&self, key: &str) -> Fact<u64> {
        let about = self.master_info.as_ref().map_err(QueryError::clone)?;
        about.get(key).and_then(|text| text.parse().ok()).ok_or_else(|| QueryError::missing(key))
    }
}

/// A Sentinel's view, and the other servers that it names.
struct SentinelAnswer {
    view: SentinelView,
    master: Option<Address>,
    replicas: Vec<Address>,
    other_sentinels: Vec<Address>,
}

/// Examines the Sentinels in the URL, those that they name, the master `name`, and its replicas.
pub(super) async fn examine(
    config: &Config,
    listed: &[Address],
    name: &str,
    requirements: &Requirements,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut responses = Vec::new();
    let mut queried = listed.to_vec();
    query_sentinels(config, listed, name, &mut responses, &mut findings).await;
    let mut others: Vec<_> = responses.iter().flat_map(|one: &SentinelAnswer| one.other_sentinels.clone()).collect();
    others.sort();
    others.dedup();
    others
        .retain(|other| !queried.contains(other) && !responses.iter().any(|one| one.view.address == other.to_string()));
    // A Sentinel that the URL does not list may have two addresses, so it is enough that one
    // responds.
    query_sentinels(config, &others, name, &mut responses, &mut Vec::new()).await;
    queried.extend(others);

    let views: Vec<_> = responses.iter().map(|one| one.view.clone()).collect();
    findings.extend(rules::sentinel::judge_sentinels(&views, name, requirements));
    let Some(master) = responses.iter().find_map(|one| one.master.clone()) else { return findings };
    let mut replicas: Vec<_> = responses.iter().flat_map(|one| one.replicas.clone()).collect();
    replicas.sort();
    replicas.dedup();
    replicas.retain(|replica| *replica != master);
    let servers =
        std::iter::once((master, ExpectedRole::Master)).chain(replicas.into_iter().map(|r| (r, ExpectedRole::Replica)));
    let servers: Vec<_> = servers.map(|(address, expected)| (address, expected, Vec::new())).collect();
    findings.extend(
        gather::examine_servers(config, &servers, requirements, rules::sentinel::shortest_failover_delay(&views)).await,
    );
    findings
}

/// Queries Sentinels; adds the answers to `responses`, and a finding for each that is unreachable.
async fn query_sentinels(
    config: &Config,
    sentinels: &[Address],
    name: &str,
    responses: &mut Vec<SentinelAnswer>,
    findings: &mut Vec<Finding>,
) {
    let answers = join_all(sentinels.iter().map(|address| query_sentinel(config, address, name))).await;
    for (address, answer) in sentinels.iter().zip(answers) {
        match answer {
            Ok(one) => responses.push(one),
            Err(error) => findings.push(rules::sentinel::judge_unreachable(&address.to_string(), &error)),
        }
    }
}

/// Asks one Sentinel for the master `name`, its replicas, and the other Sentinels.
async fn query_sentinel(config: &Config, address: &Address, name: &str) -> Result<SentinelAnswer> {
    let connection = &QueryConnection::new(config, connect::to_sentinel(config, address).await?);
    let place: Fact<Option<Vec<String>>> =
        query(connection, &redis_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])).await;
    let master = match &place {
        Ok(Some(pair)) => pair.first().zip(pair.get(1)).and_then(|(host, port)| parse_address(host, port)),
        _ => None,
    };
    let master_fact = match (&place, &master) {
        (Err(error), _) => Err(error.clone()),
        (_, Some(master)) => Ok(master.to_string()),
        _ => Err(QueryError::Refused(format!("it knows no master {name:?}"))),
    };
    let about = query(connection, &redis_command(&["SENTINEL", "MASTER", name])).await;
    let quorum = query(connection, &redis_command(&["SENTINEL", "CKQUORUM", name])).await;
    let replicas = query(connection, &redis_command(&["SENTINEL", "REPLICAS", name])).await;
    let others = query(connection, &redis_command(&["SENTINEL", "SENTINELS", name])).await;
    let view = SentinelView { address: address.to_string(), master: master_fact, master_info: about, quorum };
    Ok(SentinelAnswer { view, master, replicas: parse_addresses(replicas), other_sentinels: parse_addresses(others) })
}

/// The addresses in a Sentinel's list of servers; none if the list is not known.
fn parse_addresses(listed: Fact<Vec<HashMap<String, String>>>) -> Vec<Address> {
    let listed = listed.unwrap_or_default();
    listed.iter().filter_map(|one| parse_address(one.get("ip")?, one.get("port")?)).collect()
}

fn parse_address(host: &str, port: &str) -> Option<Address> {
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}
