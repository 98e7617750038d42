//! The queries, as a program makes them.

use std::ptr;

use super::*;

#[test]
fn a_program_reads_a_gpu_between_init_and_shutdown() {
    let mut count = 0;
    assert_eq!(nvmlDeviceGetCount_v2(Out::from(&mut count)), UNINITIALIZED);
    assert_eq!(nvmlInit_v2(), SUCCESS);
    assert_eq!(nvmlDeviceGetCount_v2(Out::from(&mut count)), SUCCESS);
    assert_eq!(count, 1);

    let mut device = 0;
    assert_eq!(nvmlDeviceGetHandleByIndex_v2(1, Out::from(&mut device)), INVALID_ARGUMENT);
    assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, Out::from(&mut device)), SUCCESS);

    let mut uuid = [0 as c_char; 96];
    assert_eq!(nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), 8), INSUFFICIENT_SIZE);
    assert_eq!(nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), 96), SUCCESS);
    // SAFETY: the call above filled and terminated the buffer.
    let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) };
    assert_eq!(uuid, c"GPU-00000000-0000-4000-8000-000000000000");

    let mut memory = Memory { total: 0, free: 0, used: 0 };
    assert_eq!(nvmlDeviceGetMemoryInfo(device, Out::from(&mut memory)), SUCCESS);
    assert_eq!(memory.total, memory.free + memory.used);

    let mut running = 1;
    let code = nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut running, ptr::null_mut());
    assert_eq!((code, running), (SUCCESS, 0));
    assert_eq!(nvmlShutdown(), SUCCESS);
    assert_eq!(nvmlShutdown(), UNINITIALIZED);
}

#[test]
fn structures_have_nvidias_sizes() {
    assert_eq!(size_of::<Memory>(), 24);
    assert_eq!(size_of::<MemoryV2>(), 40);
    assert_eq!(size_of::<PciInfo>(), 68);
    assert_eq!(size_of::<ProcessInfo>(), 24);
    assert_eq!(size_of::<FieldValue>(), 40);
    assert_eq!(size_of::<events::EventData>(), 32);
}
