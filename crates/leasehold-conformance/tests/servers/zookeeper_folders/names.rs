//! Every valid lock name maps to a valid node, and no two to the same one.

use futures_util::future::join_all;
use leasehold::Guard;

use crate::zookeeper_folders::fixture::{Fixture, release, stat};

fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "zookeeper",
        "Zookeeper",
        "%7Aookeeper",
        "zookeeper/quota",
        "a",
        "A",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a%b",
        "/",
        "//",
        "/a",
        "a/",
        ".",
        "..",
        "...",
        "./a",
        "a/../b",
        ".a",
        "a.",
        "%",
        "%%",
        "%2E",
        "%25",
        "%2",
        " ",
        "  ",
        "a b",
        "a+b",
        "a\\b",
        "é",
        "e\u{301}",
        "ß",
        "名前",
        "🔒",
        "\u{a0}",
        "\u{200b}",
        "\u{feff}",
        "\u{e000}",
        "\u{f8ff}",
        "\u{fff0}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{f0000}",
        "\u{10ffff}",
        "lock-0000000001",
        "1-00000000000000000000000000000001-x-0-0-0000000001",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend(
        [("a", 512), ("/", 512), (" ", 512), ("é", 256), ("🔒", 128), ("\u{10ffff}", 128)]
            .map(|(text, times)| text.repeat(times)),
    );
    names.push("/".repeat(511));
    names
}

async fn check_all_names(fixture: Fixture) {
    let base = fixture.base;
    let (one, two) = (fixture.open_locks().await, fixture.open_locks().await);
    let names = names();
    let taken = join_all(names.iter().map(async |name| one.mutex(name).try_lock().await)).await;
    let held: Vec<Guard> = names
        .iter()
        .zip(taken)
        .map(|(name, taken)| {
            taken
                .unwrap_or_else(|error| panic!("{name:?}: {error}"))
                .unwrap_or_else(|| panic!("{name:?} equals another name"))
        })
        .collect();
    let again = join_all(names.iter().map(async |name| two.mutex(name).try_lock().await)).await;
    for (name, again) in names.iter().zip(again) {
        assert!(again.expect("an answer").is_none(), "{name:?} has two holders");
    }
    let mut seen: Vec<String> = Vec::new();
    for view in two.list("").await.expect("a list") {
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
        seen.push(view.name.as_str().to_owned());
    }
    let mut expected = names.clone();
    expected.sort();
    seen.sort();
    assert_eq!(seen, expected);
    // The data of a folder is its lock's name.
    let admin = fixture.admin_client().await;
    let parent = if base.is_empty() { "/" } else { base };
    let folders = admin.list_children(parent).await.expect("a list");
    for folder in folders.iter().filter(|folder| *folder != "zookeeper") {
        let (data, _) = admin.get_data(&format!("{base}/{folder}")).await.expect("a folder");
        assert!(names.contains(&String::from_utf8(data).expect("text")), "{folder}");
    }
    assert!(stat(&admin, "/zookeeper/quota").await.is_some(), "the server's own nodes still exist");
    join_all(held.into_iter().map(release)).await;
    assert!(two.list("").await.expect("a list").is_empty());
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_names_are_locked_at_once_below_the_root() {
    static SERVER: tokio::sync::OnceCell<leasehold_testbed::Server> = tokio::sync::OnceCell::const_new();
    let start = || async { leasehold_testbed::zookeeper::start().await.expect("a server") };
    check_all_names(Fixture { server: SERVER.get_or_init(start).await, base: "" }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_names_are_locked_at_once_below_a_base() {
    check_all_names(Fixture::new("/names").await).await;
}
