//! Clients at other addresses of this host.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::http_client::{DEADLINE, Response, read_to_end};

/// A connection from this address.
pub(crate) fn connect_from(from: [u8; 4], server: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect_timeout(&server.into(), DEADLINE).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Asks from this address, on a connection of its own.
pub(crate) fn request_from(
    from: [u8; 4],
    server: SocketAddr,
    path: &str,
    headers: &str,
) -> Response {
    let mut stream = connect_from(from, server);
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    read_to_end(stream)
}
