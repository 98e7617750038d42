//! Observes a GPU host.
//!
//! A [`sampler`] has the kernel's accounts copied and a [`pipeline`] makes an [`observation`] of them; [`chains`] say what they explain.

pub mod chains;
pub mod clock;
mod clock_watch;
pub mod dcgm;
pub mod gpus;
pub mod host_name;
mod images;
pub mod kernel_launches;
pub mod nvml;
pub mod observation;
pub mod observing;
pub mod pipeline;
pub mod process_details;
pub mod process_identity;
pub mod sampler;
mod scrape_times;
pub mod series;
pub mod stacks;
pub mod throttling;
mod top_names;
pub mod visibility;
pub mod wait_names;
pub mod workers;
