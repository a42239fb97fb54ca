//! The nodes where the locks are: to whom they belong, and whether they will ever be removed.

use futures_util::future::join_all;
use leasehold_zookeeper::{Client, Error as Cause, Stat};

use super::super::wire;
use super::facts::{Known, No};
use super::probe::ask;

/// How many locks and claims are examined.
const MOST_FOLDERS: usize = 1000;
const MOST_CLAIMS: usize = 10_000;
/// How many are requested concurrently.
const AT_ONCE: usize = 64;
/// How many examples of a kind are named.
const EXAMPLES: usize = 3;
/// The leader removes a lock's empty folder within a minute or two. After this many ms it never
/// will.
const LINGERS: i64 = 10 * 60 * 1000;

/// Some nodes of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) count: usize,
    pub(super) examples: Vec<String>,
}

impl Group {
    fn add(&mut self, path: &str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(path.to_owned());
        }
    }
}

/// The result of the walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nodes {
    /// How many folders there are.
    pub(super) folders: usize,
    /// How many of them were examined.
    pub(super) seen: usize,
    /// How many claims they have.
    pub(super) claims: usize,
    /// Whether everything was examined.
    pub(super) all: bool,
    /// Claims that belong to no session: no server will ever delete them.
    pub(super) immortal: Group,
    /// Nodes that are not ours.
    pub(super) foreign: Group,
    /// Folders that have been empty for so long that the leader will never delete them.
    pub(super) lingering: Group,
    /// The node with the longest list, and the size of that list in bytes.
    pub(super) longest: Option<(String, usize)>,
    /// Empty folders, and the transaction that removed their last node.
    pub(super) empty: Vec<(String, i64)>,
    /// Transactions, and the leader's time at each of them.
    pub(super) marks: Vec<(i64, i64)>,
}

impl Nodes {
    /// Adds a list of names.
    fn list(&mut self, path: &str, names: &[String]) {
        // Each name is preceded by its length.
        let bytes = names.iter().map(|name| name.len() + 4).sum::<usize>() + 4;
        if self.longest.as_ref().is_none_or(|(_, most)| bytes > *most) {
            self.longest = Some((path.to_owned(), bytes));
        }
    }

    /// Adds one more folder.
    fn folder(&mut self, path: &str, stat: &Stat, names: &[String]) {
        self.seen += 1;
        self.list(path, names);
        self.marks.extend([(stat.czxid, stat.ctime), (stat.mzxid, stat.mtime)]);
        for name in names.iter().filter(|name| wire::stand(name).is_none()) {
            self.foreign.add(&format!("{path}/{name}"));
        }
        if names.is_empty() {
            self.empty.push((path.to_owned(), stat.pzxid));
        }
    }

    /// Adds one more claim.
    fn claim(&mut self, path: &str, stat: &Stat) {
        self.claims += 1;
        self.marks.push((stat.czxid, stat.ctime));
        if stat.ephemeral_owner == 0 {
            self.immortal.add(path);
        }
    }

    /// Determines which folders have been empty for long. A stat does not contain the time. But an
    /// old transaction that came after the removal of a folder's last node proves it.
    fn settle(&mut self) {
        let Some(now) = self.marks.iter().map(|(_, time)| *time).max() else { return };
        let old = self.marks.iter().filter(|(_, time)| *time + LINGERS < now).map(|(zxid, _)| *zxid).max();
        for (path, last) in std::mem::take(&mut self.empty) {
            if old.is_some_and(|old| last <= old) {
                self.lingering.add(&path);
            }
        }
        self.marks.clear();
    }
}

