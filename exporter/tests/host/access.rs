//! Who gets in, over real sockets: TLS, client certificates, passwords, what happens when their files change, and clients
//! that try to keep others out.

mod dcgm;
mod explain;
mod fleet;
mod flights;
mod flood;
mod nodes_from;
mod pairs;
mod passwords;
mod reload;
mod tls;
mod tls_client;
