//! Server and client certificates.

#[cfg(feature = "nightly")]
use std::fs;

use leasehold::ErrorKind;
use leasehold_testbed::tls::TlsServer;
use leasehold_testbed::zookeeper::{ZooKeeper, plain_addr};

#[cfg(feature = "nightly")]
use crate::zookeeper_access::fixture::nodes;
use crate::zookeeper_access::fixture::{acquire_and_release, assert_error, open_error, open_locks};

async fn server() -> TlsServer {
    ZooKeeper::new().tls().start().await.expect("a server")
}

fn url(zookeeper: &TlsServer, options: &str) -> String {
    format!("zookeeper://{}/base?{options}", zookeeper.server.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_by_its_authority() {
    let (one, other) = tokio::join!(server(), server());
    let trusting = url(&one, &format!("tls=on&ca={}", one.ca.display()));
    acquire_and_release(&open_locks(&trusting).await).await;
    // `ca=` alone enables TLS, and the certificate is valid for this name as well.
    acquire_and_release(
        &open_locks(&url(&one, &format!("ca={}", one.ca.display())).replace("127.0.0.1", "localhost")).await,
    )
    .await;

    let wrong = open_error(&url(&one, &format!("tls=on&ca={}", other.ca.display()))).await;
    assert_error(&wrong, ErrorKind::Unavailable, &["ca=", "TLS", &one.server.url()]);
    let plain = open_error(&format!("zookeeper://{}/base", one.server.url())).await;
    assert_error(&plain, ErrorKind::Unavailable, &["tls=on", &one.server.url()]);
    let no_tls = open_error(&trusting.replace(&one.server.url(), &plain_addr(&one.server).to_string())).await;
    assert_error(&no_tls, ErrorKind::Unavailable, &["TLS", &plain_addr(&one.server).to_string()]);
    acquire_and_release(&open_locks(&format!("zookeeper://{}/base", plain_addr(&one.server))).await).await;
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_demand_a_certificate() {
    let zookeeper = ZooKeeper::new().tls().require_client_certificates().start().await.expect("a server");
    let anonymous = url(&zookeeper, &format!("tls=on&ca={}", zookeeper.ca.display()));
    let error = open_error(&anonymous).await;
    assert_error(&error, ErrorKind::Unavailable, &["cert=", "cert-key="]);
    let (cert, key) = (zookeeper.client_certificate.display(), zookeeper.client_key.display());
    let authenticated = open_locks(&format!("{anonymous}&cert={cert}&cert-key={key}&acl=open")).await;
    acquire_and_release(&authenticated).await;
    let reversed = open_error(&format!("{anonymous}&cert={key}&cert-key={cert}")).await;
    assert_error(&reversed, ErrorKind::InvalidUrl, &[".pem"]);
}

/// A client certificate identifies the user, who owns the nodes unless the URL says otherwise.
#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_a_login() {
    let provider = "org.apache.zookeeper.server.auth.X509AuthenticationProvider";
    let zookeeper = ZooKeeper::new().setting("authProvider.x509", provider).setting("ssl.authProvider", "x509");
    let zookeeper = zookeeper.tls().require_client_certificates().start().await.expect("a server");
    let (ca, cert, key) =
        (zookeeper.ca.display(), zookeeper.client_certificate.display(), zookeeper.client_key.display());
    let mine = open_locks(&url(&zookeeper, &format!("ca={ca}&cert={cert}&cert-key={key}&acl=readable"))).await;
    let held = mine.mutex("a").lock().await.expect("a lock");
    let admin = plain_admin_client(&zookeeper).await;
    for path in nodes(&admin, "/base/a").await {
        let (acl, _) = admin.get_acl(&path).await.expect("an ACL");
        assert!(acl.iter().any(|acl| acl.scheme() == "x509" && acl.id().contains("leasehold tests")), "{acl:?}");
    }
    let anonymous = open_locks(&format!("zookeeper://{}/base", plain_addr(&zookeeper.server))).await;
    let error = anonymous.mutex("a").try_lock().await.expect_err("the nodes belong to another user");
    assert_error(&error, ErrorKind::Denied, &["/base"]);
    drop(held);
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_missing_or_garbage_are_named() {
    let zookeeper = server().await;
    let (good, key) = (zookeeper.ca.display(), zookeeper.client_key.display());
    let garbage = zookeeper.server.dir().join("garbage.pem");
    fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nnot base64 at all!\n").expect("a file");
    let binary = zookeeper.server.dir().join("binary.der");
    fs::write(&binary, [0x30, 0x82, 0xff, 0x00]).expect("a file");
    let (empty, garbage, binary) = (zookeeper.server.dir().join("empty.pem"), garbage.display(), binary.display());
    fs::write(&empty, "").expect("a file");
    let empty = empty.display();
    let folder = zookeeper.server.dir().display();
    for (options, file) in [
        ("ca=/no/such/file".to_owned(), "/no/such/file".to_owned()),
        (format!("ca={garbage}"), garbage.to_string()),
        (format!("ca={binary}"), binary.to_string()),
        (format!("ca={empty}"), empty.to_string()),
        (format!("ca={folder}"), folder.to_string()),
        (format!("ca={key}"), key.to_string()),
        (format!("ca={good}&cert=/no/cert&cert-key={key}"), "/no/cert".to_owned()),
        (format!("ca={good}&cert={good}&cert-key=/no/key"), "/no/key".to_owned()),
        (format!("ca={good}&cert={garbage}&cert-key={key}"), garbage.to_string()),
        (format!("ca={good}&cert={empty}&cert-key={key}"), empty.to_string()),
        (format!("ca={good}&cert={good}&cert-key={garbage}"), garbage.to_string()),
        (format!("ca={good}&cert={good}&cert-key={empty}"), empty.to_string()),
        // Both are valid, but do not match.
        (format!("ca={good}&cert={good}&cert-key={key}"), key.to_string()),
    ] {
        let error = open_error(&url(&zookeeper, &format!("tls=on&{options}"))).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{options}: {error}");
        assert!(error.to_string().contains(&file), "{options}: {error}");
    }
    let admin = plain_admin_client(&zookeeper).await;
    assert!(admin.check_stat("/base").await.expect("an answer").is_none(), "a client has connected");
}

#[cfg(feature = "nightly")]
async fn plain_admin_client(zookeeper: &TlsServer) -> leasehold_zookeeper::Client {
    leasehold_zookeeper::Client::connect(&plain_addr(&zookeeper.server).to_string()).await.expect("a session")
}
