//! All facts about the ensemble.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_zookeeper::{Acl, Client, Error as Cause};

use super::super::config::{Access, Config, Tls, address};
use super::super::session::Session;
use super::facts::{Aim, Facts, Inside, Known, Members, No, Server, Visit};
use super::probe::{self, Probe, ask};
use super::{walk, words};
use crate::clock::Clock;
use crate::error::{ErrorKind, Result};
use crate::locks::DEFAULT_TTL;

/// For how many locks the ACLs are read.
const ACLS: usize = 10;
/// Asks for all facts.
///
/// # Errors
/// Only for mistakes in the URL itself: a certificate that cannot be read.
pub(super) async fn all(config: &Config, ttl: Duration) -> Result<Facts> {
    let aim = Aim {
        ttl,
        session_timeout: config.session_timeout,
        own_sessions: config.own_sessions,
        base: config.base.clone(),
    };
    let timeout = config.session_timeout.unwrap_or(DEFAULT_TTL);
    let mut servers = join_all(config.servers.iter().map(|(host, port)| server(config, host, *port))).await;
    let inside = match open(&there(config, &servers), timeout).await {
        Ok(session) => {
            let inside = inside(config, &aim, &session.client, &mut servers).await;
            close(session).await;
            recount(config, &mut servers).await;
            Ok(inside)
        }
        Err(error) if error.kind() == ErrorKind::InvalidUrl => return Err(error),
        Err(error) => Err(error),
    };
    Ok(Facts { aim, servers, inside })
}

/// The facts of one server of the URL, without a session.
async fn server(config: &Config, host: &str, port: u16) -> Server {
    let places = words::places(host, port).await;
    let [srvr, mntr, conf] = match &places {
        Err(no) => [(); 3].map(|()| Err(no.clone())),
        Ok(_) if config.tls.is_some() => [(); 3].map(|()| Err(No::Secure)),
        Ok(places) => words::all(places, config.connect_timeout).await,
    };
    let visit = Err(No::Missing("no session was opened".into()));
    Server { address: address(host, port), places: places.unwrap_or_default(), srvr, mntr, conf, visit }
}

/// Reads the figures again, now that there were writes.
async fn recount(config: &Config, servers: &mut [Server]) {
    let asked = servers.iter_mut().filter(|server| server.mntr.is_ok()).map(|server| async {
        if let Ok(figures) = words::figures(&server.places, config.connect_timeout).await {
            server.mntr = Ok(figures);
        }
    });
    join_all(asked).await;
}

async fn open(config: &Config, timeout: Duration) -> Result<Arc<Session>> {
    Session::open(config, timeout, &Clock::system(), &Arc::default(), &Arc::default()).await
}

fn is_away(server: &Server) -> bool {
    matches!(server.srvr, Err(No::Lost(_) | No::Idle))
}

/// The same configuration without the servers that are known to be unreachable, so that no request
/// waits for them.
fn there(config: &Config, servers: &[Server]) -> Config {
    only(config, servers, |server| !is_away(server))
}

/// The same configuration with only some servers; with all, if none is left.
fn only(config: &Config, servers: &[Server], keep: impl Fn(&Server) -> bool) -> Config {
    let kept = servers.iter().zip(&config.servers).filter(|(server, _)| keep(server));
    let (hosts, servers): (Vec<_>, Vec<_>) =
        kept.map(|(server, place)| (server.address.clone(), place.clone())).unzip();
    if servers.is_empty() {
        return config.clone();
    }
    Config { hosts: hosts.join(","), shown_hosts: hosts.join(","), servers, ..config.clone() }
}

/// Closes a session, so that the servers need not wait for its timeout.
async fn close(session: Arc<Session>) {
    session.close().await;
}

