//! A stand-in for `libnvidia-ml.so.1`: the queries that an exporter makes, answered from `GPUCAUSE_FAKE_NVML` ([`values`]).
#![allow(unsafe_code, reason = "the library speaks C")]
#![allow(non_snake_case, reason = "the C names")]

mod events;
mod instances;
mod values;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};

use gpucause_fake_cuda::types::Out;

use instances::DeviceHandle;
use values::values;

const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const TIMEOUT: u32 = 10;
const GPU_IS_LOST: u32 = 15;

static USERS: AtomicUsize = AtomicUsize::new(0);

/// A GPU or an instance of one, encoded by [`DeviceHandle`]; null is none.
type Device = usize;

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy_bus_id: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
struct ProcessInfo {
    pid: u32,
    memory: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

fn about(device: Device, give: impl FnOnce(usize)) -> u32 {
    if USERS.load(Ordering::Relaxed) == 0 {
        return UNINITIALIZED;
    }
    values().wait_while_hanging();
    match DeviceHandle::of(device) {
        Some(DeviceHandle { gpu, .. }) if gpu < values().gpus() => {
            if values().number("lost", gpu) != 0 {
                return GPU_IS_LOST;
            }
            give(gpu);
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}

/// Does what `about` does, unless the GPU does not support `key`.
fn about_supported(device: Device, key: &str, give: impl FnOnce(usize)) -> u32 {
    match DeviceHandle::of(device) {
        Some(DeviceHandle { gpu, .. }) if !values().supports(key, gpu) => NOT_SUPPORTED,
        _ => about(device, give),
    }
}

fn give_number(device: Device, key: &str, out: Out<u32>) -> u32 {
    about_supported(device, key, |index| out.give(values().number(key, index)))
}

fn give_large(device: Device, key: &str, out: Out<u64>) -> u32 {
    about_supported(device, key, |index| out.give(values().large(key, index)))
}

fn text_to(out: *mut c_char, length: u32, text: &str) -> u32 {
    let length = length as usize;
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= length {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the C interface asks for a buffer of this length.
    let buffer = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), length) };
    for (to, from) in buffer.iter_mut().zip(text.bytes().chain([0])) {
        *to = from;
    }
    SUCCESS
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from;
    }
    bytes
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    USERS.fetch_add(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    let less = |users: usize| users.checked_sub(1);
    match USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
        Ok(_) => SUCCESS,
        Err(_) => UNINITIALIZED,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    const TEXTS: [&CStr; 8] = [
        c"Success",
        c"Uninitialized",
        c"Invalid Argument",
        c"Not Supported",
        c"Insufficient Permissions",
        c"Already Initialized",
        c"Not Found",
        c"Insufficient Size",
    ];
    TEXTS.get(code as usize).copied().unwrap_or(c"Unknown Error").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: u32) -> u32 {
    text_to(out, length, values().text("driver"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(out: Out<u32>) -> u32 {
    if USERS.load(Ordering::Relaxed) == 0 {
        return UNINITIALIZED;
    }
    out.give(u32::try_from(values().gpus()).unwrap_or(0));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<Device>) -> u32 {
    let device = DeviceHandle { gpu: index as usize, instance: None }.handle();
    // A lost GPU still has a handle.
    match about(device, |_| {}) {
        SUCCESS | GPU_IS_LOST => {
            out.give(device);
            SUCCESS
        }
        code => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Device, out: Out<u32>) -> u32 {
    about(device, |index| out.give(u32::try_from(index).unwrap_or(0)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, length: u32) -> u32 {
    let mut written = SUCCESS;
    let code = about(device, |index| {
        written = text_to(out, length, &instances::uuid(device, index));
    });
    code.max(written)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: Device, out: *mut c_char, length: u32) -> u32 {
    let mut written = SUCCESS;
    let code = about(device, |_| written = text_to(out, length, &instances::name(device)));
    code.max(written)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, out: Out<Utilization>) -> u32 {
    about_supported(device, "util", |index| {
        let of = |key| values().number(key, index);
        out.give(Utilization { gpu: of("util"), memory: of("mem_util") });
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, out: Out<Memory>) -> u32 {
    about(device, |index| {
        let of = |key| values().large(key, index);
        let (total, used) = (of("mem_total"), of("mem_used"));
        out.give(Memory { total, free: total.saturating_sub(used), used });
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: Out<MemoryV2>) -> u32 {
    about(device, |index| {
        let of = |key| values().large(key, index);
        let (total, reserved, used) = (of("mem_total"), of("mem_reserved"), of("mem_used"));
        let version = u32::try_from(size_of::<MemoryV2>()).unwrap_or(0) | 2 << 24;
        let free = total.saturating_sub(used + reserved);
        out.give(MemoryV2 { version, total, reserved, free, used });
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(device: Device, _sensor: u32, out: Out<u32>) -> u32 {
    give_number(device, "temperature", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: Device, out: Out<u32>) -> u32 {
    give_number(device, "power_mw", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(device: Device, clock: u32, out: Out<u32>) -> u32 {
    match clock {
        0 | 1 => give_number(device, "sm_clock", out),
        2 => give_number(device, "mem_clock", out),
        3 => give_number(device, "video_clock", out),
        _ => INVALID_ARGUMENT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: Device, out: Out<u64>) -> u32 {
    give_large(device, "energy_mj", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, out: Out<u64>) -> u32 {
    give_large(device, "throttle", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(device: Device, out: Out<u64>) -> u32 {
    give_large(device, "throttle", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, out: Out<PciInfo>) -> u32 {
    about(device, |index| {
        let bus = u32::try_from(index).unwrap_or(0) + 1;
        out.give(PciInfo {
            legacy_bus_id: padded(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus,
            device: 0,
            device_id: 0x2330_10de,
            subsystem_id: 0x16c1_10de,
            bus_id: padded(&format!("00000000:{bus:02X}:00.0")),
        });
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: Device, current: Out<u32>, pending: Out<u32>) -> u32 {
    about(device, |index| {
        let mode = values().number("mig", index);
        current.give(mode);
        pending.give(mode);
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut u32,
    out: *mut ProcessInfo,
) -> u32 {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let mut running = Vec::new();
    let code = about(device, |index| running = instances::processes(device, index));
    if code != SUCCESS {
        return code;
    }
    // SAFETY: the C interface asks for a readable count, and it is not null.
    let capacity = unsafe { count.read() } as usize;
    let found = u32::try_from(running.len()).unwrap_or(u32::MAX);
    // SAFETY: the same count is writable.
    unsafe { count.write(found) };
    if running.len() > capacity || (out.is_null() && !running.is_empty()) {
        return INSUFFICIENT_SIZE;
    }
    for (index, (pid, memory)) in running.into_iter().enumerate() {
        let gpu_instance = instances::id(device).unwrap_or(u32::MAX);
        let info = ProcessInfo { pid, memory, gpu_instance, compute_instance: u32::MAX };
        // SAFETY: the index is below the caller's capacity.
        let slot = unsafe { out.add(index) };
        // SAFETY: the slot is in the caller's array.
        unsafe { slot.write(info) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieReplayCounter(device: Device, out: Out<u32>) -> u32 {
    give_number(device, "replays", out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    kind: u32,
    _counter: u32,
    out: Out<u64>,
) -> u32 {
    give_large(device, if kind == 0 { "ecc_corrected" } else { "ecc_uncorrected" }, out)
}

/// `NVML_FI_DEV_MEMORY_TEMP`.
const MEMORY_TEMPERATURE: u32 = 82;

/// `nvmlFieldValue_t`, with a value of 4 of its 8 bytes.
#[repr(C)]
struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency_us: i64,
    value_type: u32,
    code: u32,
    value: [u32; 2],
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(device: Device, count: i32, out: *mut FieldValue) -> u32 {
    let count = usize::try_from(count).unwrap_or(0);
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the C interface asks for so many values to fill in.
    let fields = unsafe { std::slice::from_raw_parts_mut(out, count) };
    about(device, |index| {
        for field in fields {
            let known = field.field == MEMORY_TEMPERATURE && values().supports("mem_temp", index);
            field.code = if known { SUCCESS } else { NOT_SUPPORTED };
            // An unsigned int.
            field.value_type = 1;
            field.value = [values().number("mem_temp", index), 0];
        }
    })
}

#[cfg(test)]
mod tests;
