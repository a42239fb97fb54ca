//! Surveys the nodes where the locks are: which belong to no session, which are not leasehold's,
//! and which will never be removed.

use futures_util::future::join_all;
use leasehold_zookeeper::{Client, Error as Cause, Stat};

use super::facts::{Fact, UnknownReason};
use super::probe::with_timeout;
use leasehold_internals::zookeeper::wire;

/// How many locks are examined, at most.
const MAX_FOLDERS: usize = 1000;
/// How many claims are examined, at most.
const MAX_CLAIMS: usize = 10_000;
/// How many nodes are read concurrently.
const MAX_CONCURRENT: usize = 64;
/// How many nodes of a kind a finding names.
const MAX_EXAMPLES: usize = 3;
/// A lock's folder that has been empty for this long, in ms, is never removed: the leader removes
/// empty ones within a minute or two.
const STALE_AFTER_MILLIS: i64 = 10 * 60 * 1000;

/// Nodes of one kind: their number, and some of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeGroup {
    pub(super) count: usize,
    pub(super) examples: Vec<String>,
}

impl NodeGroup {
    /// Counts a node, and keeps its path as an example if there are few so far.
    fn add(&mut self, path: &str) {
        self.count += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(path.to_owned());
        }
    }
}

/// The result of a survey, with the nodes that a healthy ensemble would not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSurvey {
    /// How many locks there are, each of which is a folder.
    pub(super) folders: usize,
    /// How many of them were examined.
    pub(super) examined: usize,
    /// How many claims they have.
    pub(super) claims: usize,
    /// Whether all locks and claims were examined.
    pub(super) is_complete: bool,
    /// Claims that belong to no session: no server will ever delete them.
    pub(super) ownerless: NodeGroup,
    /// Claims in a format that this version of leasehold does not read.
    pub(super) unknown_format: NodeGroup,
    /// Nodes that leasehold did not create.
    pub(super) foreign: NodeGroup,
    /// Folders that have been empty for so long that the leader will never delete them.
    pub(super) stale_folders: NodeGroup,
    /// The node with the longest list, and the size of that list in bytes.
    pub(super) longest_list: Option<(String, usize)>,
    /// Empty folders, and the id of the transaction that removed their last node.
    pub(super) empty_folders: Vec<(String, i64)>,
    /// The ids of some transactions, and the leader's time (in ms) at each of them.
    pub(super) transaction_times: Vec<(i64, i64)>,
}

impl NodeSurvey {
    /// Compares the size of a node's list of children with the longest list so far.
    fn add_list(&mut self, path: &str, names: &[String]) {
        // Each name is preceded by its length.
        let bytes = names.iter().map(|name| name.len() + 4).sum::<usize>() + 4;
        if self.longest_list.as_ref().is_none_or(|(_, most)| bytes > *most) {
            self.longest_list = Some((path.to_owned(), bytes));
        }
    }

    /// Counts a lock's folder, whose children have these names.
    fn add_folder(&mut self, path: &str, stat: &Stat, names: &[String]) {
        self.examined += 1;
        self.add_list(path, names);
        self.transaction_times.extend([(stat.czxid, stat.ctime), (stat.mzxid, stat.mtime)]);
        for name in names.iter().filter(|name| wire::parse_node_name(name).is_none()) {
            let group = if wire::other_format(name).is_some() { &mut self.unknown_format } else { &mut self.foreign };
            group.add(&format!("{path}/{name}"));
        }
        if names.is_empty() {
            self.empty_folders.push((path.to_owned(), stat.pzxid));
        }
    }

    /// Counts a claim.
    fn add_claim(&mut self, path: &str, stat: &Stat) {
        self.claims += 1;
        self.transaction_times.push((stat.czxid, stat.ctime));
        if stat.ephemeral_owner == 0 {
            self.ownerless.add(path);
        }
    }

    /// Determines which folders have been empty for long. A stat does not contain the time. But an
    /// old transaction that came after the removal of a folder's last node proves it.
    fn find_stale_folders(&mut self) {
        let Some(now) = self.transaction_times.iter().map(|(_, time)| *time).max() else { return };
        let old = self
            .transaction_times
            .iter()
            .filter(|(_, time)| *time + STALE_AFTER_MILLIS < now)
            .map(|(zxid, _)| *zxid)
            .max();
        for (path, last) in std::mem::take(&mut self.empty_folders) {
            if old.is_some_and(|old| last <= old) {
                self.stale_folders.add(&path);
            }
        }
        self.transaction_times.clear();
    }
}

