//! How a ZooKeeper is started: Java, its classpath, and the files that it reads.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use super::{Role, ZooKeeper, role};
use crate::{
    Error, Result,
    process::{Binary, Probe, ServerSpec, Workspace},
};

/// The environment variable that names another ZooKeeper than Debian's: its classpath, with its
/// dependencies.
const CLASSPATH_VARIABLE: &str = "LEASEHOLD_ZOOKEEPER_CLASSPATH";

/// The classpath of the ZooKeeper that the testbed starts: Debian's, unless
/// `LEASEHOLD_ZOOKEEPER_CLASSPATH` names another.
pub fn classpath() -> String {
    std::env::var(CLASSPATH_VARIABLE).unwrap_or_else(|_| DEBIAN_CLASSPATH.to_owned())
}

/// Debian's classpath; its jar names the further dependencies.
const DEBIAN_CLASSPATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:\
    /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar:\
    /usr/share/java/netty-transport-native-unix-common.jar";

const PACKAGE: &str = "libzookeeper-java";
const JAVA_PACKAGE: &str = "default-jre-headless";
const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const CONFIG_FILE: &str = "./zoo.cfg";
const USERS_FILE: &str = "jaas.conf";
pub(super) const MY_ID_FILE: &str = "myid";

/// A small JVM that starts quickly.
const JVM_OPTIONS: [&str; 4] = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];

const BASE_PROPERTIES: [(&str, &str); 8] = [
    ("java.net.preferIPv4Stack", "true"),
    ("org.slf4j.simpleLogger.defaultLogLevel", "warn"),
    ("org.slf4j.simpleLogger.showDateTime", "true"),
    ("zookeeper.admin.enableServer", "false"),
    ("zookeeper.extendedTypesEnabled", "true"),
    ("zookeeper.jmx.log4j.disable", "true"),
    // How many KiB of the log a server preallocates; the default is 64 MiB.
    ("zookeeper.preAllocSize", "64"),
    // A member that was down or cut off takes part in elections again within half a second.
    ("zookeeper.fastleader.maxNotificationInterval", "500"),
];

impl ZooKeeper {
    /// All arguments of `java`; `extra` are additional properties.
    pub(super) fn java_arguments(&self, extra: &[(&str, &str)]) -> Vec<String> {
        let check = self.container_check_interval.as_millis().to_string();
        let sync = if self.fsyncs { "yes" } else { "no" };
        let mut properties = BASE_PROPERTIES.to_vec();
        properties.extend([("znode.container.checkIntervalMs", check.as_str()), ("zookeeper.forceSync", sync)]);
        if !self.users.is_empty() {
            properties.push(("java.security.auth.login.config", USERS_FILE));
        }
        properties.extend_from_slice(extra);
        properties.extend(self.properties.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let properties = properties.into_iter().map(|(key, value)| format!("-D{key}={value}"));
        let program = ["-cp", &classpath(), MAIN_CLASS, CONFIG_FILE].map(str::to_owned);
        JVM_OPTIONS.map(str::to_owned).into_iter().chain(properties).chain(program).collect()
    }

    /// Writes the files that ZooKeeper reads at its start; `extra` are additional settings.
    pub(super) fn write_files(&self, port: u16, dir: &Path, extra: &[(String, String)]) -> Result<()> {
        check_installed(&classpath())?;
        write_file(&dir.join(CONFIG_FILE), &self.config(port, dir, extra))?;
        if self.users.is_empty() { Ok(()) } else { write_file(&dir.join(USERS_FILE), &self.jaas_config()) }
    }

    fn config(&self, port: u16, dir: &Path, extra: &[(String, String)]) -> String {
        let shortest = self.min_session.unwrap_or(self.tick * 2);
        let mut settings = vec![
            ("dataDir", dir.display().to_string()),
            ("clientPort", port.to_string()),
            ("clientPortAddress", "127.0.0.1".to_owned()),
            ("tickTime", milliseconds(self.tick)),
            ("minSessionTimeout", milliseconds(shortest)),
            ("maxSessionTimeout", milliseconds(self.max_session)),
            ("maxClientCnxns", "0".to_owned()),
            ("4lw.commands.whitelist", "*".to_owned()),
        ];
        if !self.users.is_empty() {
            let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
            settings.push(("authProvider.sasl", provider.to_owned()));
        }
        let settings = settings.iter().map(|(key, value)| (*key, value.as_str()));
        let more = extra.iter().chain(&self.settings).map(|(key, value)| (key.as_str(), value.as_str()));
        settings.chain(more).map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    fn jaas_config(&self) -> String {
        let users = self.users.iter().map(|(name, password)| format!("  user_{name}=\"{password}\"\n"));
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        format!("Server {{\n  {module} required\n{};\n}};\n", users.collect::<String>())
    }

    /// `time` in ticks, rounded up, and at least 1; some settings have this unit.
    pub(super) fn ticks(&self, time: Duration) -> String {
        time.as_millis().div_ceil(self.tick.as_millis().max(1)).max(1).to_string()
    }
}

impl ServerSpec for ZooKeeper {
    fn binary(&self) -> Binary {
        Binary::new("java", JAVA_PACKAGE)
    }

    fn arguments(&self, _workspace: &Workspace) -> Vec<String> {
        self.java_arguments(&[])
    }

    fn url(&self, workspace: &Workspace) -> String {
        workspace.addr().to_string()
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(check_standalone(workspace.addr()))
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.write_files(workspace.port(), workspace.dir(), &[])
    }
}

/// `NotInstalled` if a file of the classpath is missing.
fn check_installed(classpath: &str) -> Result<()> {
    match classpath.split(':').find(|jar| !Path::new(jar).is_file()) {
        None => Ok(()),
        Some(jar) => Err(Error::not_installed(jar, PACKAGE)),
    }
}

/// `Ok` if the server at `addr` serves clients and is no member of an ensemble.
pub(super) async fn check_standalone(addr: SocketAddr) -> std::result::Result<(), String> {
    match role(addr).await {
        Ok(Role::Standalone) => Ok(()),
        Ok(other) => Err(format!("its role is {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn write_file(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(Error::io(format!("writing {}", file.display())))
}

fn milliseconds(time: Duration) -> String {
    time.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_jar_is_an_error_that_names_its_package() {
        let message = check_installed("/no/such.jar").unwrap_err().to_string();
        assert!(message.contains("/no/such.jar is not installed"), "{message}");
        assert!(message.contains("apt-get install libzookeeper-java"), "{message}");
    }

    #[test]
    fn ticks_are_rounded_up() {
        let server = ZooKeeper::new().tick(Duration::from_millis(300));
        assert_eq!(server.ticks(Duration::from_secs(1)), "4");
        assert_eq!(server.ticks(Duration::ZERO), "1");
    }
}
