//! Names that databases tend to treat as equal.

use leasehold_testbed::{mariadb, postgres};

use crate::sql_faults::fixture::{BOTH, Fixture, LASTING, acquire, open_locks};

/// Case, accents, trailing spaces, and 512 bytes: all are different locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_names_are_different_locks() {
    let long = "x".repeat(511);
    let names = [
        "a",
        "A",
        "a ",
        "a  ",
        " a",
        "ä",
        "a\u{308}",
        "Ä",
        "ß",
        "ss",
        "%",
        "_",
        "a\\",
        "a'",
        "a\"",
        "a`; --",
        "日本",
        "💥",
        &format!("{long}y"),
        &format!("{long}z"),
    ]
    .map(str::to_owned);
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, two) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
        let mut guards = Vec::new();
        for name in &names {
            let guard = one.mutex(name).try_lock().await.expect("an answer");
            guards.push(guard.unwrap_or_else(|| panic!("{kind:?}: {name:?} equals another name")));
        }
        let mut listed: Vec<String> =
            two.list("").await.expect("a list").iter().map(|view| view.name.to_string()).collect();
        let mut all = names.to_vec();
        listed.sort();
        all.sort();
        assert_eq!(listed, all, "{kind:?}");
        assert_eq!(two.list("a ").await.expect("a list").len(), 2, "{kind:?}: prefixes are compared byte by byte");
        assert_eq!(two.list("%").await.expect("a list").len(), 1, "{kind:?}: not a wildcard");
    }
}

/// TLS with a CA and a client certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_checks_the_server_certificate() {
    let my = mariadb::MariaDb::new().tls().require_client_certificates().start().await.expect("a server");
    let pg = postgres::Postgres::new().tls().require_client_certificates().start().await.expect("a server");
    for (url, ca, cert, key) in [
        (my.server.url(), my.ca.clone(), my.client_certificate.clone(), my.client_key.clone()),
        (pg.server.url(), pg.ca.clone(), pg.client_certificate.clone(), pg.client_key.clone()),
    ] {
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let tls = format!("{url}?tls=on&ca={ca}&cert={cert}&cert-key={key}");
        assert!(acquire(&open_locks(&tls, LASTING).await, "a").await.is_held());
        for wrong in
            [url.clone(), format!("{url}?tls=on&ca={ca}"), format!("{url}?tls=on&ca={cert}&cert={cert}&cert-key={key}")]
        {
            let error = leasehold::Locks::open(&wrong).await.expect_err("access denied");
            assert!(!error.to_string().contains("password@"), "{error}");
        }
        let error = leasehold::Locks::open(&format!("{url}?tls=on&ca=/none.pem")).await.expect_err("no such file");
        assert!(error.to_string().contains("none.pem") || error.to_string().contains("No such file"), "{error}");
    }
}
