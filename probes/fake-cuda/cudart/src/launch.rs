//! Launches.

use std::ffi::c_int;

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::Function;
use gpucause_fake_cuda::types::{Dim3, In, Ptr};

use crate::driver;
use crate::error::finish;

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Ptr,
    attributes: Ptr,
    attribute_count: u32,
}

#[inline(always)]
fn launch(
    function: &Function,
    kernel: Ptr,
    shape: impl FnOnce() -> (Dim3, Dim3, usize, Ptr),
    arguments: Ptr,
) -> c_int {
    finish(function.plain(), || {
        if !driver::LAUNCH.is_there() {
            return 0;
        }
        let (grid, block, shared, stream) = shape();
        let at = |value: u32| value as usize;
        driver::LAUNCH.call([
            kernel as usize,
            at(grid.x),
            at(grid.y),
            at(grid.z),
            at(block.x),
            at(block.y),
            at(block.z),
            shared,
            stream as usize,
            arguments as usize,
        ])
    })
}

fn shape_of(config: In<Config>) -> (Dim3, Dim3, usize, Ptr) {
    let one = Dim3 { x: 1, y: 1, z: 1 };
    config.read().map_or((one, one, 0, std::ptr::null()), |config| {
        (config.grid, config.block, config.shared, config.stream)
    })
}

exports! {
    [cudaLaunchKernel cudaLaunchKernel_ptsz
     cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz]
        (kernel: Ptr, grid: Dim3, block: Dim3, arguments: Ptr, shared: usize, stream: Ptr)
        |function| launch(function, kernel, || (grid, block, shared, stream), arguments);
    [cudaLaunchKernelExC cudaLaunchKernelExC_ptsz] (config: In<Config>, kernel: Ptr, arguments: Ptr)
        |function| launch(function, kernel, || shape_of(config), arguments);
    [cudaLaunchCooperativeKernelMultiDevice] (_list: Ptr, _devices: u32, _flags: u32)
        |function| finish(function.plain(), || 0);
    [cudaLaunchHostFunc cudaLaunchHostFunc_ptsz cudaLaunchHostFunc_v2 cudaStreamAddCallback]
        (_stream: Ptr, _host: Ptr, _data: Ptr)
        |function| finish(function.plain(), || 0);
}
