//! The state that the Sentinels report.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use super::{
    SentinelSet,
    sentinel_spec::{MASTER_NAME, QUORUM},
};
use crate::{
    Error, Result, Server,
    redis::{Reply, command},
    try_eventually,
};

impl SentinelSet {
    /// The number of the master, according to the first Sentinel that is awake.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if all Sentinels are down; [`Error::Io`] or [`Error::TimedOut`] if it
    /// does not respond.
    pub async fn master(&self) -> Result<usize> {
        match self.sentinels.iter().find(|sentinel| sentinel.is_awake()) {
            Some(sentinel) => self.master_named_by(sentinel).await,
            None => Err(Error::NotRunning { program: "every Sentinel".to_owned() }),
        }
    }

    /// The number of the master, according to the first Sentinel that is awake, and its
    /// configuration epoch. The epoch rises with every failover, also with one back to an earlier
    /// master.
    ///
    /// # Errors
    ///
    /// As [`SentinelSet::master`].
    pub async fn master_and_epoch(&self) -> Result<(usize, u64)> {
        let Some(sentinel) = self.sentinels.iter().find(|sentinel| sentinel.is_awake()) else {
            return Err(Error::NotRunning { program: "every Sentinel".to_owned() });
        };
        let flat = command::into_texts(
            command::command_once(sentinel.addr(), None, &["SENTINEL", "MASTER", MASTER_NAME]).await?,
        )?;
        let value_of =
            |key: &str| flat.chunks_exact(2).find(|pair| pair[0] == key).and_then(|pair| pair[1].parse().ok());
        let epoch = value_of("config-epoch").ok_or_else(|| Error::Protocol {
            peer: "Sentinel".to_owned(),
            problem: format!("its reply has no configuration epoch: {flat:?}"),
        })?;
        Ok((self.master_named_by(sentinel).await?, epoch))
    }

    /// Waits until the Sentinels name a new master, and that node reports the role itself. Returns
    /// its number, and stores it as the last known master.
    ///
    /// All Sentinels that are awake must agree, and at least two.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`].
    pub async fn wait_for_failover(&mut self, bound: Duration) -> Result<usize> {
        let new = try_eventually("failover by the Sentinels", bound, || self.check_new_master()).await?;
        self.last_known_master = new;
        Ok(new)
    }

    /// Waits until every running replica follows the master, and every running Sentinel knows every
    /// replica and the other Sentinels. This already holds for a set that has just been started.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`].
    pub async fn wait_until_settled(&self, bound: Duration) -> Result<()> {
        try_eventually("settled set of Sentinels", bound, || self.check_settled()).await
    }

    /// The number of the node that this Sentinel names as the master.
    async fn master_named_by(&self, sentinel: &Server) -> Result<usize> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
        let masters = command::into_texts(command::command_once(sentinel.addr(), None, &words).await?)?;
        let port = masters.get(1).cloned().unwrap_or_default();
        let found = self.nodes.iter().position(|node| node.port().to_string() == port);
        found.ok_or_else(|| Error::Protocol {
            peer: "Sentinel".to_owned(),
            problem: format!("it names an unknown master: {masters:?}"),
        })
    }

    /// The number of the master, if the Sentinels agree on another one than the last known.
    async fn check_new_master(&self) -> std::result::Result<usize, String> {
        let master = self.agreed_master().await?;
        if master == self.last_known_master {
            return Err(format!("node {master} is still the master"));
        }
        self.check_is_master(master).await?;
        Ok(master)
    }

    async fn check_settled(&self) -> std::result::Result<(), String> {
        let master = self.agreed_master().await?;
        self.check_is_master(master).await?;
        let awake = |servers: &[Server]| servers.iter().filter(|server| server.is_awake()).count();
        let replicas = self.nodes.iter().enumerate().filter(|(index, node)| *index != master && node.is_awake());
        for (_, replica) in replicas {
            command::check_replica_linked(replica.addr(), self.password.as_deref()).await?;
        }
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_awake()) {
            let replicas = [("flags", "slave"), ("master-link-status", "ok")];
            check_known_peers(sentinel.addr(), "REPLICAS", &replicas, awake(&self.nodes) - 1).await?;
            check_known_peers(sentinel.addr(), "SENTINELS", &[("flags", "sentinel")], awake(&self.sentinels) - 1)
                .await?;
        }
        Ok(())
    }

    /// The master, if all Sentinels that are awake name the same one.
    async fn agreed_master(&self) -> std::result::Result<usize, String> {
        let mut masters = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_awake()) {
            masters.push(self.master_named_by(sentinel).await.map_err(|error| error.to_string())?);
        }
        match masters.first() {
            Some(&master) if masters.len() >= QUORUM && masters.iter().all(|&other| other == master) => Ok(master),
            _ => Err(format!("the Sentinels name {masters:?}")),
        }
    }

    async fn check_is_master(&self, master: usize) -> std::result::Result<(), String> {
        let addr = self.nodes[master].addr();
        let fields = command::info_fields(addr, self.password.as_deref(), &["INFO", "replication"]).await;
        command::check_fields(&fields.map_err(|error| error.to_string())?, &[("role", "master")])
    }
}

/// `Ok` if a Sentinel knows exactly `count` peers of this kind (`REPLICAS` or `SENTINELS`) that
/// have these fields.
async fn check_known_peers(
    sentinel: SocketAddr,
    kind: &str,
    healthy_fields: &[(&str, &str)],
    count: usize,
) -> std::result::Result<(), String> {
    let known =
        command::command_once(sentinel, None, &["SENTINEL", kind, MASTER_NAME]).await.and_then(|reply| match reply {
            Reply::Array(peers) => peers.into_iter().map(command::into_texts).collect::<Result<Vec<_>>>(),
            other => Err(command::unexpected_reply_error(&other)),
        });
    let known = known.map_err(|error| error.to_string())?;
    let peers = known.iter().map(|flat| {
        let pairs = flat.chunks_exact(2);
        pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect::<HashMap<_, _>>()
    });
    let found = peers.filter(|peer| command::check_fields(peer, healthy_fields).is_ok()).count();
    if found == count { Ok(()) } else { Err(format!("{sentinel} knows {found} of {count} healthy {kind}")) }
}
