//! Which processes listen on a port of this network namespace.

use std::collections::HashSet;
use std::fmt;
use std::fs;

use crate::listeners;

/// Name of this program.
const OWN_NAME: &str = "gpucause";
/// Commands that serve as the exporter does.
const EXPORTERS: [&str; 2] = ["exporter", "demo"];

/// A process that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its PID.
    pub pid: u32,
    name: String,
    /// The command of a gpucause.
    command: Option<String>,
}

impl Owner {
    /// The process of this PID, as far as this process may see it.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let name = String::from_utf8_lossy(&read("comm")).trim_end().to_owned();
        let words = read("cmdline");
        let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let program = words.next().unwrap_or_default();
        let is_own = program.rsplit('/').next() == Some(OWN_NAME);
        let command = words.next().filter(|_| is_own).map(std::borrow::Cow::into_owned);
        Self { pid, name, command }
    }

    /// Returns true if it is an exporter of gpucause.
    #[must_use]
    pub fn is_exporter(&self) -> bool {
        self.command.as_deref().is_some_and(|command| EXPORTERS.contains(&command))
    }

    /// Returns true if it is a gpucause.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.command.is_some()
    }

    /// Returns true if it is another command of gpucause, which may answer as an exporter does.
    #[must_use]
    pub fn is_other_command(&self) -> bool {
        self.is_own() && !self.is_exporter()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, command } = self;
        match command {
            Some(command) => write!(f, "{OWN_NAME} {command} (PID {pid})"),
            None => write!(f, "{name} (PID {pid})"),
        }
    }
}

/// The processes as a list.
#[must_use]
pub fn names(owners: &[Owner]) -> String {
    owners.iter().map(Owner::to_string).collect::<Vec<_>>().join(", ")
}

/// The processes that listen on a port, as far as this process may see their files.
#[must_use]
pub fn owners(port: u16) -> Vec<Owner> {
    let sockets = listeners::on_port(port).unwrap_or_default();
    let inodes: HashSet<u64> = sockets.into_iter().map(|socket| socket.inode).collect();
    if inodes.is_empty() {
        return Vec::new();
    }
    listeners::processes(&inodes).into_iter().map(Owner::of).collect()
}

#[cfg(test)]
impl Owner {
    /// A gpucause with this command.
    pub(crate) fn gpucause(command: &str) -> Self {
        Self { pid: 7, name: OWN_NAME.into(), command: Some(command.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn who_has_a_port_is_named_and_nobody_has_a_free_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = owners(port);
        let own = std::process::id();
        let owner = found.iter().find(|owner| owner.pid == own).unwrap();
        assert!(!owner.is_exporter(), "{owner}");
        assert!(owner.to_string().ends_with(&format!("(PID {own})")), "{owner}");
        drop(listener);
        assert_eq!(owners(port), []);
    }

    #[test]
    fn a_gpucause_is_named_with_its_command() {
        let owner = Owner::gpucause;
        assert_eq!(owner("replay").to_string(), "gpucause replay (PID 7)");
        assert!(owner("exporter").is_exporter() && !owner("replay").is_exporter());
    }
}
