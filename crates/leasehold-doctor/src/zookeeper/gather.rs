//! Queries the facts about the ensemble.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_zookeeper::{Acl, Client, Error as Cause};

use super::facts::{EnsembleFacts, Fact, Facts, Members, Requirements, Server, ServerSession, UnknownReason};
use super::probe::{self, Probe, with_timeout};
use super::{four_letter_words, walk};
use leasehold::DEFAULT_TTL;
use leasehold::{ErrorKind, Result};
use leasehold_internals::zookeeper::config::{Access, Config, TlsConfig, address};
use leasehold_internals::zookeeper::session::Session;

/// For how many locks the ACLs are read, at most.
const MAX_ACLS: usize = 10;

/// Queries all facts about the ensemble of the URL; `ttl` is that of the locks.
///
/// # Errors
/// Only for mistakes in the URL itself: a certificate that cannot be read.
pub(super) async fn gather_facts(config: &Config, ttl: Duration) -> Result<Facts> {
    let requirements = Requirements {
        ttl,
        session_timeout: config.session_timeout,
        has_session_per_claim: config.has_session_per_claim,
        base: config.base.clone(),
    };
    let timeout = config.session_timeout.unwrap_or(DEFAULT_TTL);
    let mut servers = join_all(config.servers.iter().map(|(host, port)| gather_server(config, host, *port))).await;
    let inside = match Session::open_without_claims(&reachable_only(config, &servers), timeout).await {
        Ok(session) => {
            let inside = gather_ensemble(config, &requirements, &session.client, &mut servers).await;
            close_session(session).await;
            reread_metrics(config, &mut servers).await;
            Ok(inside)
        }
        Err(error) if error.kind() == ErrorKind::InvalidUrl => return Err(error),
        Err(error) => Err(error),
    };
    Ok(Facts { requirements, servers, ensemble: inside })
}

/// The facts of one server of the URL, without a session.
async fn gather_server(config: &Config, host: &str, port: u16) -> Server {
    let places = four_letter_words::resolve_addresses(host, port).await;
    let [srvr, mntr, conf] = match &places {
        Err(reason) => [(); 3].map(|()| Err(reason.clone())),
        Ok(_) if config.tls.is_some() => [(); 3].map(|()| Err(UnknownReason::TlsOnly)),
        Ok(places) => four_letter_words::query_all(places, config.connect_timeout).await,
    };
    let visit = Err(UnknownReason::NotReported("no session was opened".into()));
    Server { address: address(host, port), addresses: places.unwrap_or_default(), srvr, mntr, conf, session: visit }
}

/// Reads the metrics again, so that they include the writes to the probe lock.
async fn reread_metrics(config: &Config, servers: &mut [Server]) {
    let queries = servers.iter_mut().filter(|server| server.mntr.is_ok()).map(|server| async {
        if let Ok(figures) = four_letter_words::query_mntr(&server.addresses, config.connect_timeout).await {
            server.mntr = Ok(figures);
        }
    });
    join_all(queries).await;
}

/// Whether the server is unreachable, or does not serve requests.
fn is_unreachable(server: &Server) -> bool {
    matches!(server.srvr, Err(UnknownReason::Unreachable(_) | UnknownReason::NotServing))
}

/// The same configuration without the servers that are known to be unreachable, so that no request
/// waits for them.
fn reachable_only(config: &Config, servers: &[Server]) -> Config {
    restrict_servers(config, servers, |server| !is_unreachable(server))
}

/// The same configuration with only the servers that `keep` selects; with all, if it selects none.
fn restrict_servers(config: &Config, servers: &[Server], keep: impl Fn(&Server) -> bool) -> Config {
    let kept = servers.iter().zip(&config.servers).filter(|(server, _)| keep(server));
    let (hosts, servers): (Vec<_>, Vec<_>) =
        kept.map(|(server, place)| (server.address.clone(), place.clone())).unzip();
    if servers.is_empty() {
        return config.clone();
    }
    Config { hosts: hosts.join(","), shown_hosts: hosts.join(","), servers, ..config.clone() }
}

/// Closes a session, so that the servers need not wait for its timeout.
async fn close_session(session: Arc<Session>) {
    session.close().await;
}

