//! SASL DIGEST-MD5 (RFC 2831), as ZooKeeper's servers use it: `qop=auth`, one round, and the
//! server's proof at the end.

use std::fmt;

use md5::{Digest, Md5};

use crate::error::{Error, Result};
use crate::random::bits;

/// The service and the host name that all servers use for DIGEST-MD5.
const URI: &str = "zookeeper/zk-sasl-md5";
/// The number of responses that use the server's nonce, in hexadecimal: always the first.
const COUNT: &str = "00000001";

/// A login by SASL.
///
/// ```
/// use leasehold_zookeeper::{Client, SaslOptions};
///
/// let login = SaslOptions::digest_md5("app", "secret");
/// assert_eq!(format!("{login:?}"), "SaslOptions(***)");
/// let connector = Client::connector().with_sasl(login);
/// ```
#[derive(Clone)]
pub struct SaslOptions {
    user: String,
    password: String,
}

impl SaslOptions {
    /// A login by DIGEST-MD5.
    pub fn digest_md5(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into() }
    }
}

impl fmt::Debug for SaslOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaslOptions(***)")
    }
}

/// The client's side of one login: it answers the server's challenges in turn.
#[derive(Debug)]
pub(crate) struct SaslExchange {
    options: SaslOptions,
    /// The client's nonce.
    cnonce: String,
    /// The final reply by which the server proves that it knows the password; `None` before the
    /// client's response.
    expected_proof: Option<String>,
}

impl SaslExchange {
    pub(crate) fn new(options: SaslOptions) -> Self {
        // The nonce differs each time, so that no server can choose the hashed bytes.
        Self { options, cnonce: format!("{:016x}{:016x}", bits(), bits()), expected_proof: None }
    }

    /// The response to a challenge; `None` once the server has proved that it knows the password.
    ///
    /// # Errors
    /// [`Error::AuthFailed`] if the server does not prove that it knows the password.
    pub(crate) fn respond(&mut self, challenge: &[u8]) -> Result<Option<Vec<u8>>> {
        let text = std::str::from_utf8(challenge).map_err(|_| Error::Malformed("a SASL challenge is not UTF-8"))?;
        let fields = fields(text);
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if let Some(proof) = &self.expected_proof {
            return if field("rspauth") == Some(proof) { Ok(None) } else { Err(Error::AuthFailed) };
        }
        let nonce = field("nonce").ok_or(Error::Malformed("a SASL challenge without nonce"))?;
        if field("qop").is_some_and(|qop| qop.split(',').all(|one| one.trim() != "auth")) {
            return Err(Error::Malformed("a SASL challenge for more than a login"));
        }
        let realm = field("realm").unwrap_or_default();
        let key = self.session_key(realm, nonce);
        let answer = |method: &str| {
            let method = md5_hex(&format!("{method}:{URI}"));
            md5_hex(&format!("{key}:{nonce}:{COUNT}:{}:auth:{method}", self.cnonce))
        };
        let (response, proof) = (answer("AUTHENTICATE"), answer(""));
        let response = format!(
            "charset=utf-8,username={},realm={},nonce={},nc={COUNT},cnonce={},digest-uri={},qop=auth,response={response}",
            quoted(&self.options.user),
            quoted(realm),
            quoted(nonce),
            quoted(&self.cnonce),
            quoted(URI),
        );
        self.expected_proof = Some(proof);
        Ok(Some(response.into_bytes()))
    }

    /// The hash of the user and password, for this exchange.
    fn session_key(&self, realm: &str, nonce: &str) -> String {
        let mut secret = Md5::new();
        for (at, part) in [&self.options.user, realm, &self.options.password].into_iter().enumerate() {
            if at > 0 {
                secret.update(b":");
            }
            secret.update(latin1_or_utf8(part));
        }
        let mut key = Md5::new();
        key.update(secret.finalize());
        key.update(format!(":{nonce}:{}", self.cnonce));
        to_hex(&key.finalize())
    }
}

/// The bytes of a text that are hashed: in ISO 8859-1 if it fits, otherwise in UTF-8.
fn latin1_or_utf8(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn md5_hex(text: &str) -> String {
    to_hex(&Md5::digest(text))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Parses `key=value,key="quoted value"` into keys and values.
fn fields(text: &str) -> Vec<(String, String)> {
    let (mut fields, mut chars) = (Vec::new(), text.chars().peekable());
    while chars.peek().is_some() {
        let key: String = chars.by_ref().take_while(|c| *c != '=').collect();
        let mut value = String::new();
        if chars.next_if_eq(&'"').is_some() {
            while let Some(c) = chars.next() {
                match c {
                    '"' => break,
                    '\\' => value.extend(chars.next()),
                    c => value.push(c),
                }
            }
        }
        value.extend(chars.by_ref().take_while(|c| *c != ','));
        fields.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 2831, except for the service name.
    #[test]
    fn a_challenge_is_answered_and_the_proof_is_checked() {
        let mut exchange = SaslExchange::new(SaslOptions::digest_md5("chris", "secret"));
        exchange.cnonce = "OA6MHXh6VqTrRk".into();
        let challenge =
            br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
        let response = String::from_utf8(exchange.respond(challenge).unwrap().unwrap()).unwrap();
        assert_eq!(exchange.session_key("elwood.innosoft.com", "OA6MG9tEQGm2hh"), "a2549853149b0536f01f0b850c643c57");
        assert!(response.contains(r#"username="chris",realm="elwood.innosoft.com""#), "{response}");
        let proof = exchange.expected_proof.clone().unwrap();
        assert_ne!(fields(&response).iter().find(|(key, _)| key == "response").unwrap().1, proof);
        assert_eq!(exchange.respond(b"rspauth=0123"), Err(Error::AuthFailed));
        assert_eq!(exchange.respond(format!("rspauth={proof}").as_bytes()), Ok(None));
    }

    #[test]
    fn special_characters_are_quoted_and_hashed() {
        assert_eq!(quoted(r#"a"b\c"#), r#""a\"b\\c""#);
        let read = fields(r#"a="x,\"y\"", b=c ,d="""#);
        let read: Vec<(&str, &str)> = read.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(read, [("a", "x,\"y\""), ("b", "c"), ("d", "")]);
        assert_eq!((latin1_or_utf8("é"), latin1_or_utf8("日")), (vec![0xe9], "日".as_bytes().to_vec()));
        assert!(SaslExchange::new(SaslOptions::digest_md5("u", "p")).respond(b"realm=x").is_err());
        assert!(!format!("{:?}", SaslOptions::digest_md5("u", "geheim")).contains("geheim"));
    }
}
