//! TLS with the certificate files of the URL. They are read again for each session, so that
//! replaced ones take effect.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::config::TlsConfig;
use super::error;
use crate::types::{Error, ErrorKind, Result};

/// Reads the certificate files. The error names the file that cannot be used.
pub(super) fn client_config(tls: &TlsConfig) -> Result<Arc<ClientConfig>> {
    let (roots, revoked) = read_authorities(&tls.ca)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // Like the default verifier, it checks the server's host name. In addition, no certificate of
    // the chain may be revoked.
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.with_crls(revoked).build().map_err(|cause| pem_error(&tls.ca, &cause))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| invalid_url(format!("TLS cannot be set up: {cause}")))?
        .with_webpki_verifier(verifier);
    let Some((cert, key)) = &tls.identity else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let (cert_text, key_text) = (read_text(cert)?, read_text(key)?);
    let to_error = |cause: &dyn std::fmt::Display| {
        let files = format!("{} and {}", cert.display(), key.display());
        invalid_url(format!("{files} are no PEM files of a certificate and its key: {cause}"))
    };
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert_text.as_bytes()).collect();
    let certs = certs.map_err(|cause| to_error(&cause))?;
    let key = PrivateKeyDer::from_pem_slice(key_text.as_bytes()).map_err(|cause| to_error(&cause))?;
    Ok(Arc::new(builder.with_client_auth_cert(certs, key).map_err(|cause| to_error(&cause))?))
}

/// Reads the certificates of the trusted authorities and their revocation lists, which are in one
/// file.
fn read_authorities(path: &Path) -> Result<(RootCertStore, Vec<CertificateRevocationListDer<'static>>)> {
    let text = read_text(path)?;
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let revoked: std::result::Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certs.map_err(|cause| pem_error(path, &cause))?);
    if added == 0 {
        return Err(pem_error(path, &"it has no CA certificate"));
    }
    Ok((roots, revoked.map_err(|cause| pem_error(path, &cause))?))
}

/// Reads a text file.
fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|cause| invalid_url(format!("{} cannot be read: {cause}", path.display())))
}

/// The error for a file that does not have what its URL option requires.
fn pem_error(path: &Path, cause: &dyn std::fmt::Display) -> Error {
    invalid_url(format!("{} is not a PEM file that can be used here: {cause}", path.display()))
}

fn invalid_url(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message).at_engine(error::NAME)
}
