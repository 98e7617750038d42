//! The driver's answers under dcgm-exporter's names, units and labels.

use std::sync::Arc;

use gpucause_page::foreign::{ForeignFamily, ForeignKind, ForeignSample, Labels};
use gpucause_probes::nvml::{Gpu, Instance, Memory};

const BYTES_PER_MIB: u64 = 1 << 20;

/// A metric: its name, its kind, its help as in dcgm-exporter's list of counters, and where its value comes from.
type Row = (&'static str, ForeignKind, &'static str, fn(&Gpu) -> Option<f64>);

const ROWS: [Row; 13] = [
    ("DCGM_FI_DEV_SM_CLOCK", ForeignKind::Gauge, "SM clock frequency (in MHz).", |gpu| {
        gpu.sm_clock.map(f64::from)
    }),
    ("DCGM_FI_DEV_MEM_CLOCK", ForeignKind::Gauge, "Memory clock frequency (in MHz).", |gpu| {
        gpu.memory_clock.map(f64::from)
    }),
    ("DCGM_FI_DEV_MEMORY_TEMP", ForeignKind::Gauge, "Memory temperature (in C).", |gpu| {
        gpu.memory_temperature
    }),
    ("DCGM_FI_DEV_GPU_TEMP", ForeignKind::Gauge, "GPU temperature (in C).", |gpu| {
        gpu.temperature.map(f64::from)
    }),
    ("DCGM_FI_DEV_POWER_USAGE", ForeignKind::Gauge, "Power draw (in W).", |gpu| {
        gpu.power_mw.map(|milliwatts| f64::from(milliwatts) / 1e3)
    }),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        ForeignKind::Counter,
        "Total energy consumption since boot (in mJ).",
        |gpu| gpu.energy_mj.map(|energy| energy as f64),
    ),
    (
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        ForeignKind::Counter,
        "Total number of PCIe retries.",
        |gpu| gpu.pcie_replays.map(f64::from),
    ),
    ("DCGM_FI_DEV_GPU_UTIL", ForeignKind::Gauge, "GPU utilization (in %).", |gpu| {
        gpu.utilization.map(|utilization| utilization.gpu.into())
    }),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", ForeignKind::Gauge, "Memory utilization (in %).", |gpu| {
        gpu.utilization.map(|utilization| utilization.memory.into())
    }),
    (
        "DCGM_FI_DEV_XID_ERRORS",
        ForeignKind::Gauge,
        "Value of the last XID error encountered.",
        |gpu| gpu.last_xid.map(|xid| xid as f64),
    ),
    (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        ForeignKind::Gauge,
        "Current clock throttle reasons (bitmask).",
        |gpu| gpu.clock_reasons.map(|reasons| reasons as f64),
    ),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        ForeignKind::Counter,
        "Total number of single-bit volatile ECC errors.",
        |gpu| gpu.ecc_corrected.map(|errors| errors as f64),
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        ForeignKind::Counter,
        "Total number of double-bit volatile ECC errors.",
        |gpu| gpu.ecc_uncorrected.map(|errors| errors as f64),
    ),
];

/// A metric of memory: on a GPU with MIG instances it is per instance, as in DCGM.
type MemoryRow = (&'static str, &'static str, fn(Memory) -> u64);

const MEMORY_ROWS: [MemoryRow; 3] = [
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", |memory| memory.free),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", |memory| memory.used),
    ("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", |memory| memory.reserved),
];

/// The name of this host, as the `Hostname` label has it.
pub(super) fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The families of all GPUs.
pub(super) fn of(gpus: &[Gpu], driver: &str, host: &str) -> Vec<ForeignFamily> {
    let labels = |gpu, part| labels(gpu, part, driver, host);
    let per_gpu = ROWS.iter().map(|&(name, kind, help, value)| {
        let sample = |gpu| Some(ForeignSample { labels: labels(gpu, None), value: value(gpu)? });
        family(name, kind, help, gpus.iter().filter_map(sample).collect())
    });
    let of_memory = MEMORY_ROWS.iter().map(|&(name, help, bytes)| {
        let sample = |gpu, part, memory: Option<Memory>| {
            let value = (bytes(memory?) / BYTES_PER_MIB) as f64;
            Some(ForeignSample { labels: labels(gpu, part), value })
        };
        let samples = gpus.iter().flat_map(|gpu| -> Vec<ForeignSample> {
            if gpu.instances.is_empty() {
                return sample(gpu, None, gpu.memory).into_iter().collect();
            }
            let parts = gpu.instances.iter();
            parts.filter_map(|part| sample(gpu, Some(part), part.memory)).collect()
        });
        family(name, ForeignKind::Gauge, help, samples.collect())
    });
    per_gpu.chain(of_memory).filter(|family| !family.samples.is_empty()).collect()
}

fn family(name: &str, kind: ForeignKind, help: &str, samples: Vec<ForeignSample>) -> ForeignFamily {
    ForeignFamily { name: name.into(), help: help.into(), kind, samples }
}

fn labels(gpu: &Gpu, part: Option<&Instance>, driver: &str, host: &str) -> Labels {
    let identity = &gpu.identity;
    let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::with_capacity(9);
    let mut add = |key: &str, value: &str| labels.push((key.into(), value.into()));
    add("gpu", &identity.index.to_string());
    add("UUID", &identity.uuid);
    add("pci_bus_id", &identity.pci_bus_id);
    add("device", &format!("nvidia{}", identity.index));
    add("modelName", &identity.name);
    if let Some(part) = part {
        add("GPU_I_PROFILE", &part.profile);
        // Instances without a number would share a series.
        add("GPU_I_ID", &part.id.map_or_else(|| part.uuid.clone(), |id| id.to_string()));
    }
    add("Hostname", host);
    add("DCGM_FI_DRIVER_VERSION", driver);
    labels.into()
}
