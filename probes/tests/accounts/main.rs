//! The accounts in the kernel maps against what workloads on stand-in libraries know to be true. Needs root, and the
//! stand-ins built (`cargo build -p gpucause-fake-cuda ...`; a test says so when they are not).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

#[path = "../support/cgroup.rs"]
mod cgroup;
#[path = "../support/compile.rs"]
mod compile;
#[path = "../support/guest.rs"]
mod guest;
#[path = "../support/netns.rs"]
mod netns;
#[path = "../support/observe.rs"]
mod observe;
#[path = "../support/workload.rs"]
mod workload;

mod allocations;
mod bytes;
mod causes;
mod collectives;
mod dispatcher;
mod disturbance;
mod driver_only;
mod full_maps;
mod graphs;
mod host_code;
mod host_disk;
mod host_memory;
mod host_network;
mod in_flight;
mod kernel_locks;
mod kernels;
mod known_keys;
mod latency;
mod launches;
mod lossless;
mod moved;
mod offcpu;
mod over_budget;
mod programs;
mod recorder;
mod replaced_code;
mod shares;
mod stacks;
mod storm;
mod suspended;
mod switched_off;
mod threads;
mod unseen;
mod unwinding;
mod workers;
