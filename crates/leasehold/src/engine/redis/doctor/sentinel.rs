//! The Sentinels' views of a master, and the servers that they name.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::super::config::{Address, Config};
use super::super::connect;
use super::ask::{Known, Link, No, ask, words};
use super::facts::Aim;
use super::gather;
use super::rules::{self, Expected};
use crate::doctor::Finding;
use crate::error::Result;

/// One Sentinel's view.
#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    pub(crate) address: String,
    /// The master's address, according to this Sentinel.
    pub(crate) master: Known<String>,
    /// Its facts about the master: `quorum`, `num-other-sentinels`, `down-after-milliseconds`, …
    pub(crate) about: Known<HashMap<String, String>>,
    /// Whether enough Sentinels are reachable to agree on a failover.
    pub(crate) quorum: Known<String>,
}

impl Sentinel {
    pub(crate) fn number(&self, key: &str) -> Known<u64> {
        let about = self.about.as_ref().map_err(No::clone)?;
        about.get(key).and_then(|text| text.parse().ok()).ok_or_else(|| No::missing(key))
    }
}

/// A Sentinel's view, and the other servers that it names.
struct Heard {
    view: Sentinel,
    master: Option<Address>,
    replicas: Vec<Address>,
    others: Vec<Address>,
}

pub(super) async fn examine(config: &Config, listed: &[Address], name: &str, aim: &Aim) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut heard = Vec::new();
    let mut asked = listed.to_vec();
    listen(config, listed, name, &mut heard, &mut findings).await;
    let mut others: Vec<_> = heard.iter().flat_map(|one: &Heard| one.others.clone()).collect();
    others.sort();
    others.dedup();
    others.retain(|other| !asked.contains(other) && !heard.iter().any(|one| one.view.address == other.to_string()));
    // A Sentinel that the URL does not name may have two addresses, so the ones that answer are
    // enough.
    listen(config, &others, name, &mut heard, &mut Vec::new()).await;
    asked.extend(others);

    let views: Vec<_> = heard.iter().map(|one| one.view.clone()).collect();
    findings.extend(rules::sentinel::all(&views, name, aim));
    let Some(master) = heard.iter().find_map(|one| one.master.clone()) else { return findings };
    let mut replicas: Vec<_> = heard.iter().flat_map(|one| one.replicas.clone()).collect();
    replicas.sort();
    replicas.dedup();
    replicas.retain(|replica| *replica != master);
    let servers =
        std::iter::once((master, Expected::Master)).chain(replicas.into_iter().map(|r| (r, Expected::Replica)));
    let servers: Vec<_> = servers.map(|(address, expected)| (address, expected, Vec::new())).collect();
    findings.extend(gather::servers(config, &servers, aim, rules::sentinel::silence(&views)).await);
    findings
}

async fn listen(
    config: &Config,
    sentinels: &[Address],
    name: &str,
    heard: &mut Vec<Heard>,
    findings: &mut Vec<Finding>,
) {
    let answers = join_all(sentinels.iter().map(|address| hear(config, address, name))).await;
    for (address, answer) in sentinels.iter().zip(answers) {
        match answer {
            Ok(one) => heard.push(one),
            Err(error) => findings.push(rules::sentinel::unreachable(&address.to_string(), &error)),
        }
    }
}

async fn hear(config: &Config, address: &Address, name: &str) -> Result<Heard> {
    let link = &Link::new(config, connect::sentinel(config, address).await?);
    let place: Known<Option<Vec<String>>> = ask(link, &words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])).await;
    let master = match &place {
        Ok(Some(pair)) => pair.first().zip(pair.get(1)).and_then(|(host, port)| at(host, port)),
        _ => None,
    };
    let said = match (&place, &master) {
        (Err(no), _) => Err(no.clone()),
        (_, Some(master)) => Ok(master.to_string()),
        _ => Err(No::Refused(format!("it knows no master {name:?}"))),
    };
    let about = ask(link, &words(&["SENTINEL", "MASTER", name])).await;
    let quorum = ask(link, &words(&["SENTINEL", "CKQUORUM", name])).await;
    let replicas = ask(link, &words(&["SENTINEL", "REPLICAS", name])).await;
    let others = ask(link, &words(&["SENTINEL", "SENTINELS", name])).await;
    let view = Sentinel { address: address.to_string(), master: said, about, quorum };
    Ok(Heard { view, master, replicas: addresses(replicas), others: addresses(others) })
}

fn addresses(listed: Known<Vec<HashMap<String, String>>>) -> Vec<Address> {
    let listed = listed.unwrap_or_default();
    listed.iter().filter_map(|one| at(one.get("ip")?, one.get("port")?)).collect()
}

fn at(host: &str, port: &str) -> Option<Address> {
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}
