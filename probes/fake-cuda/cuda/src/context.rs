//! Synchronisation, events, graphs, contexts and modules.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::Function;
use gpucause_fake_cuda::types::{Out, Ptr, Text};

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;

/// Gives a new context, module, function or graph.
fn handle(function: &Function, out: Out<usize>) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5600_0000_0040);
    match function.plain() {
        0 => {
            out.give(NEXT.fetch_add(0x40, Ordering::Relaxed));
            0
        }
        code => code,
    }
}

fn number(function: &Function, out: Out<c_int>, value: c_int) -> c_int {
    match function.plain() {
        0 => {
            out.give(value);
            0
        }
        code => code,
    }
}

exports! {
    [cuStreamSynchronize cuStreamSynchronize_ptsz cuCtxSynchronize cuEventSynchronize
     cuEventRecord cuEventRecord_ptsz cuEventRecordWithFlags cuEventRecordWithFlags_ptsz
     cuEventQuery cuStreamQuery cuStreamQuery_ptsz cuStreamWaitEvent cuStreamWaitEvent_ptsz
     cuGraphLaunch cuGraphLaunch_ptsz cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphExecDestroy
     cuGraphUpload cuGraphUpload_ptsz cuStreamBeginCapture cuStreamBeginCapture_v2
     cuStreamBeginCapture_v2_ptsz cuInit cuCtxDestroy cuCtxDestroy_v2 cuDevicePrimaryCtxRelease
     cuDevicePrimaryCtxRelease_v2 cuModuleUnload cuLibraryUnload cuEventDestroy_v2
     cuStreamDestroy_v2 cuGraphDestroy cuLaunchKernel cuLaunchKernel_ptsz cuLaunchCooperativeKernel
     cuLaunchCooperativeKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunch cuLaunchGrid
     cuLaunchGridAsync cuLaunchCooperativeKernelMultiDevice cuLaunchHostFunc cuLaunchHostFunc_ptsz
     cuStreamAddCallback cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph
     cuStreamBeginCaptureToCig cuStreamEndCaptureToCig]
        () |function| function.plain();
    [cuGraphInstantiate cuGraphInstantiate_v2 cuGraphInstantiateWithFlags cuGraphInstantiateWithParams
     cuGraphInstantiateWithParams_ptsz cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4
     cuDevicePrimaryCtxRetain cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary
     cuLibraryLoadData cuLibraryLoadFromFile cuStreamCreate cuEventCreate cuGraphCreate
     cuStreamCreateWithPriority cuGreenCtxCreate cuGreenCtxStreamCreate
     cuCtxFromGreenCtx cuMulticastCreate]
        (out: Out<usize>, _input: Ptr)
        |function| handle(function, out);
    [cuStreamEndCapture cuStreamEndCapture_ptsz] (_stream: Ptr, out: Out<usize>)
        |function| handle(function, out);
    [cuModuleGetFunction cuLibraryGetKernel] (out: Out<usize>, _module: Ptr, name: Text)
        |function| if name.read().is_some() { handle(function, out) } else { NOT_FOUND };
    [cuKernelGetFunction] (out: Out<usize>, _kernel: Ptr) |function| handle(function, out);
    [cuDeviceGetCount] (out: Out<c_int>) |function| number(function, out, 1);
    [cuDeviceGet] (out: Out<c_int>, ordinal: c_int) |function| number(function, out, ordinal);
    [cuDriverGetVersion] (out: Out<c_int>) |function| number(function, out, 12_090);
}
