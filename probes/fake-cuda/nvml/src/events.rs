//! Event sets: a GPU with a non-zero `xid` reports that error once to each set that registers for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpucause_fake_cuda::types::Out;

use super::values::values;
use super::{Device, INVALID_ARGUMENT, SUCCESS, TIMEOUT, about};

/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 8;

/// `nvmlEventData_t`.
#[repr(C)]
pub(crate) struct EventData {
    device: Device,
    event_type: u64,
    event_data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// Devices of each set with an unreported error; the handle of a set is its index plus one.
static SETS: Mutex<Vec<Vec<Device>>> = Mutex::new(Vec::new());

fn sets() -> MutexGuard<'static, Vec<Vec<Device>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_set(set: usize, act: impl FnOnce(&mut Vec<Device>) -> u32) -> u32 {
    let mut sets = sets();
    let found = set.checked_sub(1).and_then(|index| sets.get_mut(index));
    found.map_or(INVALID_ARGUMENT, act)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(out: Out<usize>) -> u32 {
    let mut sets = sets();
    sets.push(Vec::new());
    out.give(sets.len());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: usize) -> u32 {
    with_set(set, |pending| {
        pending.clear();
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(device: Device, types: u64, set: usize) -> u32 {
    let mut xid = 0;
    let code = about(device, |gpu| xid = values().large("xid", gpu));
    if code != SUCCESS || xid == 0 || types & XID == 0 {
        return code;
    }
    with_set(set, |pending| {
        pending.push(device);
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(set: usize, out: Out<EventData>, _timeout_ms: u32) -> u32 {
    with_set(set, |pending| {
        let Some(device) = pending.pop() else { return TIMEOUT };
        about(device, |gpu| {
            out.give(EventData {
                device,
                event_type: XID,
                event_data: values().large("xid", gpu),
                gpu_instance: u32::MAX,
                compute_instance: u32::MAX,
            });
        })
    })
}
