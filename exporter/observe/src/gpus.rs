//! Data about the GPUs themselves, of whichever sources there are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpucause_page::foreign::ForeignFamily;
use parking_lot::Mutex;

use crate::clock_watch::{ClockWatch, holds_clock_down};
use crate::dcgm::{self, Upstream};
use crate::nvml::{self, GpusByPid, Nvml};

/// The sources.
#[derive(Debug, Default)]
pub struct Gpus {
    upstream: Option<Arc<Upstream>>,
    nvml: Option<Arc<Nvml>>,
    upstream_clocks: Mutex<ClockWatch>,
}

/// The data about GPUs on a page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// How the upstream page does, where there is to be one.
    pub dcgm: Option<dcgm::UpstreamState>,
    /// How the driver does, where it is asked.
    pub nvml: Option<nvml::NvmlState>,
    /// Metrics under DCGM's names.
    pub families: Vec<Arc<ForeignFamily>>,
    /// Which process uses which GPUs.
    pub gpus_by_pid: Arc<GpusByPid>,
}

impl Gpus {
    /// With these sources.
    #[must_use]
    pub fn new(upstream: Option<Arc<Upstream>>, nvml: Option<Arc<Nvml>>) -> Self {
        Self { upstream, nvml, upstream_clocks: Mutex::default() }
    }

    /// The upstream page, where there is to be one.
    #[must_use]
    pub const fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.as_ref()
    }

    /// Returns the current data. Waits for no driver and no peer.
    #[must_use]
    pub fn view(&self) -> View {
        let now = Instant::now();
        let mut view = View::default();
        if let Some(nvml) = &self.nvml {
            let (families, gpus_by_pid, state) = nvml.view(now);
            view = View { families, gpus_by_pid, nvml: Some(state), dcgm: None };
        }
        if let Some(upstream) = &self.upstream {
            // Also while there is no page: series must not change hands when one comes or goes.
            let (families, state) = upstream.view(now);
            view = View { families, dcgm: Some(state), ..view };
        }
        view
    }

    /// The share of the time since the last call in which each GPU ran below its clock; of none where nobody knows.
    pub fn throttled(&self) -> HashMap<String, f64> {
        let now = Instant::now();
        let shares = self.nvml.as_ref().and_then(|nvml| nvml.throttled(now));
        shares.unwrap_or_else(|| self.throttled_upstream(now))
    }

    fn throttled_upstream(&self, now: Instant) -> HashMap<String, f64> {
        let Some(upstream) = &self.upstream else { return HashMap::new() };
        let (families, _) = upstream.view(now);
        let held = dcgm::clock_reasons(&families)
            .map(|(gpu, bits)| (gpu, bits.is_some_and(holds_clock_down)));
        let mut clocks = self.upstream_clocks.lock();
        clocks.note(now, held);
        clocks.shares(now)
    }
}
