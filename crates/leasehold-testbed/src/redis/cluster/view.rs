//! The cluster as one of its nodes sees it.

use std::net::SocketAddr;

use crate::{Result, redis::command};

/// One node's view of all nodes.
#[derive(Debug)]
pub(super) struct ClusterView(Vec<NodeEntry>);

/// How a node of the cluster sees one node, itself or another.
#[derive(Debug)]
pub(super) struct NodeEntry {
    pub(super) id: String,
    flags: Vec<String>,
    /// The id of the node that it replicates; `None` for a master.
    pub(super) master: Option<String>,
    /// Whether the viewing node has a connection to it.
    is_connected: bool,
    /// The ranges of slots that it owns: the first and the last slot of each.
    slots: Vec<(u16, u16)>,
}

impl ClusterView {
    /// Asks the node at `addr` for its view of all nodes.
    pub(super) async fn fetch(addr: SocketAddr) -> Result<Self> {
        let text = command::into_text(command::command_once(addr, None, &["CLUSTER", "NODES"]).await?)?;
        Ok(Self(text.lines().filter_map(NodeEntry::parse).collect()))
    }

    pub(super) fn entry(&self, id: &str) -> Option<&NodeEntry> {
        self.0.iter().find(|entry| entry.id == id)
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<&NodeEntry> {
        self.0.iter().find(|entry| entry.slots.iter().any(|&(first, last)| (first..=last).contains(&slot)))
    }
}

impl NodeEntry {
    /// Parses a line of `CLUSTER NODES`; `None` if it has too few columns. Columns: id, address,
    /// flags, master, ping sent, pong received, epoch, link, slots.
    fn parse(line: &str) -> Option<Self> {
        let columns: Vec<&str> = line.split_whitespace().collect();
        Some(Self {
            id: (*columns.first()?).to_owned(),
            flags: columns.get(2)?.split(',').map(str::to_owned).collect(),
            master: Some(*columns.get(3)?).filter(|master| *master != "-").map(str::to_owned),
            is_connected: *columns.get(7)? == "connected",
            slots: columns[8..].iter().filter_map(|slots| parse_slots(slots)).collect(),
        })
    }

    pub(super) fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|found| found == flag)
    }

    /// Whether the node is neither in handshake, nor suspected to be down, nor down.
    pub(super) fn is_healthy(&self) -> bool {
        let unhealthy_flags = ["handshake", "noaddr", "fail?", "fail"];
        self.is_connected && !unhealthy_flags.iter().any(|flag| self.has_flag(flag))
    }
}

/// Parses a slot `7` or a range `7-9`. `None` for a migrating slot such as `[7->-id]`, which its
/// owner lists in a range, too.
fn parse_slots(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_with_its_slots_but_without_moving_ones() {
        let line = "ab 127.0.0.1:1@2 myself,master - 0 0 3 connected 0-9 12 [12->-cd] [13-<-ef]";
        let view = ClusterView(vec![NodeEntry::parse(line).unwrap()]);
        let entry = view.entry("ab").unwrap();
        assert!(entry.is_healthy() && entry.has_flag("master") && entry.master.is_none());
        let owned: Vec<u16> = (0..20).filter(|&slot| view.owner_of(slot).is_some()).collect();
        assert_eq!(owned, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12]);
        let suspected = NodeEntry::parse("cd 127.0.0.1:3@4 slave,fail? ab 0 0 3 connected").unwrap();
        assert!(!suspected.is_healthy() && suspected.master.as_deref() == Some("ab"));
    }
}
