//! The sockets that listen on a port of this network namespace, and whose they are. A token may only be sent to its own server: another user may listen on the same port at
//! another loopback address.

use std::fs;
use std::io::{self, ErrorKind};

/// IPv4 and IPv6. The latter is missing on hosts without IPv6.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// `TCP_LISTEN` of the kernel's include/net/tcp_states.h.
const LISTENS: &str = "0A";

/// Whether every socket that listens on a port in this network namespace belongs to root or this user.
pub(super) fn belong_to(user: u32, port: u16) -> io::Result<bool> {
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(text) if !sockets(&text, port).all(|own| own.user == 0 || own.user == user) => {
                return Ok(false);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// The user that made it.
    pub user: u32,
    /// Its inode, as in the links `socket:[INODE]` below `/proc/PID/fd`.
    pub inode: u64,
}

/// The sockets that listen on a port, as far as the tables can be read.
pub fn on_port(port: u16) -> Vec<Socket> {
    let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
    tables.flat_map(|table| sockets(&table, port).collect::<Vec<_>>()).collect()
}

/// The sockets in a table that listen on a port.
fn sockets(table: &str, port: u16) -> impl Iterator<Item = Socket> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?.rsplit_once(':')?.1;
        let listens = fields.nth(1)? == LISTENS;
        let user = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let is_it = listens && u16::from_str_radix(local, 16) == Ok(port);
        is_it.then_some(Socket { user, inode })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0200007F:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 100 0 0 10 0
   2: 0100007F:24B8 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 13 1 0 100 0 0 10 0
   3: 0100007F:24B9 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 14 1 0 100 0 0 10 0
";

    #[test]
    fn those_who_listen_at_a_port_are_known_by_its_number_and_state() {
        let own = |port| sockets(TABLE, port).map(|s| (s.user, s.inode)).collect::<Vec<_>>();
        assert_eq!(own(9400), [(0, 11), (1000, 12)]);
        assert_eq!(own(9401), [(1002, 14)]);
        assert_eq!(sockets("", 9400).count(), 0);
    }

    #[test]
    fn a_port_of_this_user_belongs_to_this_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let user = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        assert!(belong_to(user, listener.local_addr().unwrap().port()).unwrap());
    }
}
