//! A login by SASL, before all other requests.

use super::peer::{Peer, open, settings};
use crate::jute::Reader;
use crate::sasl::SaslOptions;
use crate::session::Settings;
use crate::wire::op;
use crate::{Client, Error};

const CHALLENGE: &[u8] = br#"realm="zk-sasl-md5",nonce="n0nce",qop="auth",charset=utf-8,algorithm=md5-sess"#;

/// Runs the exchange up to the client's response; returns that response and its number.
async fn run_exchange(peer: &mut Peer) -> (i32, String) {
    peer.accept_session().await;
    let first = peer.expect(op::SASL).await;
    assert_eq!(Reader::new(&first.body).buffer(), Ok(&[][..]), "it begins with an empty message");
    peer.reply(first.xid, 0, 0, |writer| writer.buffer(CHALLENGE)).await;
    let answer = peer.expect(op::SASL).await;
    let text = Reader::new(&answer.body).text().unwrap().to_owned();
    (answer.xid, text)
}

fn opening() -> (tokio::task::JoinHandle<crate::Result<Client>>, super::peer::Ensemble) {
    let sasl = Some(SaslOptions::digest_md5("ann", "sesame"));
    open(Settings { sasl, logins: vec![("digest".into(), b"x:y".to_vec())], ..settings() }, "a,b")
}

#[tokio::test(start_paused = true)]
async fn a_refused_login_is_reported_at_once() {
    let (opening, mut ensemble) = opening();
    let mut peer = ensemble.next().await;
    let (xid, message) = run_exchange(&mut peer).await;
    assert!(message.contains(r#"username="ann",realm="zk-sasl-md5",nonce="n0nce""#), "{message}");
    assert!(
        message.contains(r#"digest-uri="zookeeper/zk-sasl-md5",qop=auth,response="#) && !message.contains("sesame")
    );
    peer.reply(xid, 0, -115, |_| {}).await;
    assert_eq!(opening.await.unwrap().unwrap_err(), Error::AuthFailed);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_password_is_refused() {
    let (opening, mut ensemble) = opening();
    let mut peer = ensemble.next().await;
    let (xid, _) = run_exchange(&mut peer).await;
    peer.reply(xid, 0, 0, |writer| writer.buffer(b"rspauth=00000000000000000000000000000000")).await;
    assert_eq!(opening.await.unwrap().unwrap_err(), Error::AuthFailed);
}

/// The reply of a server that knows the password, computed from the client's message.
#[tokio::test(start_paused = true)]
async fn a_login_comes_before_all_other_requests() {
    use md5::{Digest, Md5};
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (opening, mut ensemble) = opening();
    let mut peer = ensemble.next().await;
    let (xid, message) = run_exchange(&mut peer).await;
    let cnonce = message.split("cnonce=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut key = Md5::digest("ann:zk-sasl-md5:sesame").to_vec();
    key.extend_from_slice(format!(":n0nce:{cnonce}").as_bytes());
    let (key, uri) = (hex(&Md5::digest(&key)), "zookeeper/zk-sasl-md5");
    let answer = |method: &str| {
        let method = hex(&Md5::digest(format!("{method}:{uri}")));
        hex(&Md5::digest(format!("{key}:n0nce:00000001:{cnonce}:auth:{method}")))
    };
    assert!(message.ends_with(&format!("response={}", answer("AUTHENTICATE"))), "{message}");
    peer.reply(xid, 0, 0, |writer| writer.buffer(format!("rspauth={}", answer("")).as_bytes())).await;
    peer.expect(op::AUTH).await;
    peer.answer_ping().await;
    assert!(opening.await.unwrap().is_ok());
}
