//! Device memory that is only accounted, and host memory that is real.

use std::ffi::c_int;
use std::ptr;

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::{Call, Function};
use gpucause_fake_cuda::memory::{Heap, host_memory};
use gpucause_fake_cuda::types::{Extent, In, Out, PitchedPtr, Ptr};

use crate::driver::{self, Entry};
use crate::error::{INVALID_VALUE, MEMORY_ALLOCATION, finish};

static HEAP: Heap = Heap::new(0x0003_0200_0000);

/// Rows are padded to a multiple of so many bytes.
const PITCH: usize = 512;

/// `cudaChannelFormatDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Format {
    bits: [c_int; 4],
    kind: c_int,
}

/// Takes memory, from the driver if there is one.
fn take(bytes: usize, from: &Entry, stream: Ptr) -> Result<usize, c_int> {
    if !from.is_there() {
        return HEAP.allocate(bytes as u64).ok_or(MEMORY_ALLOCATION);
    }
    let mut address = 0usize;
    match from.call([(&raw mut address) as usize, bytes, stream as usize]) {
        0 if HEAP.adopt(address, bytes as u64) => Ok(address),
        0 => Err(MEMORY_ALLOCATION),
        code => Err(code),
    }
}

fn allocate(
    function: &Function,
    bytes: usize,
    (from, stream): (&Entry, Ptr),
    give: impl FnOnce(usize),
) -> c_int {
    finish(function.run(Call::transfer(bytes)), || match take(bytes, from, stream) {
        Ok(address) => {
            give(address);
            0
        }
        Err(code) => code,
    })
}

fn release(function: &Function, address: usize, to: &Entry, stream: Ptr) -> c_int {
    finish(function.plain(), || match address {
        0 => 0,
        _ if HEAP.release(address).is_none() => INVALID_VALUE,
        _ => to.call([address, stream as usize]),
    })
}

fn allocate_host(function: &Function, out: Out<usize>, bytes: usize) -> c_int {
    finish(function.run(Call::transfer(bytes)), || {
        host_memory(bytes, out).map_or(MEMORY_ALLOCATION, |()| 0)
    })
}

fn array_bytes(format: In<Format>, width: usize, height: usize) -> usize {
    let bits: usize =
        format.read().map_or(8, |f| f.bits.iter().map(|&b| usize::try_from(b).unwrap_or(0)).sum());
    bits * width * height.max(1) / 8
}

const NO_STREAM: Ptr = ptr::null();

exports! {
    [cudaMalloc] (out: Out<usize>, bytes: usize)
        |function| allocate(function, bytes, (&driver::ALLOCATE, NO_STREAM), |at| out.give(at));
    [cudaMallocManaged] (out: Out<usize>, bytes: usize, _flags: u32)
        |function| allocate(function, bytes, (&driver::ALLOCATE, NO_STREAM), |at| out.give(at));
    [cudaMallocAsync cudaMallocAsync_ptsz] (out: Out<usize>, bytes: usize, stream: Ptr)
        |function| allocate(function, bytes, (&driver::ALLOCATE_ASYNC, stream), |at| out.give(at));
    [cudaMallocFromPoolAsync cudaMallocFromPoolAsync_ptsz]
        (out: Out<usize>, bytes: usize, _pool: Ptr, stream: Ptr)
        |function| allocate(function, bytes, (&driver::ALLOCATE_ASYNC, stream), |at| out.give(at));
    [cudaMallocPitch] (out: Out<usize>, pitch_out: Out<usize>, width: usize, height: usize)
        |function| {
            let pitch = width.next_multiple_of(PITCH);
            allocate(function, pitch * height, (&driver::ALLOCATE, NO_STREAM), |at| {
                pitch_out.give(pitch);
                out.give(at);
            })
        };
    [cudaMalloc3D] (out: Out<PitchedPtr>, extent: Extent)
        |function| {
            let pitch = extent.width.next_multiple_of(PITCH);
            let bytes = pitch * extent.height * extent.depth;
            allocate(function, bytes, (&driver::ALLOCATE, NO_STREAM), |ptr| {
                out.give(PitchedPtr { ptr, pitch, xsize: extent.width, ysize: extent.height });
            })
        };
    [cudaMallocArray] (out: Out<usize>, format: In<Format>, width: usize, height: usize, _flags: u32)
        |function| {
            let bytes = array_bytes(format, width, height);
            allocate(function, bytes, (&driver::ALLOCATE, NO_STREAM), |at| out.give(at))
        };
    [cudaMalloc3DArray] (out: Out<usize>, format: In<Format>, extent: Extent, _flags: u32)
        |function| {
            let bytes = array_bytes(format, extent.width, extent.height) * extent.depth.max(1);
            allocate(function, bytes, (&driver::ALLOCATE, NO_STREAM), |at| out.give(at))
        };
    [cudaDeviceReset] () |function| finish(function.plain(), || {
        HEAP.reset();
        0
    });
    [cudaMallocHost] (out: Out<usize>, bytes: usize) |function| allocate_host(function, out, bytes);
    [cudaHostAlloc] (out: Out<usize>, bytes: usize, _flags: u32)
        |function| allocate_host(function, out, bytes);
    [cudaHostRegister] (_address: Ptr, bytes: usize, _flags: u32)
        |function| finish(function.run(Call::transfer(bytes)), || 0);
    [cudaFree cudaFreeArray] (address: usize)
        |function| release(function, address, &driver::FREE, NO_STREAM);
    [cudaFreeAsync cudaFreeAsync_ptsz] (address: usize, stream: Ptr)
        |function| release(function, address, &driver::FREE_ASYNC, stream);
    [cudaFreeHost] (address: *mut libc::c_void)
        |function| finish(function.plain(), || {
            // SAFETY: the caller passes null or memory from `cudaMallocHost` or `cudaHostAlloc`.
            unsafe { libc::free(address) };
            0
        });
    [cudaHostUnregister] (_address: Ptr) |function| finish(function.plain(), || 0);
}
