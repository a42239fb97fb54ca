//! The roles that the members of an ensemble report.

use std::time::Duration;

use super::{Ensemble, START_TIMEOUT};
use crate::{
    Result, try_eventually,
    zookeeper::{Role, monitor_values, role},
};

impl Ensemble {
    /// The number of the server that reports itself as leader; waits until there is one. Servers
    /// that are down, paused or cut off are not queried.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`](crate::Error::TimedOut) if there is none in time.
    pub async fn leader(&self) -> Result<usize> {
        try_eventually("leader of the ensemble", START_TIMEOUT, || self.find_leader()).await
    }

    /// The numbers of the servers that report themselves as followers. Servers that are down,
    /// paused or cut off are not queried.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) or [`Error::TimedOut`](crate::Error::TimedOut) if one of
    /// them does not respond.
    pub async fn followers(&self) -> Result<Vec<usize>> {
        let roles = self.roles().await?;
        Ok(roles.into_iter().filter(|(_, role)| *role == Role::Follower).map(|(at, _)| at).collect())
    }

    /// The role that the server with this number, counted from 0, reports.
    ///
    /// # Errors
    ///
    /// As [`role`].
    pub async fn role(&self, at: usize) -> Result<Role> {
        role(self.addr(at)).await
    }

    /// Waits until all servers that are not down, paused or cut off serve: one leads, and the
    /// others follow it and are in sync. An ensemble that has just been started is settled.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn wait_until_settled(&self, bound: Duration) -> Result<()> {
        try_eventually("settled ensemble", bound, || self.check_settled()).await
    }

    /// The numbers of the servers that are neither down nor paused nor cut off.
    fn reachable(&self) -> impl Iterator<Item = usize> {
        let servers = self.servers.iter().enumerate();
        servers.filter(|(at, server)| server.is_awake() && !self.network.is_cut_off(*at)).map(|(at, _)| at)
    }

    async fn roles(&self) -> Result<Vec<(usize, Role)>> {
        let mut roles = Vec::new();
        for at in self.reachable() {
            roles.push((at, self.role(at).await?));
        }
        Ok(roles)
    }

    async fn find_leader(&self) -> std::result::Result<usize, String> {
        let roles = self.roles().await.map_err(|error| error.to_string())?;
        let mut leaders = roles.iter().filter(|(_, role)| *role == Role::Leader);
        match (leaders.next(), leaders.next()) {
            (Some((leader, _)), None) => Ok(*leader),
            _ => Err(format!("{roles:?}")),
        }
    }

    async fn check_settled(&self) -> std::result::Result<(), String> {
        let leader = self.find_leader().await?;
        let followers = self.followers().await.map_err(|error| error.to_string())?;
        if followers.len() + 1 != self.reachable().count() {
            return Err(format!("server {leader} leads, and of the others only {followers:?} follow"));
        }
        // A member that was cut off may still report itself as a follower of before.
        if let Some(late) = followers.iter().find(|&&at| !self.network.is_connected_to_leader(at, leader)) {
            return Err(format!("server {late} has not reconnected to server {leader}"));
        }
        let values = monitor_values(self.addr(leader)).await.map_err(|error| error.to_string())?;
        let synced = values.get("zk_synced_followers").and_then(|count| count.parse::<f64>().ok());
        if synced.is_some_and(|count| count >= followers.len() as f64) {
            Ok(())
        } else {
            Err(format!("server {leader} leads, and {synced:?} of {} are in sync", followers.len()))
        }
    }
}
