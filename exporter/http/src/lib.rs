//! HTTP: the server of gpucause with its limits per client, and the client. They know no metric and no chain.

pub mod client;
pub mod listeners;
pub mod port_owner;
pub mod server;
pub mod server_pool;
pub mod token;
pub mod token_file;
pub mod web_config;
