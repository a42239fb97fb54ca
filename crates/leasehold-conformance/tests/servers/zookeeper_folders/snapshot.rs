//! Edits a server's snapshot on disk, because creating 2³¹ nodes takes too long.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_testbed::{Data, Server};
use leasehold_zookeeper::{Client, CreateMode};
use tokio::sync::OnceCell;

use crate::zookeeper_folders::fixture::{Fixture, create_node};

/// The bases of the tests, and the next sequence number of the folder `a` in each.
const NEXT_NUMBERS: [(&str, i32); 7] = [
    ("/order", i32::MAX - 2),
    ("/same", i32::MAX),
    ("/readers", i32::MAX - 1),
    ("/owner", i32::MAX),
    ("/permits", i32::MAX),
    ("/crowd", i32::MAX - 30),
    ("/restart", i32::MAX - 1),
];

/// A base on a server that keeps empty folders; the sequence of its folder `a` is about to end.
pub(crate) async fn fixture_with_sequence(base: &'static str) -> Fixture {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    Fixture { server: SERVER.get_or_init(start).await, base }
}

async fn start() -> Server {
    // Without the digest of its nodes, the snapshot has a single checksum at its end.
    let zookeeper = ZooKeeper::new()
        .container_check_interval(std::time::Duration::from_secs(3600))
        .property("zookeeper.digest.enabled", "false");
    let mut server = zookeeper.start().await.expect("a server");
    let admin = Client::connect(&server.url()).await.expect("a session");
    for (base, _) in NEXT_NUMBERS {
        create_node(&admin, base, CreateMode::Persistent).await;
        create_node(&admin, &format!("{base}/a"), CreateMode::Container).await;
    }
    drop(admin);
    // The server writes a snapshot when it starts.
    server.restart(Data::Keep).await.expect("a server with a snapshot");
    server.stop().await.expect("a stopped server");
    let snapshot = newest_snapshot(&server);
    let mut bytes = fs::read(&snapshot).expect("a snapshot");
    for (base, next) in NEXT_NUMBERS {
        set_children_version(&mut bytes, &format!("{base}/a"), next);
    }
    write_checksum(&mut bytes);
    fs::write(&snapshot, bytes).expect("a changed snapshot");
    server.restart(Data::Keep).await.expect("a server that accepts it");
    server
}

/// The snapshot with the highest transaction.
fn newest_snapshot(server: &Server) -> PathBuf {
    let files = fs::read_dir(server.dir().join("version-2")).expect("the data folder");
    let files = files.map(|file| file.expect("a file").path());
    let transaction = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        u64::from_str_radix(name.strip_prefix("snapshot.")?, 16).ok()
    };
    files.filter(|path| transaction(path).is_some()).max_by_key(|path| transaction(path)).expect("a snapshot")
}

/// A node is its path, its data, the number of its ACL, and its state: four long integers, its data
/// version, and then the child version, which is the next child's sequence number. Lengths precede
/// text and data.
fn set_children_version(bytes: &mut [u8], path: &str, next: i32) {
    let mut start = u32::try_from(path.len()).expect("a short path").to_be_bytes().to_vec();
    start.extend_from_slice(path.as_bytes());
    let at = bytes.windows(start.len()).position(|window| window == start).expect("the folder") + start.len();
    let data = i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    // Without data, the length is -1.
    let state = at + 4 + usize::try_from(data).unwrap_or_default() + 8;
    let version = state + 4 * 8 + 4;
    bytes[version..version + 4].copy_from_slice(&next.to_be_bytes());
}

/// The snapshot ends with a checksum of all preceding bytes, and a slash.
fn write_checksum(bytes: &mut [u8]) {
    let end = bytes.len() - 8 - 5;
    assert_eq!(bytes[end + 8..], [0, 0, 0, 1, b'/'], "not the end of a snapshot");
    let sum = checksum(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&sum.to_be_bytes());
}

/// Adler-32.
fn checksum(bytes: &[u8]) -> u64 {
    let (low, high) = bytes.iter().fold((1u32, 0u32), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65521;
        (low, (high + low) % 65521)
    });
    u64::from(high << 16 | low)
}
