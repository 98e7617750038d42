//! gpucause: finds out why a GPU is not being fed.
//!
//! A [`sampler`] copies the kernel's accounts into an [`observation`], [`collector`]s turn it into [`family`] values, an
//! [`exposition`] encoder writes them, and the [`server`] hands them out.

pub mod budget;
pub mod chains;
pub mod check;
pub mod cli;
pub mod clock;
pub mod clock_watch;
pub mod collector;
pub mod config;
pub mod daemon;
pub mod daemon_state;
pub mod dcgm;
pub mod demo;
pub mod duration;
pub mod failure;
pub mod file_limits;
pub mod flags;
pub mod flight_recorder;
pub mod flights;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gpus;
mod host_name;
pub mod kernel_launches;
pub mod live_page;
pub mod logging;
pub mod manual;
pub mod nodes;
pub mod nvml;
pub mod observation;
mod observing;
pub mod otlp;
pub mod peers;
mod pid;
mod pipeline;
pub mod port_owner;
pub mod privileges;
pub mod process_details;
mod progress;
mod quantity;
pub mod record;
pub mod replay;
pub mod sampler;
mod scrape_times;
pub mod series;
pub mod serve;
pub mod server;
pub mod service_manager;
mod stacks;
pub mod store_url;
mod text_file;
pub mod throttling;
mod time_shares;
pub mod token_file;
pub mod top;
pub mod top_names;
pub mod version;
pub mod view;
mod visibility;
pub mod wait_names;
pub mod workers;
