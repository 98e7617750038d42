//! eBPF programs on the CUDA libraries that processes map and on the scheduler.
//!
//! [`Probes::start`] loads the programs, attaches them to the scheduler, and starts a thread that attaches them to CUDA
//! libraries as they are mapped. Their `snapshot` copies the kernel maps. User space does nothing per event.
//!
//! The only crate with unsafe code and libbpf. It also reads the NVIDIA driver, through [`nvml`].
#![allow(unsafe_code)]

pub mod allocator;
pub mod discovery;
pub mod elf;
pub mod entry_points;
pub mod feature;
pub mod hazard;
pub mod host_clock;
pub mod kernel_symbols;
pub mod mapped;
pub mod mmap_events;
pub mod nvml;
pub mod program;
pub mod python;
pub mod recorder;
pub mod registry;
pub mod samples;
pub mod stop;
pub mod thread_records;
pub mod verdict;

mod attach;
mod attacher;
mod batch;
mod calibrate;
mod close;
mod desired_state;
mod hit_cost;
mod launch_control;
mod launch_groups;
mod launch_states;
mod link_ids;
mod load_error;
mod online_cpus;
mod op_table;
mod other_observers;
mod perf_event;
mod probes;
mod reader;
mod thread_report;
mod warm_up;

pub use host_clock::monotonic_now;
pub use load_error::LoadError;
pub use other_observers::is_observed_by_another;
pub use probes::{Probes, StartError, Status};
pub use program::Options;
pub use reader::{ReadError, Reader};