/// Walks the locks under `base`, within limits. `now` is a present transaction and the leader's
/// time at it.
pub(super) async fn look(client: &Client, base: &str, probe: Option<&str>, now: Option<(i64, i64)>) -> Known<Nodes> {
    let root = if base.is_empty() { "/" } else { base };
    let mut names = match ask(client.list_children(root)).await {
        Ok(names) => names,
        Err(No::Said(Cause::NoNode)) => Vec::new(),
        Err(no) => return Err(no),
    };
    names.retain(|name| probe.is_none_or(|probe| !probe.ends_with(&format!("/{name}"))));
    names.retain(|name| name != wire::RECORDS && name != wire::EVICTED);
    if base.is_empty() {
        names.retain(|name| name != "zookeeper");
    }
    names.sort_unstable();
    let mut nodes = Nodes { folders: names.len(), all: names.len() <= MOST_FOLDERS, ..Nodes::default() };
    nodes.list(root, &names);
    nodes.marks.extend(now);
    let (ours, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| wire::unescaped(name).is_some());
    others.iter().for_each(|name| nodes.foreign.add(&format!("{base}/{name}")));
    let mut claims = Vec::new();
    let ours: Vec<String> = ours.iter().take(MOST_FOLDERS).map(|name| format!("{base}/{name}")).collect();
    for some in ours.chunks(AT_ONCE) {
        let found = join_all(some.iter().map(|path| ask(client.get_children(path)))).await;
        for (path, found) in some.iter().zip(found) {
            let (names, stat) = match found {
                Ok(found) => found,
                Err(No::Said(Cause::NoNode)) => continue, // It has disappeared meanwhile.
                Err(no) => return Err(no),
            };
            nodes.folder(path, &stat, &names);
            let own = names.iter().filter(|name| wire::stand(name).is_some());
            claims.extend(own.map(|name| format!("{path}/{name}")));
        }
    }
    nodes.all &= claims.len() <= MOST_CLAIMS;
    claims.truncate(MOST_CLAIMS);
    for some in claims.chunks(AT_ONCE) {
        let found = join_all(some.iter().map(|path| ask(client.check_stat(path)))).await;
        for (path, found) in some.iter().zip(found) {
            if let Some(stat) = found? {
                nodes.claim(path, &stat);
            }
        }
    }
    nodes.settle();
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: &str = "0123456789abcdef0123456789abcdef-x-0-0-0000000007";

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
    fn claims_that_nobody_will_delete_and_strangers_are_told_apart() {
        let mut nodes = Nodes::default();
        nodes.folder("/l/a", &stat(1, 0), &[CLAIM.into(), "lock-0000000001".into()]);
        nodes.claim("/l/a/mortal", &Stat { ephemeral_owner: 7, ..stat(2, 0) });
        nodes.claim(&format!("/l/a/{CLAIM}"), &stat(3, 0));
        nodes.settle();
        assert_eq!((nodes.seen, nodes.claims, nodes.lingering.count), (1, 2, 0));
        assert_eq!(nodes.foreign.examples, ["/l/a/lock-0000000001"]);
        assert_eq!(nodes.immortal.examples, [format!("/l/a/{CLAIM}")]);
        assert_eq!(nodes.longest, Some(("/l/a".into(), CLAIM.len() + "lock-0000000001".len() + 12)));
    }

    #[test]
    fn a_folder_lingers_only_if_that_is_sure() {
        let judged = |marks: &[(i64, i64)]| {
            let mut nodes = Nodes::default();
            // Created early; it may have been emptied a moment ago.
            nodes.folder("/l/a", &Stat { pzxid: 50, ..stat(1, 0) }, &[]);
            nodes.marks.extend(marks.iter().map(|(zxid, minute)| (*zxid, minute * 60_000)));
            nodes.settle();
            nodes.lingering.count
        };
        assert_eq!(judged(&[(100, 60)]), 0, "nothing shows when");
        assert_eq!(judged(&[(100, 60), (60, 55)]), 0, "five minutes ago it was empty");
        assert_eq!(judged(&[(100, 60), (60, 45)]), 1, "a quarter of an hour ago it was empty");
        assert_eq!(judged(&[(100, 60), (40, 45)]), 0, "a quarter of an hour ago it was not");
        assert_eq!(judged(&[]), 0);
    }

    #[test]
    fn a_few_are_named_and_all_are_counted() {
        let mut group = Group::default();
        (0..9).for_each(|n| group.add(&n.to_string()));
        assert_eq!((group.count, group.examples.len()), (9, EXAMPLES));
    }
}
