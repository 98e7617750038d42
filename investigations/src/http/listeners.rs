//! The owners of a listening port. A token may only be sent to its own server: another user may listen on the same port at
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
            Ok(text) if !owners(&text, port).all(|owner| owner == 0 || owner == user) => {
                return Ok(false);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

/// The users of the sockets in a table that listen on a port.
fn owners(table: &str, port: u16) -> impl Iterator<Item = u32> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?.rsplit_once(':')?.1;
        let listens = fields.nth(1)? == LISTENS;
        let owner = fields.nth(3)?.parse().ok()?;
        (listens && u16::from_str_radix(local, 16) == Ok(port)).then_some(owner)
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
        assert_eq!(owners(TABLE, 9400).collect::<Vec<_>>(), [0, 1000]);
        assert_eq!(owners(TABLE, 9401).collect::<Vec<_>>(), [1002]);
        assert_eq!(owners("", 9400).count(), 0);
    }

    #[test]
    fn a_port_of_this_user_belongs_to_this_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let user = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        assert!(belong_to(user, listener.local_addr().unwrap().port()).unwrap());
    }
}