/// The facts from a session. Visits each server while our probe exists.
async fn inside(config: &Config, aim: &Aim, client: &Client, servers: &mut [Server]) -> Inside {
    let members = ask(client.get_config()).await.map(|(data, _)| Members::read(&String::from_utf8_lossy(&data)));
    let probe = Probe::place(client, config).await;
    let (probed, visits, refused, now) = match &probe {
        Ok(probe) => {
            let probed = probe.write(client).await;
            let visits = visits(config, aim, servers, Ok(probe)).await;
            let refused =
                if config.access == Access::Open { None } else { Some(refused(&there(config, servers), probe).await) };
            let now = ask(client.check_stat(&probe.claim)).await.ok().flatten();
            (probed, visits, refused, now.map(|stat| (stat.mzxid, stat.mtime)))
        }
        Err(no) => (Err(no.clone()), visits(config, aim, servers, Err(no)).await, None, None),
    };
    for (server, visit) in servers.iter_mut().zip(visits) {
        server.visit = visit;
    }
    let folder = probe.as_ref().ok().map(|probe| probe.folder.as_str());
    let nodes = walk::look(client, &config.base, folder, now).await;
    let new_base = probe.as_ref().is_ok_and(Probe::made_base);
    let acls = acls(client, aim, folder, new_base).await;
    if let Ok(probe) = probe {
        probe.remove(client).await;
    }
    Inside { members, probe: probed, nodes, acls, refuses_strangers: refused }
}

/// Opens a session with each server.
async fn visits(
    config: &Config,
    aim: &Aim,
    servers: &[Server],
    probe: std::result::Result<&Probe, &No>,
) -> Vec<Known<Visit>> {
    let each = servers.iter().map(|server| async move {
        if let (true, Err(no)) = (is_away(server), &server.srvr) {
            return Err(no.clone());
        }
        let alone = only(config, servers, |one| one.address == server.address);
        let session = open(&alone, aim.asked()).await.map_err(|error| No::Lost(error.said()))?;
        let visit = visit(&session, probe).await;
        close(session).await;
        Ok(visit)
    });
    join_all(each).await
}

async fn visit(session: &Session, probe: std::result::Result<&Probe, &No>) -> Visit {
    let client = &session.client;
    let sees = match probe {
        Ok(probe) => match ask(client.sync(&probe.folder)).await {
            Ok(()) => {
                let found = ask(client.check_stat(&probe.claim)).await;
                found.map(|stat| stat.is_some_and(|stat| stat.czxid == probe.czxid))
            }
            Err(no) => Err(no),
        },
        Err(no) => Err(no.clone()),
    };
    let server = client.session_id().0.to_be_bytes()[0];
    Visit { server, timeout: session.timeout, reads: probe::reads(client).await, sees }
}

/// Whether a client without a login may write to our lock.
async fn refused(config: &Config, probe: &Probe) -> Known<bool> {
    let tls = config.tls.clone().map(|tls| Tls { identity: None, ..tls });
    let stranger = Config { login: None, access: Access::Open, tls, ..config.clone() };
    let session = open(&stranger, DEFAULT_TTL).await.map_err(|error| No::Lost(error.said()))?;
    let written = ask(session.client.set_data(&probe.claim, b"", None)).await;
    close(session).await;
    match written {
        Ok(_) => Ok(false),
        Err(No::Said(Cause::NoAuth)) => Ok(true),
        Err(no) => Err(no),
    }
}

/// ACLs of the node under which all locks are, of some locks, and of a new lock.
async fn acls(client: &Client, aim: &Aim, folder: Option<&str>, new_base: bool) -> Vec<(String, Known<Vec<Acl>>)> {
    let names = ask(client.list_children(aim.shown_base())).await.unwrap_or_default();
    let locks = names.iter().filter(|name| super::super::wire::unescaped(name).is_some());
    let locks = locks.map(|name| format!("{}/{name}", aim.base)).filter(|path| Some(path.as_str()) != folder);
    let base = (!new_base).then(|| aim.shown_base().to_owned());
    let paths: Vec<String> = base.into_iter().chain(locks.take(ACLS)).collect();
    let mut found = Vec::new();
    for path in paths {
        match ask(client.get_acl(&path)).await {
            Err(No::Said(Cause::NoNode)) => {} // It has disappeared meanwhile.
            other => found.push((path, other.map(|(acls, _)| acls))),
        }
    }
    if let Some(folder) = folder {
        let new = ask(client.get_acl(folder)).await.map(|(acls, _)| acls);
        found.push(("a new lock".to_owned(), new));
    }
    found
}
