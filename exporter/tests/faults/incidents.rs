//! From a fault to the pager: real faults are injected into a stand-in workload, and a real Prometheus with the shipped rules
//! and alerts, and a real Alertmanager with the shipped routes, must notify of the right alert, soon, and of no other.
//! Healthy workloads must raise none. The same must hold with native histograms alone.
//!
//! Prometheus and Alertmanager run on a faster clock. Where `GPUCAUSE_HEALTHY_SECONDS` is the total length of the healthy workloads
//! (`make healthy-alerts`), they run on the shipped one.
//!
//! Needs root, the built stand-ins, two CPUs, Prometheus and Alertmanager, and no other tests at the same time but those that
//! `.ci/suites` lists as in need of no quiet host.

mod clock;
mod expected;
mod exporters;
mod faults;
mod healthy;
mod stack;
mod webhook;
