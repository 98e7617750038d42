//! Every cause, injected for real into a stand-in workload, must be found: as the first chain, soon, with its culprit, and with the
//! loss that the workload measured. Healthy workloads must have no chain.
//!
//! Needs root, the built stand-ins, two CPUs, and no other tests at the same time. `GPUCAUSE_SCENARIO_ROUNDS` is the number of runs of
//! each scenario (`make scenarios`), `GPUCAUSE_HEALTHY_SECONDS` the total length of the healthy ones (`make healthy`).

mod causes;
mod healthy;
mod run;
