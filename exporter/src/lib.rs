//! gpucause: finds out why a GPU is not being fed.
//!
//! [`collector`]s turn what `gpucause_observe` observes into the families of `gpucause_page`, and the [`routes`] serve their page.

pub mod budget;
pub mod cli;
pub mod collector;
pub mod commands;
pub mod config;
pub mod daemon;
pub mod daemon_state;
pub mod failure;
pub mod file_limits;
pub mod flags;
pub mod flight_recorder;
pub mod flights;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod interrupt;
pub mod live_page;
pub mod logging;
pub mod manual;
pub mod node_snapshot;
pub mod nodes;
pub mod other_exporters;
pub mod otlp;
pub mod peers;
mod pid_flag;
pub mod privileges;
mod progress;
pub mod routes;
pub mod serve;
pub mod service_manager;
pub mod shutdown;
pub mod store_url;
mod time_shares;
mod trace_recorder;
pub mod version;
