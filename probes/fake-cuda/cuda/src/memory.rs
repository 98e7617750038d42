//! Device memory that is only accounted, and host memory that is real.

use std::ffi::c_int;

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::{Call, Function};
use gpucause_fake_cuda::memory::{Heap, host_memory};
use gpucause_fake_cuda::types::{In, Out, Ptr};

static HEAP: Heap = Heap::new(0x7f00_0200_0000);

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// Rows are padded to a multiple of so many bytes.
const PITCH: usize = 512;

/// `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR`: `D` lengths, then the element.
#[repr(C)]
#[derive(Clone, Copy)]
struct Array<const D: usize> {
    lengths: [usize; D],
    format: u32,
    channels: u32,
}

impl<const D: usize> Array<D> {
    fn bytes(&self) -> usize {
        let element = match self.format {
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => 1,
        };
        let cells: usize = self.lengths.iter().map(|&length| length.max(1)).product();
        cells * element * self.channels.max(1) as usize
    }
}

fn allocate(function: &Function, out: Out<usize>, bytes: usize) -> c_int {
    match function.run(Call::transfer(bytes)) {
        0 => {}
        code => return code,
    }
    match HEAP.allocate(bytes as u64) {
        Some(address) => {
            out.give(address);
            0
        }
        None => OUT_OF_MEMORY,
    }
}

fn allocate_host(function: &Function, out: Out<usize>, bytes: usize) -> c_int {
    match function.run(Call::transfer(bytes)) {
        0 => {}
        code => return code,
    }
    host_memory(bytes, out).map_or(OUT_OF_MEMORY, |()| 0)
}

fn release(function: &Function, address: usize) -> c_int {
    match function.plain() {
        0 if address != 0 && HEAP.release(address).is_none() => INVALID_VALUE,
        code => code,
    }
}

exports! {
    [cuMemAlloc cuMemAlloc_v2 cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocManaged
     cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemCreate]
        (out: Out<usize>, bytes: usize, _third: Ptr, _fourth: Ptr)
        |function| allocate(function, out, bytes);
    [cuMemAllocPitch cuMemAllocPitch_v2]
        (out: Out<usize>, pitch_out: Out<usize>, width: usize, height: usize, _element: u32)
        |function| {
            let pitch = width.next_multiple_of(PITCH);
            pitch_out.give(pitch);
            allocate(function, out, pitch * height)
        };
    [cuArrayCreate cuArrayCreate_v2] (out: Out<usize>, array: In<Array<2>>)
        |function| allocate(function, out, array.read().map_or(0, |array| array.bytes()));
    [cuArray3DCreate cuArray3DCreate_v2] (out: Out<usize>, array: In<Array<3>>)
        |function| allocate(function, out, array.read().map_or(0, |array| array.bytes()));
    [cuMemAllocHost cuMemAllocHost_v2 cuMemHostAlloc] (out: Out<usize>, bytes: usize, _flags: u32)
        |function| allocate_host(function, out, bytes);
    [cuMemHostRegister cuMemHostRegister_v2] (_address: Ptr, bytes: usize, _flags: u32)
        |function| function.run(Call::transfer(bytes));
    [cuMemMap] (_address: Ptr, bytes: usize, _offset: usize, _handle: usize, _flags: u64)
        |function| function.run(Call::transfer(bytes));
    [cuMemFree cuMemFree_v2 cuMemFreeAsync cuMemFreeAsync_ptsz cuMemRelease cuArrayDestroy]
        (address: usize, _stream: Ptr)
        |function| release(function, address);
    [cuMemFreeHost] (address: *mut libc::c_void)
        |function| match function.plain() {
            0 => {
                // SAFETY: the caller passes null or memory from `cuMemAllocHost` or `cuMemHostAlloc`.
                unsafe { libc::free(address) };
                0
            }
            code => code,
        };
    [cuMemHostUnregister cuMemUnmap] () |function| function.plain();
}
