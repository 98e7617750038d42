//! The program as it is shipped, on the running kernel: it is started, scraped and stopped from outside, and its page is
//! compared with what stand-in workloads say of themselves. Needs root, the built stand-ins, and nobody else's tests at
//! the same time: the page tells of the whole host.

mod access;
#[path = "../../../probes/tests/support/cgroup.rs"]
mod cgroup;
mod chains;
mod check;
mod configuration;
mod cost;
mod crowd;
mod dcgm;
mod flights;
mod held_lock;
mod host;
#[cfg(target_arch = "x86_64")]
mod host_code;
mod interpreter_lock;
mod kernel_lock;
mod kernel_objects;
mod kernels;
mod levels;
mod lifecycle;
mod limits;
mod live_page;
mod nvml;
mod observation;
mod other_process;
mod page;
mod prometheus;
#[cfg(target_arch = "x86_64")]
mod python;
mod queries;
mod recording;
mod refusals;
mod retention;
mod service;
mod slurm;
mod stacks;
mod start_methods;
mod top;
mod unexplained;
mod upstream;
mod waiter;