/// Surveys the locks under `base`, within limits, except the probe lock. `now` is the id of a
/// present transaction, and the leader's time (in ms) at it.
pub(super) async fn survey_nodes(
    client: &Client,
    base: &str,
    probe: Option<&str>,
    now: Option<(i64, i64)>,
) -> Fact<NodeSurvey> {
    let root = if base.is_empty() { "/" } else { base };
    let mut names = match with_timeout(client.list_children(root)).await {
        Ok(names) => names,
        Err(UnknownReason::RequestFailed(Cause::NoNode)) => Vec::new(),
        Err(reason) => return Err(reason),
    };
    names.retain(|name| probe.is_none_or(|probe| !probe.ends_with(&format!("/{name}"))));
    names.retain(|name| name != wire::RECORDS && name != wire::MARKS_FOLDER);
    if base.is_empty() {
        names.retain(|name| name != "zookeeper");
    }
    names.sort_unstable();
    let mut nodes =
        NodeSurvey { folders: names.len(), is_complete: names.len() <= MAX_FOLDERS, ..NodeSurvey::default() };
    nodes.add_list(root, &names);
    nodes.transaction_times.extend(now);
    let (own, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| wire::unescape_name(name).is_some());
    others.iter().for_each(|name| nodes.foreign.add(&format!("{base}/{name}")));
    let mut claims = Vec::new();
    let own: Vec<String> = own.iter().take(MAX_FOLDERS).map(|name| format!("{base}/{name}")).collect();
    for some in own.chunks(MAX_CONCURRENT) {
        let found = join_all(some.iter().map(|path| with_timeout(client.get_children(path)))).await;
        for (path, found) in some.iter().zip(found) {
            let (names, stat) = match found {
                Ok(found) => found,
                Err(UnknownReason::RequestFailed(Cause::NoNode)) => continue, // It has disappeared meanwhile.
                Err(reason) => return Err(reason),
            };
            nodes.add_folder(path, &stat, &names);
            let own = names.iter().filter(|name| wire::parse_node_name(name).is_some());
            claims.extend(own.map(|name| format!("{path}/{name}")));
        }
    }
    nodes.is_complete &= claims.len() <= MAX_CLAIMS;
    claims.truncate(MAX_CLAIMS);
    for some in claims.chunks(MAX_CONCURRENT) {
        let found = join_all(some.iter().map(|path| with_timeout(client.check_stat(path)))).await;
        for (path, found) in some.iter().zip(found) {
            if let Some(stat) = found? {
                nodes.add_claim(path, &stat);
            }
        }
    }
    nodes.find_stale_folders();
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: &str = "1-0123456789abcdef0123456789abcdef-x-0-0-0000000007";

    fn stat(zxid: i64, minute: i64) -> Stat {
        let time = minute * 60_000;
        Stat {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            version: 0,
            cversion: 1,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    #[test]
    fn ownerless_claims_and_foreign_nodes_are_distinguished() {
        let mut nodes = NodeSurvey::default();
        nodes.add_folder("/l/a", &stat(1, 0), &[CLAIM.into(), "lock-0000000001".into(), "2-newer".into()]);
        nodes.add_claim("/l/a/mortal", &Stat { ephemeral_owner: 7, ..stat(2, 0) });
        nodes.add_claim(&format!("/l/a/{CLAIM}"), &stat(3, 0));
        nodes.find_stale_folders();
        assert_eq!((nodes.examined, nodes.claims, nodes.stale_folders.count), (1, 2, 0));
        assert_eq!(nodes.foreign.examples, ["/l/a/lock-0000000001"]);
        assert_eq!(nodes.unknown_format.examples, ["/l/a/2-newer"]);
        assert_eq!(nodes.ownerless.examples, [format!("/l/a/{CLAIM}")]);
        assert_eq!(
            nodes.longest_list,
            Some(("/l/a".into(), CLAIM.len() + "lock-0000000001".len() + "2-newer".len() + 16))
        );
    }

    #[test]
    fn a_folder_is_stale_only_if_proven() {
        let judged = |marks: &[(i64, i64)]| {
            let mut nodes = NodeSurvey::default();
            // Created early; it may have been emptied a moment ago.
            nodes.add_folder("/l/a", &Stat { pzxid: 50, ..stat(1, 0) }, &[]);
            nodes.transaction_times.extend(marks.iter().map(|(zxid, minute)| (*zxid, minute * 60_000)));
            nodes.find_stale_folders();
            nodes.stale_folders.count
        };
        assert_eq!(judged(&[(100, 60)]), 0, "no transaction proves when");
        assert_eq!(judged(&[(100, 60), (60, 55)]), 0, "five minutes ago it was empty");
        assert_eq!(judged(&[(100, 60), (60, 45)]), 1, "a quarter of an hour ago it was empty");
        assert_eq!(judged(&[(100, 60), (40, 45)]), 0, "a quarter of an hour ago it was not");
        assert_eq!(judged(&[]), 0);
    }

    #[test]
    fn a_group_counts_all_and_names_a_few() {
        let mut group = NodeGroup::default();
        (0..9).for_each(|n| group.add(&n.to_string()));
        assert_eq!((group.count, group.examples.len()), (9, MAX_EXAMPLES));
    }
}
