//! MariaDB servers that all accept writes, and agree on each before it is committed.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use super::{MariaDb, query};
use crate::{
    Error, Result, Server,
    process::{Binary, InitStep, Probe, ServerSpec, Workspace, is_listening},
};

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
const PACKAGE: &str = "galera-4";
/// The timeouts for an unresponsive member: long enough for a busy machine.
const PEER_TIMEOUTS: &str = "evs.keepalive_period=PT0.5S;evs.inactive_check_period=PT0.5S;evs.suspect_timeout=PT3S;\
    evs.inactive_timeout=PT6S;evs.install_timeout=PT6S";
/// The file in which a member stores its cluster state.
const STATE_FILE: &str = "grastate.dat";

/// The running servers of one Galera cluster; writes need more than half of them.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::mariadb::GaleraCluster;
///
/// let galera = GaleraCluster::start(3).await?;
/// galera.cut_off(2).await?;
/// println!("clients connect to {}", galera.server(0).url());
/// galera.heal(2).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GaleraCluster {
    servers: Vec<Server>,
}

impl GaleraCluster {
    /// Starts `count` servers, one after the other, and waits until all of them serve.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(count: usize) -> Result<Self> {
        Self::start_with(count, &MariaDb::new()).await
    }

    /// Like [`GaleraCluster::start`], with the settings of `template` for each server.
    ///
    /// # Errors
    ///
    /// As [`GaleraCluster::start`].
    pub async fn start_with(count: usize, template: &MariaDb) -> Result<Self> {
        let members = MemberPorts::default();
        let mut servers = Vec::new();
        for _ in 0..count {
            let server =
                Server::start(GaleraMember { mariadb: template.clone(), member_ports: members.clone() }).await?;
            members.add(GaleraPorts::from_extra_ports(server.extra_ports()).group_port);
            servers.push(server);
        }
        Ok(Self { servers })
    }

    /// The server with this number, counted from 0.
    pub fn server(&self, at: usize) -> &Server {
        &self.servers[at]
    }

    /// The server with this number, counted from 0: to kill, pause or restart it.
    ///
    /// A restarted server joins the others again. If none of them is up, it uses its own data:
    /// after all have been down, first restart the one that went down last.
    pub fn server_mut(&mut self, at: usize) -> &mut Server {
        &mut self.servers[at]
    }

    /// All servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Cuts a server off from the others, but not from its clients.
    ///
    /// All servers detect this after some seconds; then the server refuses its clients.
    ///
    /// # Errors
    ///
    /// As [`query()`](super::query()).
    pub async fn cut_off(&self, at: usize) -> Result<()> {
        self.set_isolated(at, "1").await
    }

    /// Reconnects a server that was cut off.
    ///
    /// # Errors
    ///
    /// As [`query()`](super::query()).
    pub async fn heal(&self, at: usize) -> Result<()> {
        self.set_isolated(at, "0").await
    }

    async fn set_isolated(&self, at: usize, value: &str) -> Result<()> {
        let statement = format!("SET GLOBAL wsrep_provider_options = 'gmcast.isolate={value}'");
        query::query(&self.servers[at], &statement).await.map(drop)
    }

    /// `Ok` if a server serves and sees this many members, including itself; `Err` is the
    /// observation. For [`eventually()`](crate::eventually()).
    ///
    /// # Errors
    /// The server's reply.
    pub async fn check_size(&self, at: usize, members: usize) -> std::result::Result<(), String> {
        let dir = self.servers[at].dir();
        check_status(dir, "wsrep_ready", "ON").await?;
        check_status(dir, "wsrep_cluster_size", &members.to_string()).await
    }
}

/// The group ports of all members, shared by them so that each finds the others.
#[derive(Clone, Debug, Default)]
struct MemberPorts(Arc<Mutex<Vec<u16>>>);

impl MemberPorts {
    fn add(&self, port: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(port);
    }

    /// The group ports on which a member listens now, except `own`.
    fn listening_peers(&self, own: u16) -> Vec<u16> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.into_iter().filter(|&port| port != own && is_listening(port)).collect()
    }
}

/// The ports of a member besides the one for clients.
struct GaleraPorts {
    group_port: u16,
    incremental_transfer_port: u16,
    state_transfer_port: u16,
}

