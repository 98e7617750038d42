//! Launches by kernel, and their durations for the most launched kernels.

use gpucause_observe::kernel_launches::{KernelLaunches, OTHER, UNKNOWN};
use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{KERNEL_LAUNCH_DURATION, KERNEL_LAUNCHES};

use super::{CollectError, Collector, Families, Input, eager};

pub(super) struct Kernels;

impl Collector for Kernels {
    fn name(&self) -> &'static str {
        "kernels"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut launches = Family::new(&KERNEL_LAUNCHES);
        let mut durations = Family::new(&KERNEL_LAUNCH_DURATION);
        for series in &input.series {
            let mut images =
                series.images.iter().filter_map(|id| input.observation.kernels.get(id));
            let mut all: KernelLaunches = images.next().cloned().unwrap_or_default();
            images.for_each(|image| all.merge(image));
            // Launches of processes aggregated into `other`.
            let unlisted = series.process.kernel_launches().saturating_sub(all.total);
            let (pid, comm) = (&series.pid, &series.comm);
            let labels = |kernel: LabelValue| [pid.into(), comm.into(), kernel];
            let named = all.by_name.iter().map(|(name, count)| (name.into(), *count));
            let unnamed = [(UNKNOWN, all.unknown), (OTHER, all.other + unlisted)];
            let unnamed = unnamed.into_iter().filter(|&(_, count)| count > 0);
            for (kernel, count) in
                named.chain(unnamed.map(|(kernel, count)| (LabelValue::from(kernel), count)))
            {
                launches.push_created(labels(kernel), Value::Integer(count), series.created);
            }
            for (name, times) in &all.times {
                let value = Value::Histogram(times.clone());
                durations.push_created(labels(name.into()), value, series.created);
            }
        }
        Ok(eager([launches, durations]))
    }
}
