//! gpucause's eyes in the kernel: eBPF programs on the CUDA libraries that processes map and on the scheduler.
//!
//! [`Probes::start`] opens and loads the programs, attaches them to the scheduler, and starts a thread that finds CUDA
//! libraries and attaches to them as they are mapped. [`Probes::snapshot`] copies the kernel maps. Nothing runs in user
//! space for an event.
//!
//! The only crate of the workspace with unsafe code, and the only one that knows libbpf. The one other thing it reads is the
//! NVIDIA driver, by way of [`nvml`].
#![allow(unsafe_code)]

pub mod allocator;
pub mod discovery;
pub mod elf;
pub mod entry_points;
pub mod feature;
pub mod hazard;
pub mod host_clock;
pub mod host_functions;
pub mod mapped;
pub mod mmap_events;
pub mod nvml;
pub mod program;
pub mod python;
pub mod recorder;
pub mod registry;
pub mod stop;
pub mod verdict;

mod attach;
mod batch;
mod calibrate;
mod finder;
mod launch_budget;
mod launch_control;
mod launch_groups;
mod launch_modes;
mod launch_states;
mod op_table;
mod orders;
mod prefill;
mod probes;
mod reader;
mod syscall;
mod thread_report;

pub use probes::{Probes, StartError, Status};
pub use program::{LoadError, Options};
pub use reader::{ReadError, monotonic_now};
