//! Synchronisation, events, graphs and set-up.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::Function;
use gpucause_fake_cuda::types::{Out, Ptr};

use crate::driver;
use crate::error::finish;

/// Gives a new stream, event or graph.
fn handle(function: &Function, out: Out<usize>) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5500_0000_0040);
    finish(function.plain(), || {
        out.give(NEXT.fetch_add(0x40, Ordering::Relaxed));
        0
    })
}

fn number(function: &Function, out: Out<c_int>, value: c_int) -> c_int {
    finish(function.plain(), || {
        out.give(value);
        0
    })
}

exports! {
    [cudaStreamSynchronize cudaStreamSynchronize_ptsz] (stream: Ptr)
        |function| finish(function.plain(), || driver::WAIT_STREAM.call([stream as usize]));
    [cudaDeviceSynchronize cudaThreadSynchronize] ()
        |function| finish(function.plain(), || driver::WAIT_CONTEXT.call([]));
    [cudaEventSynchronize] (event: Ptr)
        |function| finish(function.plain(), || driver::WAIT_EVENT.call([event as usize]));
    [cudaEventRecord cudaEventRecord_ptsz] (event: Ptr, stream: Ptr)
        |function| finish(function.plain(), || {
            driver::RECORD_EVENT.call([event as usize, stream as usize])
        });
    [cudaEventRecordWithFlags cudaEventRecordWithFlags_ptsz] (event: Ptr, stream: Ptr, _flags: u32)
        |function| finish(function.plain(), || {
            driver::RECORD_EVENT.call([event as usize, stream as usize])
        });
    [cudaEventQuery] (event: Ptr)
        |function| finish(function.plain(), || driver::QUERY_EVENT.call([event as usize]));
    [cudaStreamQuery cudaStreamQuery_ptsz] (stream: Ptr)
        |function| finish(function.plain(), || driver::QUERY_STREAM.call([stream as usize]));
    [cudaStreamWaitEvent cudaStreamWaitEvent_ptsz] (_stream: Ptr, _event: Ptr, _flags: u32)
        |function| finish(function.plain(), || 0);
    [cudaGraphLaunch cudaGraphLaunch_ptsz] (graph: Ptr, stream: Ptr)
        |function| finish(function.plain(), || {
            driver::LAUNCH_GRAPH.call([graph as usize, stream as usize])
        });
    [cudaGraphInstantiate cudaGraphInstantiateWithFlags] (out: Out<usize>, _graph: Ptr, _flags: u64)
        |function| handle(function, out);
    [cudaGraphInstantiateWithParams cudaGraphInstantiateWithParams_ptsz]
        (out: Out<usize>, _graph: Ptr, _parameters: Ptr)
        |function| handle(function, out);
    [cudaStreamEndCapture cudaStreamEndCapture_ptsz] (_stream: Ptr, out: Out<usize>)
        |function| handle(function, out);
    [cudaGraphCreate cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority
     cudaEventCreate cudaEventCreateWithFlags cudaGreenCtxCreate
     cudaExecutionCtxStreamCreate cudaLibraryLoadData cudaLibraryLoadFromFile]
        (out: Out<usize>, _flags: u32, _priority: c_int)
        |function| handle(function, out);
    [cudaGraphExecUpdate cudaGraphExecDestroy cudaGraphDestroy cudaGraphUpload cudaGraphUpload_ptsz
     cudaStreamBeginCapture cudaStreamBeginCapture_ptsz cudaStreamBeginCaptureToGraph
     cudaStreamBeginRecaptureToGraph cudaStreamDestroy cudaEventDestroy
     cudaSetDevice cudaInitDevice cudaProfilerStart cudaProfilerStop]
        () |function| finish(function.plain(), || 0);
    [cudaLibraryGetKernel] (out: Out<usize>, _library: Ptr, _name: Ptr)
        |function| handle(function, out);
    [cudaGetKernel cudaGetFuncBySymbol] (out: Out<usize>, _host: Ptr)
        |function| handle(function, out);
    [cudaGetDeviceCount] (out: Out<c_int>) |function| number(function, out, 1);
    [cudaGetDevice] (out: Out<c_int>) |function| number(function, out, 0);
    [cudaRuntimeGetVersion cudaDriverGetVersion] (out: Out<c_int>)
        |function| number(function, out, 12_090);
}
