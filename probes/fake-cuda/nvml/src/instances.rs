//! The instances that a GPU with `mig=1` is split into.

use gpucause_fake_cuda::types::Out;

use super::values::values;
use super::{Device, INVALID_ARGUMENT, NOT_FOUND, SUCCESS, about};

/// The number of the first GPU instance: real ones do not begin at 0 either.
const FIRST_ID: u32 = 7;
const INSTANCE_SHIFT: u32 = 16;

/// A decoded device handle.
pub(crate) struct DeviceHandle {
    pub(crate) gpu: usize,
    pub(crate) instance: Option<usize>,
}

impl DeviceHandle {
    pub(crate) fn of(device: Device) -> Option<Self> {
        let gpu = (device & ((1 << INSTANCE_SHIFT) - 1)).checked_sub(1)?;
        Some(Self { gpu, instance: (device >> INSTANCE_SHIFT).checked_sub(1) })
    }

    /// The index of the GPU, and above it that of the instance, each plus one.
    pub(crate) fn handle(&self) -> Device {
        (self.gpu + 1) | self.instance.map_or(0, |instance| (instance + 1) << INSTANCE_SHIFT)
    }
}

fn instance_of(device: Device) -> Option<usize> {
    DeviceHandle::of(device)?.instance
}

fn count(gpu: usize) -> usize {
    if values().number("mig", gpu) == 1 { values().number("mig_devices", gpu) as usize } else { 0 }
}

pub(crate) fn uuid(device: Device, gpu: usize) -> String {
    match instance_of(device) {
        Some(instance) => format!("MIG-00000000-0000-4000-8000-{gpu:06}{instance:06}"),
        None => format!("GPU-00000000-0000-4000-8000-{gpu:012}"),
    }
}

pub(crate) fn name(device: Device) -> String {
    let suffix = if instance_of(device).is_some() { " MIG 1g.10gb" } else { "" };
    format!("{}{suffix}", values().text("name"))
}

pub(crate) fn id(device: Device) -> Option<u32> {
    u32::try_from(instance_of(device)?).ok().map(|instance| FIRST_ID + instance)
}

/// Returns the processes of the GPU, or of the instance: the processes are on the instances in turn.
pub(crate) fn processes(device: Device, gpu: usize) -> Vec<(u32, u64)> {
    let all = values().processes(gpu);
    match instance_of(device) {
        Some(instance) => all.into_iter().skip(instance).step_by(count(gpu).max(1)).collect(),
        None => all,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, out: Out<u32>) -> u32 {
    // The maximum of the GPU, not the current number.
    about(device, |_| out.give(7))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: u32,
    out: Out<Device>,
) -> u32 {
    let mut found = false;
    let code = about(device, |gpu| {
        found = (index as usize) < count(gpu);
        if found {
            out.give(DeviceHandle { gpu, instance: Some(index as usize) }.handle());
        }
    });
    if code == SUCCESS && !found { NOT_FOUND } else { code }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(device: Device, out: Out<u32>) -> u32 {
    match id(device) {
        Some(id) => about(device, |_| out.give(id)),
        None => INVALID_ARGUMENT,
    }
}
