//! The sockets that listen on a port of this network namespace, and whose they are. A token may only be sent to its own server: another user may listen on the same port at
//! another loopback address.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;

use procfs::ProcError;
use procfs::net::{TcpNetEntry, TcpState, tcp, tcp6};

/// Characters of a program's name, which it chooses.
const MAX_NAME: usize = 15;

/// The sockets that listen on a port in this network namespace and belong neither to root nor to this user.
pub fn of_others(user: u32, port: u16) -> io::Result<Vec<Socket>> {
    let mut all = on_port(port)?;
    all.retain(|own| own.user != 0 && own.user != user);
    Ok(all)
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// Where it listens.
    pub address: SocketAddr,
    /// The user that made it.
    pub user: u32,
    /// Its inode, as in the links `socket:[INODE]` below `/proc/PID/fd`.
    pub inode: u64,
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, user, inode } = *self;
        match processes(&[inode].into()).first() {
            Some(pid) => {
                let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
                let comm = String::from_utf8_lossy(&comm);
                let name = comm.chars().filter(|c| !c.is_control()).take(MAX_NAME);
                write!(f, "{} (PID {pid})", name.collect::<String>())?;
            }
            None => f.write_str("a program")?,
        }
        f.write_str(" of ")?;
        match user_name(user, &fs::read("/etc/passwd").unwrap_or_default()) {
            Some(name) => write!(f, "user {name}")?,
            None => write!(f, "UID {user}")?,
        }
        write!(f, " at {address}")
    }
}

/// The name of a user in a `passwd` file.
pub fn user_name(uid: u32, passwd: &[u8]) -> Option<String> {
    String::from_utf8_lossy(passwd).lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The sockets that listen on a port.
///
/// # Errors
/// When a table cannot be read.
pub fn on_port(port: u16) -> io::Result<Vec<Socket>> {
    let mut all = Vec::new();
    for table in [tcp(), tcp6()] {
        match table {
            Ok(entries) => all.extend(sockets(&entries, port)),
            // The second one is missing on hosts without IPv6.
            Err(ProcError::NotFound(_)) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(all)
}

/// The processes that have one of these sockets, as far as this process may see their files.
pub fn processes(inodes: &HashSet<u64>) -> Vec<u32> {
    let links: HashSet<_> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_one = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut own = files.filter_map(|file| fs::read_link(file.path()).ok());
        own.any(|link| link.to_str().is_some_and(|link| links.contains(link)))
    };
    let mut pids: Vec<u32> = pids.filter(has_one).collect();
    pids.sort_unstable();
    pids
}

/// The sockets in a table that listen on a port.
fn sockets(table: &[TcpNetEntry], port: u16) -> impl Iterator<Item = Socket> {
    let is_it =
        move |own: &&TcpNetEntry| own.state == TcpState::Listen && own.local_address.port() == port;
    let listening = table.iter().filter(is_it);
    listening.map(|own| Socket { address: own.local_address, user: own.uid, inode: own.inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::net::TcpNetEntries;
    use procfs::{FromReadSI as _, current_system_info};
    use std::net::TcpListener;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0200007F:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 100 0 0 10 0
   2: 0100007F:24B8 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 13 1 0 100 0 0 10 0
   3: 0100007F:24B9 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 14 1 0 100 0 0 10 0
   4: 00000000000000000000000001000000:24B8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 15 1 0 100 0 0 10 0
";

    #[test]
    fn those_who_listen_at_a_port_are_known_by_its_number_and_state() {
        let table = TcpNetEntries::from_read(TABLE.as_bytes(), current_system_info()).unwrap().0;
        let own = |port| sockets(&table, port).map(|s| (s.user, s.inode)).collect::<Vec<_>>();
        assert_eq!(own(9400), [(0, 11), (1000, 12), (1003, 15)]);
        let addresses: Vec<_> = sockets(&table, 9400).map(|own| own.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:9400", "127.0.0.2:9400", "[::1]:9400"]);
        assert_eq!(own(9401), [(1002, 14)]);
        assert_eq!(sockets(&[], 9400).count(), 0);
    }

    #[test]
    fn a_port_of_this_user_is_of_no_other_and_names_its_program() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let user = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        assert_eq!(of_others(user, address.port()).unwrap(), []);
        let [socket] = on_port(address.port()).unwrap()[..] else { panic!("{address}") };
        let (shown, pid) = (socket.to_string(), std::process::id());
        assert!(shown.contains(&format!("(PID {pid}) of ")), "{shown}");
        assert!(shown.ends_with(&format!(" at {address}")), "{shown}");
    }

    #[test]
    fn names_come_from_whole_lines_only() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n# comment\n:x:7:7::/:\nbroken\ngpu:x:7:7::/:\n\xff:x:8:8";
        assert_eq!(user_name(0, passwd).as_deref(), Some("root"));
        assert_eq!(user_name(7, passwd).as_deref(), Some("gpu"));
        assert_eq!(user_name(8, passwd).as_deref(), Some("\u{fffd}"));
        assert_eq!(user_name(9, passwd), None);
    }
}
