//! Bytes copied, allocated, freed, and sent between GPUs.

use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{
    DEVICE_MEMORY_ALLOCATED, DEVICE_MEMORY_FREED, DEVICE_MEMORY_LIVE, MEMCPY_BYTES,
    MEMCPY_DURATION, NCCL_BYTES,
};

use super::{CollectError, Collector, Families, Input, eager};
use gpucause_abi::op::CopyKind;
use gpucause_abi::record::SIZE_CLASSES;

/// Upper bounds in bytes, inclusive.
const SIZES: [&str; SIZE_CLASSES] = ["4096", "65536", "1048576", "16777216", "268435456", "+Inf"];

pub(super) struct Memory;

impl Collector for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut copied = Family::new(&MEMCPY_BYTES);
        let mut durations = Family::new(&MEMCPY_DURATION);
        let mut allocated = Family::new(&DEVICE_MEMORY_ALLOCATED);
        let mut freed = Family::new(&DEVICE_MEMORY_FREED);
        let mut live = Family::new(&DEVICE_MEMORY_LIVE);
        let mut collectives = Family::new(&NCCL_BYTES);
        for series in input.series.iter().filter(|series| series.process.dispatches) {
            let (process, created) = (&series.process, series.created);
            let labels = || -> [LabelValue; 2] { [(&series.pid).into(), (&series.comm).into()] };
            let with = |last: &'static str| {
                let [pid, comm] = labels();
                [pid, comm, last.into()]
            };
            for (&kind, bytes) in CopyKind::ALL.iter().zip(process.copied).filter(|&(_, b)| b > 0) {
                copied.push_created(with(kind.label()), Value::Integer(bytes), created);
            }
            for (kind, class, histogram) in &process.copies {
                let Some(&size) = SIZES.get(usize::from(*class)) else { continue };
                let [pid, comm, kind] = with(kind.label());
                durations.push_created(
                    [pid, comm, kind, size.into()],
                    Value::Histogram(histogram.clone()),
                    created,
                );
            }
            let memory = process.memory;
            allocated.push_created(labels(), Value::Integer(memory.allocated), created);
            freed.push_created(labels(), Value::Integer(memory.freed), created);
            live.push(labels(), Value::Integer(memory.live()));
            for (op, bytes) in &process.collectives {
                let Some(op) = op.op() else { continue };
                collectives.push_created(with(op.name), Value::Integer(*bytes), created);
            }
        }
        Ok(eager([copied, durations, allocated, freed, live, collectives]))
    }
}
