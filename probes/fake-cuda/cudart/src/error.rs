//! Error codes: the last one of each thread, and their names.

use std::cell::Cell;
use std::ffi::c_int;

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