/// Queries the facts from a session; opens a session with each server while the probe lock exists.
async fn gather_ensemble(
    config: &Config,
    requirements: &Requirements,
    client: &Client,
    servers: &mut [Server],
) -> EnsembleFacts {
    let members =
        with_timeout(client.get_config()).await.map(|(data, _)| Members::parse(&String::from_utf8_lossy(&data)));
    let probe = Probe::create(client, config).await;
    let (probed, visits, refused, now) = match &probe {
        Ok(probe) => {
            let probed = probe.measure_writes(client).await;
            let visits = visit_servers(config, requirements, servers, Ok(probe)).await;
            let refused = if config.access == Access::Open {
                None
            } else {
                Some(is_anonymous_refused(&reachable_only(config, servers), probe).await)
            };
            let now = with_timeout(client.check_stat(&probe.claim)).await.ok().flatten();
            (probed, visits, refused, now.map(|stat| (stat.mzxid, stat.mtime)))
        }
        Err(reason) => {
            (Err(reason.clone()), visit_servers(config, requirements, servers, Err(reason)).await, None, None)
        }
    };
    for (server, visit) in servers.iter_mut().zip(visits) {
        server.session = visit;
    }
    let folder = probe.as_ref().ok().map(|probe| probe.folder.as_str());
    let nodes = walk::survey_nodes(client, &config.base, folder, now).await;
    let is_base_new = probe.as_ref().is_ok_and(Probe::has_created_base);
    let acls = read_acls(client, requirements, folder, is_base_new).await;
    if let Ok(probe) = probe {
        probe.remove(client).await;
    }
    EnsembleFacts { members, probe: probed, nodes, acls, refuses_anonymous: refused }
}

/// Opens a session with each server, and returns their facts in the order of `servers`. `probe` is
/// the probe lock, or why it could not be created.
async fn visit_servers(
    config: &Config,
    requirements: &Requirements,
    servers: &[Server],
    probe: std::result::Result<&Probe, &UnknownReason>,
) -> Vec<Fact<ServerSession>> {
    let each = servers.iter().map(|server| async move {
        if let (true, Err(reason)) = (is_unreachable(server), &server.srvr) {
            return Err(reason.clone());
        }
        let alone = restrict_servers(config, servers, |one| one.address == server.address);
        let session = Session::open_without_claims(&alone, requirements.requested_timeout())
            .await
            .map_err(|error| UnknownReason::Unreachable(error.message_without_location()))?;
        let visit = visit_server(&session, probe).await;
        close_session(session).await;
        Ok(visit)
    });
    join_all(each).await
}

/// Queries the facts from a session with one server.
async fn visit_server(session: &Session, probe: std::result::Result<&Probe, &UnknownReason>) -> ServerSession {
    let client = &session.client;
    let sees = match probe {
        Ok(probe) => match with_timeout(client.sync(&probe.folder)).await {
            Ok(()) => {
                let found = with_timeout(client.check_stat(&probe.claim)).await;
                found.map(|stat| stat.is_some_and(|stat| stat.czxid == probe.czxid))
            }
            Err(reason) => Err(reason),
        },
        Err(reason) => Err(reason.clone()),
    };
    let server = client.session_id().0.to_be_bytes()[0];
    ServerSession { server, timeout: session.timeout, read_trips: probe::measure_reads(client).await, sees_probe: sees }
}

/// Whether a client without a login is refused a write to the probe lock.
async fn is_anonymous_refused(config: &Config, probe: &Probe) -> Fact<bool> {
    let tls = config.tls.clone().map(|tls| TlsConfig { identity: None, ..tls });
    let stranger = Config { login: None, access: Access::Open, tls, ..config.clone() };
    let session = Session::open_without_claims(&stranger, DEFAULT_TTL)
        .await
        .map_err(|error| UnknownReason::Unreachable(error.message_without_location()))?;
    let written = with_timeout(session.client.set_data(&probe.claim, b"", None)).await;
    close_session(session).await;
    match written {
        Ok(_) => Ok(false),
        Err(UnknownReason::RequestFailed(Cause::NoAuth)) => Ok(true),
        Err(reason) => Err(reason),
    }
}

/// Reads the ACLs, by path, of the node under which all locks are, of some locks, and of the probe
/// lock in `folder`. `is_base_new`: the node under which all locks are was only created for the
/// probe.
async fn read_acls(
    client: &Client,
    requirements: &Requirements,
    folder: Option<&str>,
    is_base_new: bool,
) -> Vec<(String, Fact<Vec<Acl>>)> {
    let names = with_timeout(client.list_children(requirements.shown_base())).await.unwrap_or_default();
    let locks = names.iter().filter(|name| leasehold_internals::zookeeper::wire::unescape_name(name).is_some());
    let locks = locks.map(|name| format!("{}/{name}", requirements.base)).filter(|path| Some(path.as_str()) != folder);
    let base = (!is_base_new).then(|| requirements.shown_base().to_owned());
    let paths: Vec<String> = base.into_iter().chain(locks.take(MAX_ACLS)).collect();
    let mut found = Vec::new();
    for path in paths {
        match with_timeout(client.get_acl(&path)).await {
            Err(UnknownReason::RequestFailed(Cause::NoNode)) => {} // It has disappeared meanwhile.
            other => found.push((path, other.map(|(acls, _)| acls))),
        }
    }
    if let Some(folder) = folder {
        let new = with_timeout(client.get_acl(folder)).await.map(|(acls, _)| acls);
        found.push(("a new lock".to_owned(), new));
    }
    found
}