impl GaleraPorts {
    fn from_extra_ports(extra_ports: &[u16]) -> Self {
        Self {
            group_port: extra_ports[0],
            incremental_transfer_port: extra_ports[1],
            state_transfer_port: extra_ports[2],
        }
    }
}

struct GaleraMember {
    mariadb: MariaDb,
    member_ports: MemberPorts,
}

impl ServerSpec for GaleraMember {
    fn binary(&self) -> Binary {
        self.mariadb.binary()
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        let ports = GaleraPorts::from_extra_ports(workspace.extra_ports());
        let others = self.member_ports.listening_peers(ports.group_port);
        let hosts: Vec<String> = others.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let cluster = format!("gcomm://{}", hosts.join(","));
        let (group, changes) = (ports.group_port, ports.incremental_transfer_port);
        let options = format!(
            "gmcast.listen_addr=tcp://127.0.0.1:{group};base_host=127.0.0.1;base_port={group};\
             ist.recv_addr=127.0.0.1:{changes};gcache.size=8M;{PEER_TIMEOUTS}"
        );
        let (name, client) = (format!("member-{group}"), format!("127.0.0.1:{}", workspace.port()));
        let copy = format!("127.0.0.1:{}", ports.state_transfer_port);
        let ours = [
            ("wsrep_on", "ON"),
            ("wsrep_provider", PROVIDER),
            ("wsrep_provider_options", &options),
            ("wsrep_cluster_address", &cluster),
            ("wsrep_cluster_name", "leasehold"),
            ("wsrep_node_name", &name),
            ("wsrep_node_address", "127.0.0.1"),
            ("wsrep_node_incoming_address", &client),
            ("wsrep_sst_method", "rsync"),
            ("wsrep_sst_receive_address", &copy),
            ("binlog_format", "ROW"),
            ("innodb_autoinc_lock_mode", "2"),
        ];
        let mut arguments = self.mariadb.arguments_with(workspace, &ours);
        if others.is_empty() {
            arguments.push("--wsrep-new-cluster".to_owned());
        }
        arguments
    }

    fn url(&self, workspace: &Workspace) -> String {
        self.mariadb.url(workspace)
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.mariadb.prepare(workspace)?;
        if !Path::new(PROVIDER).is_file() {
            return Err(Error::not_installed(PROVIDER, PACKAGE));
        }
        let alone = self
            .member_ports
            .listening_peers(GaleraPorts::from_extra_ports(workspace.extra_ports()).group_port)
            .is_empty();
        if alone { allow_new_cluster(&workspace.dir().join(STATE_FILE)) } else { Ok(()) }
    }

    /// Checks that the server is in the cluster: outside it responds, but refuses all statements.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            check_status(workspace.dir(), "wsrep_ready", "ON").await?;
            check_status(workspace.dir(), "wsrep_local_state_comment", "Synced").await
        })
    }

    fn init_steps(&self, workspace: &Workspace) -> Vec<InitStep> {
        self.mariadb.init_steps(workspace)
    }

    fn clean_up(&self, workspace: &Workspace) {
        self.mariadb.clean_up(workspace);
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.mariadb.environment()
    }

    fn run_as(&self) -> Option<&str> {
        self.mariadb.run_as()
    }

    fn extra_ports(&self) -> usize {
        3
    }
}

/// Permits the member whose state is in `file` to start a new cluster, which Galera refuses after a
/// crash.
fn allow_new_cluster(file: &Path) -> Result<()> {
    let Ok(state) = fs::read_to_string(file) else {
        return Ok(());
    };
    let state = state.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1");
    fs::write(file, state).map_err(Error::io(format!("writing {}", file.display())))
}

/// `Ok` if the status variable of the server with this data folder has the expected value.
async fn check_status(dir: &Path, variable: &str, expected: &str) -> std::result::Result<(), String> {
    let statement = format!("SHOW GLOBAL STATUS LIKE '{variable}'");
    let rows = query::query_by_socket(dir, &statement).await.map_err(|error| error.to_string())?;
    let found = rows.first().and_then(|row| row.get(1)?.clone()).unwrap_or_default();
    if found == expected { Ok(()) } else { Err(format!("{variable} is {found:?} instead of {expected:?}")) }
}
