//! Error codes: the last one of each thread, and their names.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

/// `cudaErrorInvalidValue`.
pub(crate) const INVALID_VALUE: c_int = 1;
/// `cudaErrorMemoryAllocation`.
pub(crate) const MEMORY_ALLOCATION: c_int = 2;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

/// Ends a call: with the script's code if that is an error, else with what `rest` returns.
#[inline(always)]
pub(crate) fn finish(scripted: c_int, rest: impl FnOnce() -> c_int) -> c_int {
    let code = if scripted == 0 { rest() } else { scripted };
    if code != 0 {
        LAST.set(code);
    }
    code
}

gpucause_fake_cuda::exports! {
    [cudaGetLastError] () |function| match function.plain() {
        0 => LAST.replace(0),
        code => code,
    };
    [cudaPeekAtLastError] () |function| match function.plain() {
        0 => LAST.get(),
        code => code,
    };
}

/// Code, name and description of the errors that scripts use.
const ERRORS: [(c_int, &CStr, &CStr); 12] = [
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (
        35,
        c"cudaErrorInsufficientDriver",
        c"CUDA driver version is insufficient for CUDA runtime version",
    ),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

fn row(code: c_int) -> Option<&'static (c_int, &'static CStr, &'static CStr)> {
    ERRORS.iter().find(|(known, ..)| *known == code)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C name")]
extern "C-unwind" fn cudaGetErrorName(code: c_int) -> *const c_char {
    row(code).map_or(c"unrecognized error code", |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C name")]
extern "C-unwind" fn cudaGetErrorString(code: c_int) -> *const c_char {
    row(code).map_or(c"unrecognized error code", |(.., text)| text).as_ptr()
}
