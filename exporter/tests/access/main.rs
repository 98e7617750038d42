//! Who gets in, over real sockets: TLS, client certificates, passwords, what happens when their files change, and clients
//! that try to keep others out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its fixtures too")]

mod dcgm;
mod elsewhere;
mod explain;
mod fleet;
mod flights;
mod flood;
#[path = "../fixture/http_client.rs"]
mod http_client;
mod nodes_from;
mod pairs;
mod passwords;
#[path = "../fixture/poll.rs"]
mod poll;
mod reload;
mod server;
#[path = "../fixture/snapshot.rs"]
mod snapshot;
mod tls;
mod tls_client;
