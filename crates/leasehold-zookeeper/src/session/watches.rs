//! The watches of a session.

use std::collections::HashMap;

use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::{oneshot, watch};

use super::SessionCommand;
use crate::types::{EventType, SessionState, WatchedEvent};
use crate::watch::OneshotWatcher;
use crate::wire::WatchedPaths;

/// The events that a watcher waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchKind {
    /// The node's data is set, or the node deleted.
    Data,
    /// The node is created, set or deleted.
    Exists,
    /// A child is created or deleted, or the node itself deleted.
    Children,
}

impl WatchKind {
    /// The protocol's number for the list in which a server has this watch: 2 for a node's data,
    /// which includes its existence, and 1 for its children.
    pub(super) fn watcher_type(self) -> i32 {
        if self == Self::Children { 1 } else { 2 }
    }
}

type Watchers = Vec<oneshot::Sender<WatchedEvent>>;

/// The watchers of one node.
#[derive(Debug, Default)]
struct NodeWatchers {
    /// Watchers of the data, set when the node existed.
    data: Watchers,
    /// Watchers of the creation, set when the node did not exist.
    absent: Watchers,
    /// Watchers of the list of children.
    children: Watchers,
}

/// The watchers of all nodes.
#[derive(Debug)]
pub(super) struct Watches {
    nodes: HashMap<String, NodeWatchers>,
    commands: WeakUnboundedSender<SessionCommand>,
    state: watch::Receiver<SessionState>,
}

impl Watches {
    pub(super) fn new(session: WeakUnboundedSender<SessionCommand>, state: watch::Receiver<SessionState>) -> Self {
        Self { nodes: HashMap::new(), commands: session, state }
    }

    /// Adds a watcher of a node. `node_exists`: whether the node existed when the server set the
    /// watch.
    pub(super) fn add(&mut self, interest: WatchKind, path: String, node_exists: bool) -> OneshotWatcher {
        let (sender, receiver) = oneshot::channel();
        let node = self.nodes.entry(path.clone()).or_default();
        let watchers = match interest {
            WatchKind::Children => &mut node.children,
            _ if node_exists => &mut node.data,
            _ => &mut node.absent,
        };
        watchers.push(sender);
        OneshotWatcher::new(receiver, (interest, path), self.commands.clone(), self.state.clone())
    }

    /// Delivers an event of the server to the watchers that wait for it, and removes them.
    pub(super) fn deliver(&mut self, event_type: EventType, path: &str) {
        let Some(node) = self.nodes.get_mut(path) else { return };
        let mut notified = Watchers::new();
        if event_type != EventType::NodeChildrenChanged {
            notified.append(&mut node.data);
            notified.append(&mut node.absent);
        }
        if matches!(event_type, EventType::NodeChildrenChanged | EventType::NodeDeleted) {
            notified.append(&mut node.children);
        }
        self.remove_if_unwatched(path);
        for watcher in notified {
            let event = WatchedEvent { event_type, session_state: *self.state.borrow(), path: path.to_owned() };
            // The watcher may have been dropped.
            let _ = watcher.send(event);
        }
    }

    /// Removes dropped watchers of a node. `true` if the server's watch is no longer needed: some
    /// were removed, and none is left.
    pub(super) fn remove_dropped(&mut self, interest: WatchKind, path: &str) -> bool {
        let Some(node) = self.nodes.get_mut(path) else { return false };
        let lists: &mut [&mut Watchers] = match interest {
            WatchKind::Children => &mut [&mut node.children],
            _ => &mut [&mut node.data, &mut node.absent],
        };
        let count = |lists: &[&mut Watchers]| lists.iter().map(|list| list.len()).sum::<usize>();
        let before = count(lists);
        lists.iter_mut().for_each(|list| list.retain(|watcher| !watcher.is_closed()));
        let alone = before > 0 && count(lists) == 0;
        self.remove_if_unwatched(path);
        alone
    }

    fn remove_if_unwatched(&mut self, path: &str) {
        let watched =
            |node: &NodeWatchers| !(node.data.is_empty() && node.absent.is_empty() && node.children.is_empty());
        if self.nodes.get(path).is_some_and(|node| !watched(node)) {
            self.nodes.remove(path);
        }
    }

    /// All watched paths, to be watched again at the next server.
    pub(super) fn watched_paths(&self) -> WatchedPaths<'_> {
        let mut watched = WatchedPaths::default();
        for (path, node) in &self.nodes {
            for (paths, watchers) in watched.iter_mut().zip([&node.data, &node.absent, &node.children]) {
                if !watchers.is_empty() {
                    paths.push(path);
                }
            }
        }
        watched
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn watches() -> (Watches, tokio::sync::mpsc::UnboundedSender<SessionCommand>) {
        let (requests, _) = unbounded_channel();
        let (_, state) = watch::channel(SessionState::SyncConnected);
        (Watches::new(requests.downgrade(), state), requests)
    }

    #[tokio::test]
    async fn an_event_is_delivered_once_to_all_its_watchers() {
        let (mut watches, _requests) = watches();
        let data = watches.add(WatchKind::Data, "/a".into(), true);
        let exists = watches.add(WatchKind::Exists, "/a".into(), true);
        let children = watches.add(WatchKind::Children, "/a".into(), true);
        let absent = watches.add(WatchKind::Exists, "/b".into(), false);
        assert_eq!(watches.watched_paths().map(|paths| paths.len()), [1, 1, 1]);
        watches.deliver(EventType::NodeDataChanged, "/a");
        for watcher in [data, exists] {
            assert_eq!(watcher.changed().await.event_type, EventType::NodeDataChanged);
        }
        watches.deliver(EventType::NodeDeleted, "/a");
        assert_eq!(children.changed().await.event_type, EventType::NodeDeleted);
        watches.deliver(EventType::NodeCreated, "/b");
        let event = absent.changed().await;
        assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeCreated, "/b"));
        assert!(watches.nodes.is_empty());
    }

    #[tokio::test]
    async fn dropped_watchers_leave_no_watch() {
        let (mut watches, _requests) = watches();
        for _ in 0..100 {
            drop(watches.add(WatchKind::Children, "/a".into(), true));
            assert!(watches.remove_dropped(WatchKind::Children, "/a"));
        }
        assert!(watches.nodes.is_empty());
        let (data, absent) =
            (watches.add(WatchKind::Data, "/a".into(), true), watches.add(WatchKind::Exists, "/a".into(), false));
        drop(data);
        assert!(!watches.remove_dropped(WatchKind::Data, "/a"), "the other watcher needs it");
        drop(absent);
        assert!(watches.remove_dropped(WatchKind::Exists, "/a"));
        assert!(!watches.remove_dropped(WatchKind::Exists, "/a"), "it was gone");
    }
}
