//! Hosts, each played by a process: the example starts itself again, once for each. A host reports
//! events on its standard output, and reads orders from its standard input, one per line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::common::{Arguments, EngineLocation, Failure};

/// The last line that a host prints.
pub(crate) const ENDED_LINE: &str = "ended";

/// The time limit for each report of a host, on every engine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The engine, and the number of the host that this process plays; `None` for the process that
/// starts the hosts.
pub(crate) fn options(usage: &'static str) -> Result<(EngineLocation, Option<u32>), Failure> {
    let (mut words, mut host) = (Arguments::new(usage), None);
    while let Some(word) = words.next()? {
        match word.as_str() {
            "--host" => host = Some(words.number(&word)?),
            _ => return Err(words.unknown_option(&word)),
        }
    }
    Ok((words.engine_location()?, host))
}

/// A process of this example that plays one host.
struct Host {
    child: Child,
    commands: Option<ChildStdin>,
}

/// All hosts. Dropping it kills those that are left.
pub(crate) struct HostProcesses {
    hosts: Vec<Host>,
    reports: UnboundedReceiver<(u32, String)>,
}

impl HostProcesses {
    /// Starts hosts 1 to `count`.
    pub(crate) fn start(count: u32, url: &str) -> Result<Self, Failure> {
        if url.starts_with("memory:") {
            return Err("the hosts are processes, but memory: exists in one process: try file:".into());
        }
        let (sender, reports) = unbounded_channel();
        let mut fleet = Self { hosts: Vec::new(), reports };
        for number in 1..=count {
            let mut host = Command::new(std::env::current_exe()?);
            host.args(["--engine", url, "--host", &number.to_string()]);
            let mut child = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (orders, output) = (child.stdin.take(), child.stdout.take());
            fleet.hosts.push(Host { child, commands: orders });
            let output = output.ok_or("no standard output")?;
            let sender = sender.clone();
            std::thread::spawn(move || forward_lines(BufReader::new(output), number, &sender));
        }
        Ok(fleet)
    }

    /// Waits for the next line that any host prints; returns the host's number and the line.
    pub(crate) async fn next(&mut self) -> Result<(u32, String), Failure> {
        let report = tokio::time::timeout(TEST_TIMEOUT, self.reports.recv()).await;
        Ok(report.map_err(|_| "no host has reported anything for a minute")?.ok_or("all hosts have ended")?)
    }

    fn host(&mut self, number: u32) -> Result<&mut Host, Failure> {
        Ok(self.hosts.get_mut(number as usize - 1).ok_or("no such host")?)
    }

    /// Sends an order to a host.
    pub(crate) fn send_command(&mut self, number: u32, order: &str) -> Result<(), Failure> {
        let orders = self.host(number)?.commands.as_mut().ok_or("it was shut down")?;
        Ok(writeln!(orders, "{order}")?)
    }

    /// Closes all inputs, so that the hosts end.
    pub(crate) fn close_inputs(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.commands = None);
    }

    /// Sends SIGKILL: the host cannot report or release anything.
    pub(crate) fn kill(&mut self, number: u32) -> Result<(), Failure> {
        Ok(self.host(number)?.child.kill()?)
    }

    /// The process id of the host with this number.
    pub(crate) fn pid(&mut self, number: u32) -> Result<u32, Failure> {
        Ok(self.host(number)?.child.id())
    }
}

impl Drop for HostProcesses {
    fn drop(&mut self) {
        self.close_inputs();
        for Host { child, .. } in &mut self.hosts {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn forward_lines(output: impl BufRead, number: u32, sender: &UnboundedSender<(u32, String)>) {
    for line in output.lines().map_while(Result::ok).chain([ENDED_LINE.to_owned()]) {
        let _ = sender.send((number, line));
    }
}

/// A host's orders. They end when the host must end, or when its parent has died.
pub(crate) fn read_commands() -> UnboundedReceiver<String> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    orders
}
