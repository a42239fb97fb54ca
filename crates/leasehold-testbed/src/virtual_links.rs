//! A network namespace whose only way out are wires that can be pulled, for partitions that are no proxy's doing: packets are lost, connections hang,
//! and TCP sends again and again.
//!
//! Each wire is a pair of virtual Ethernet devices: one end on this host, the other in the namespace. Pulling it takes the host's end down.
//!
//! A process of ours keeps the namespace; it ends with this one, however that ends, and with it and those in the namespace the wires are gone.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener},
    process::{ChildStdin, Command, Stdio},
};

use rustix::process::geteuid;

use crate::{Error, Result, process::Child};

/// The first address of 198.18.0.0/15, which is set aside for testing devices; two addresses for each of 65,536 wires.
const FIRST_ADDRESS: u32 = 0xC612_0000;

/// A namespace and its wires; gone when dropped, together with all processes' way out.
#[derive(Debug)]
pub struct VirtualLinks {
    namespace_process: Child,
    // It ends when this closes.
    _stdin: Option<ChildStdin>,
    links: Vec<VirtualLink>,
}

#[derive(Debug)]
struct VirtualLink {
    /// Nobody else on this host has its port, so nobody else takes these addresses.
    _reserved_port: TcpListener,
    name: String,
    host_address: Ipv4Addr,
}

impl VirtualLinks {
    /// Makes a namespace with so many wires.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if this is not root, or may not do that all the same; if `ip`, `nsenter` or `unshare` are missing (Debian's `iproute2` and
    /// `util-linux`).
    pub fn create(count: usize) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::io("making a network namespace")(std::io::ErrorKind::PermissionDenied.into()));
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let mut keeper = Child::spawn("unshare", command)?;
        let (open, told, _) = keeper.take_pipes();
        // Before that line the process may be in our namespace still.
        let mut line = [0];
        told.map_or(Ok(()), |mut told| told.read_exact(&mut line))
            .map_err(Error::io("making a network namespace with unshare"))?;
        let mut wires = Self { namespace_process: keeper, _stdin: open, links: Vec::new() };
        for _ in 0..count {
            wires.add_link()?;
        }
        Ok(wires)
    }

    fn add_link(&mut self) -> Result<()> {
        let (pid, at) = (self.namespace_process.pid(), self.links.len());
        let ticket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("numbering a wire"))?;
        let number = ticket.local_addr().map_err(Error::io("numbering a wire"))?.port();
        let first = FIRST_ADDRESS + 2 * u32::from(number);
        let (host, there) = (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(first + 1));
        let name = format!("lh-{number:x}");
        self.links.push(VirtualLink { _reserved_port: ticket, name: name.clone(), host_address: host });
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

    /// The host's address on a wire: where those in the namespace find whoever listens there.
    pub fn host_address(&self, link: usize) -> Option<IpAddr> {
        self.links.get(link).map(|wire| wire.host_address.into())
    }

    /// The words before a command that is to run in the namespace. As the same process: signals reach it.
    pub fn command_prefix(&self) -> Vec<String> {
        ["nsenter", "--target", &self.namespace_process.pid().to_string(), "--net", "--"].map(str::to_owned).into()
    }

    /// Pulls a wire: nothing gets through any more, and nobody is told.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be done.
    pub fn disconnect(&self, link: usize) -> Result<()> {
        self.set_state(link, "down")
    }

    /// Plugs it in again: what was sent meanwhile arrives when it is sent again.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be done.
    pub fn reconnect(&self, link: usize) -> Result<()> {
        self.set_state(link, "up")
    }

    fn set_state(&self, link: usize, state: &str) -> Result<()> {
        let Some(wire) = self.links.get(link) else { return Ok(()) };
        run_ip_batch(&mut Command::new("ip"), &format!("link set {} {state}\n", wire.name))
    }
}

impl Drop for VirtualLinks {
    fn drop(&mut self) {
        // They would end with the namespace, but that is some time after its last process has.
        for wire in &self.links {
            let _ = run_ip_batch(&mut Command::new("ip"), &format!("link delete {}\n", wire.name));
        }
    }
}

/// Has `ip` do some things, a line each.
fn run_ip_batch(command: &mut Command, lines: &str) -> Result<()> {
    let failed = || Error::io(format!("ip {}", lines.trim_end().replace('\n', "; ip ")));
    let command = command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed())?;
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
