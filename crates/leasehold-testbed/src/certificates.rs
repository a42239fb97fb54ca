//! Certificates for one server and its clients, by an authority of their own.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::{Error, Result};

/// The certificate of the authority.
pub(crate) const CA: &str = "ca.pem";
pub(crate) const SERVER_CERTIFICATE: &str = "server.pem";
pub(crate) const SERVER_KEY: &str = "server.key";
/// The server's key and certificate in one file, as Java needs them.
pub(crate) const SERVER_KEY_AND_CERTIFICATE: &str = "server.both.pem";
pub(crate) const CLIENT_CERTIFICATE: &str = "client.pem";
pub(crate) const CLIENT_KEY: &str = "client.key";

/// The names and contents of certificate and key files. They are generated once for a server, so
/// that they survive a wipe of its data folder.
#[derive(Clone)]
pub(crate) struct Certificates(Vec<(&'static str, String)>);

impl Certificates {
    /// Generates an authority, and by it a certificate for a server at 127.0.0.1 and localhost, and
    /// one for a client.
    pub(crate) fn generate() -> Result<Self> {
        generate_pem_files()
            .map(Self)
            .map_err(|error| Error::Protocol { peer: "rcgen".to_owned(), problem: error.to_string() })
    }

    /// Writes the files that are missing in `folder`, owned by its owner. Only the owner can read
    /// keys, because some servers refuse other keys.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        for (name, text) in &self.0 {
            let file = folder.join(name);
            if !file.exists() {
                let writing = Error::io(format!("writing {}", file.display()));
                write(folder, &file, text).map_err(writing)?;
            }
        }
        Ok(())
    }
}

fn write(folder: &Path, file: &Path, text: &str) -> io::Result<()> {
    fs::write(file, text)?;
    if file.extension().is_some_and(|extension| extension == "key") {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    let (owner, ours) = (fs::metadata(folder)?, fs::metadata(file)?);
    if owner.uid() == ours.uid() { Ok(()) } else { chown(file, Some(owner.uid()), Some(owner.gid())) }
}

fn generate_pem_files() -> std::result::Result<Vec<(&'static str, String)>, rcgen::Error> {
    let mut authority = certificate_params("leasehold tests: authority", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = certificate_params("leasehold tests: server", &["127.0.0.1", "localhost"])?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = KeyPair::generate()?;
    let server = server.signed_by(&server_key, &authority)?;

    let mut client = certificate_params("leasehold tests: client", &[])?;
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client_key = KeyPair::generate()?;
    let client = client.signed_by(&client_key, &authority)?;

    Ok(vec![
        (CA, authority.pem()),
        (SERVER_KEY_AND_CERTIFICATE, server_key.serialize_pem() + &server.pem()),
        (SERVER_CERTIFICATE, server.pem()),
        (SERVER_KEY, server_key.serialize_pem()),
        (CLIENT_CERTIFICATE, client.pem()),
        (CLIENT_KEY, client_key.serialize_pem()),
    ])
}

fn certificate_params(name: &str, hosts: &[&str]) -> std::result::Result<CertificateParams, rcgen::Error> {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
