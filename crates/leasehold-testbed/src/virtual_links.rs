//! A network namespace whose only links can be disconnected, for partitions without a proxy:
//! packets are lost, connections hang, and TCP retransmits.
//!
//! Each link is a pair of virtual Ethernet devices (`veth`): one end on this host, the other in the
//! namespace. Disconnecting it sets the host's end down.
//!
//! A child process keeps the namespace alive. It ends with this process in any case. When it and
//! all processes in the namespace have ended, the links are removed.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener},
    process::{ChildStdin, Command, Stdio},
};

use rustix::process::geteuid;

use crate::{Error, Result, process::Child};

/// The first address of 198.18.0.0/15, which is reserved for benchmarks; two addresses for each of
/// 65,536 links.
const FIRST_ADDRESS: u32 = 0xC612_0000;

/// A namespace and its links. Dropping this removes them, and disconnects the processes inside.
#[derive(Debug)]
pub struct VirtualLinks {
    namespace_process: Child,
    // The process of the namespace ends when this closes.
    _stdin: Option<ChildStdin>,
    links: Vec<VirtualLink>,
}

#[derive(Debug)]
struct VirtualLink {
    /// Reserves the number of the link: its addresses follow from this port, which no other process
    /// on this host has.
    _reserved_port: TcpListener,
    /// The name of the device on the host.
    name: String,
    /// The address of the device on the host.
    host_address: Ipv4Addr,
}

impl VirtualLinks {
    /// Creates a namespace with `count` links.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] without root, or if root lacks the privilege; if `ip`, `nsenter` or `unshare`
    /// are missing (Debian's `iproute2` and `util-linux`).
    pub fn create(count: usize) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::io("creating a network namespace (needs root)")(
                std::io::ErrorKind::PermissionDenied.into(),
            ));
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let mut namespace_process = Child::spawn("unshare", command)?;
        let (stdin, ready, _) = namespace_process.take_pipes();
        // Before it prints a line, the process may still be in the test's namespace.
        let mut line = [0];
        ready
            .map_or(Ok(()), |mut ready| ready.read_exact(&mut line))
            .map_err(Error::io("creating a network namespace with unshare"))?;
        let mut links = Self { namespace_process, _stdin: stdin, links: Vec::new() };
        for _ in 0..count {
            links.add_link()?;
        }
        Ok(links)
    }

    fn add_link(&mut self) -> Result<()> {
        let (pid, at) = (self.namespace_process.pid(), self.links.len());
        let reserved_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(Error::io("reserving a port as the number of a link"))?;
        let number = reserved_port.local_addr().map_err(Error::io("reserving a port as the number of a link"))?.port();
        let first = FIRST_ADDRESS + 2 * u32::from(number);
        let (host, there) = (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(first + 1));
        let name = format!("lh-{number:x}");
        self.links.push(VirtualLink { _reserved_port: reserved_port, name: name.clone(), host_address: host });
        let lines = format!(
            "link add {name} type veth peer name wire{at} netns {pid}\naddress add {host}/31 dev {name}\nlink set {name} up\n"
        );
        run_ip_batch(&mut Command::new("ip"), &lines)?;
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &pid.to_string(), "--net", "ip"]);
        run_ip_batch(
            &mut inside,
            &format!("address add {there}/31 dev wire{at}\nlink set wire{at} up\nlink set lo up\n"),
        )
    }

    /// The host's address on a link, for processes in the namespace; `None` if there is no link
    /// with this number, counted from 0.
    pub fn host_address(&self, link: usize) -> Option<IpAddr> {
        self.links.get(link).map(|link| link.host_address.into())
    }

    /// The prefix of a command that runs in the namespace. It replaces itself by the command, so
    /// signals reach the command.
    pub fn command_prefix(&self) -> Vec<String> {
        ["nsenter", "--target", &self.namespace_process.pid().to_string(), "--net", "--"].map(str::to_owned).into()
    }

    /// Disconnects a link: no packets pass, and no process is notified. Has no effect if there is
    /// no link with this number.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if `ip` fails.
    pub fn disconnect(&self, link: usize) -> Result<()> {
        self.set_state(link, "down")
    }

    /// Reconnects a link: packets sent meanwhile arrive when they are retransmitted.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if `ip` fails.
    pub fn reconnect(&self, link: usize) -> Result<()> {
        self.set_state(link, "up")
    }

    fn set_state(&self, link: usize, state: &str) -> Result<()> {
        let Some(link) = self.links.get(link) else { return Ok(()) };
        run_ip_batch(&mut Command::new("ip"), &format!("link set {} {state}\n", link.name))
    }
}

impl Drop for VirtualLinks {
    fn drop(&mut self) {
        // The kernel would remove the links with the namespace, but some time after its last
        // process has ended.
        for link in &self.links {
            let _ = run_ip_batch(&mut Command::new("ip"), &format!("link delete {}\n", link.name));
        }
    }
}

/// Gives `command`, which runs `ip`, these lines, one command each.
fn run_ip_batch(command: &mut Command, lines: &str) -> Result<()> {
    let failed = || Error::io(format!("ip {}", lines.trim_end().replace('\n', "; ip ")));
    let command = command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_installed("ip", "iproute2"),
        _ => failed()(error),
    })?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes()).map_err(failed())?;
    }
    let output = child.wait_with_output().map_err(failed())?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed()(std::io::Error::other(why)))
}
