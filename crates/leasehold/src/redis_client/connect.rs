//! One connection to one server, with the settings of the URL.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, TlsCertificates,
};

use super::config::{Address, Config, Login, Tls};
use super::error;
use crate::types::{Error, ErrorKind, Result};

/// Receives each push message of the server. Runs in the connection's own task, so it must be
/// quick.
pub type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// Connects to one data node.
pub async fn to_node(
    config: &Config,
    address: &Address,
    on_push: Option<PushHandler>,
) -> Result<MultiplexedConnection> {
    open(config, address, &config.login, config.db, on_push).await
}

/// Connects to one Sentinel.
pub async fn to_sentinel(config: &Config, address: &Address) -> Result<MultiplexedConnection> {
    open(config, address, &config.sentinel_login, 0, None).await
}

/// Connects to one Sentinel, to receive its push messages.
pub async fn to_sentinel_with_pushes(
    config: &Config,
    address: &Address,
    on_push: PushHandler,
) -> Result<MultiplexedConnection> {
    open(config, address, &config.sentinel_login, 0, Some(on_push)).await
}

async fn open(
    config: &Config,
    address: &Address,
    login: &Login,
    db: u32,
    on_push: Option<PushHandler>,
) -> Result<MultiplexedConnection> {
    let client = client(config, address, login, db)?;
    // The caller of a step limits how long it waits for an answer; the connection does not.
    let mut options = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024);
    if let Some(handler) = on_push {
        options = options.set_push_sender(move |message: PushInfo| {
            handler(message);
            Ok::<(), std::convert::Infallible>(())
        });
    }
    let connecting = config.transport.connect(&client, address, options);
    // The connection timeout of redis-rs does not cover the handshakes of TLS and of the protocol.
    let timeout = config.connect_timeout + Duration::from_secs(1);
    let connected = config.clock.timeout(timeout, connecting).await;
    let tls = if config.tls.is_some() { "; check that the server uses TLS here" } else { "" };
    let connected =
        connected.map_err(|_| error::unreachable(address, &format!("no answer within {timeout:?}{tls}")))?;
    connected.map_err(|cause| match cause.is_timeout() {
        true => error::unreachable(address, &format!("no answer within {:?}{tls}", config.connect_timeout)),
        false => error::connect_error(address, cause),
    })
}

fn client(config: &Config, address: &Address, login: &Login, db: u32) -> Result<Client> {
    let (host, port) = (address.host.clone(), address.port);
    let address_with_tls = match config.tls {
        Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        None => ConnectionAddr::Tcp(host, port),
    };
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(db.into()).set_skip_set_lib_name();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    let info = address_with_tls.into_connection_info().map_err(|cause| error::connect_error(address, cause))?;
    let info = info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    match &config.tls {
        None => Client::open(info).map_err(|cause| error::connect_error(address, cause)),
        Some(tls) => Client::build_with_tls(info, certificates(tls)?).map_err(|cause| {
            let message = format!(
                "ca, cert and cert-key must be PEM files with a CA certificate, a certificate and its key ({})",
                error::one_line(&cause)
            );
            Error::new(ErrorKind::InvalidUrl, message).at_engine(error::NAME)
        }),
    }
}

fn certificates(tls: &Tls) -> Result<TlsCertificates> {
    // The program chooses the cryptography provider; this one is the default.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|cause| {
            Error::new(ErrorKind::InvalidUrl, format!("cannot read {}", path.display())).caused_by(cause)
        })
    };
    let client_tls = match &tls.identity {
        Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: tls.ca.as_deref().map(read).transpose()? })
}
