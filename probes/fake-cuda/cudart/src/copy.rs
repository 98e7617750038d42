//! Copies and fills. Nothing is moved: only the bytes count.

use std::ffi::c_int;

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::{Call, Function};
use gpucause_fake_cuda::types::{Extent, In, PitchedPtr, Ptr};

use crate::driver::{self, Entry};
use crate::error::finish;

/// `cudaMemcpy3DParms` and `cudaMemcpy3DPeerParms`: `N` words that do not matter here, then the size.
#[repr(C)]
#[derive(Clone, Copy)]
struct Box3<const N: usize> {
    ends: [usize; N],
    extent: Extent,
}

fn bytes_of<const N: usize>(parameters: In<Box3<N>>) -> usize {
    parameters.read().map_or(0, |parameters| parameters.extent.bytes())
}

#[inline(always)]
fn plain(function: &Function, bytes: usize) -> c_int {
    finish(function.run(Call::transfer(bytes)), || 0)
}

fn entry(kind: c_int, entries: [&'static Entry; 4]) -> &'static Entry {
    let [other, to_device, to_host, on_device] = entries;
    match kind {
        1 => to_device,
        2 => to_host,
        3 => on_device,
        _ => other,
    }
}

#[inline(always)]
fn copy(function: &Function, to: Ptr, from: Ptr, bytes: usize, kind: c_int) -> c_int {
    finish(function.run(Call::transfer(bytes)), || {
        use driver::{COPY, DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE};
        entry(kind, [&COPY, &HOST_TO_DEVICE, &DEVICE_TO_HOST, &DEVICE_TO_DEVICE]).call([
            to as usize,
            from as usize,
            bytes,
        ])
    })
}

#[inline(always)]
fn copy_async(
    function: &Function,
    (to, from): (Ptr, Ptr),
    bytes: usize,
    kind: c_int,
    stream: Ptr,
) -> c_int {
    finish(function.run(Call::transfer(bytes)), || {
        use driver::{
            COPY_ASYNC, DEVICE_TO_DEVICE_ASYNC, DEVICE_TO_HOST_ASYNC, HOST_TO_DEVICE_ASYNC,
        };
        let entries =
            [&COPY_ASYNC, &HOST_TO_DEVICE_ASYNC, &DEVICE_TO_HOST_ASYNC, &DEVICE_TO_DEVICE_ASYNC];
        entry(kind, entries).call([to as usize, from as usize, bytes, stream as usize])
    })
}

exports! {
    [cudaMemcpy cudaMemcpy_ptds] (to: Ptr, from: Ptr, bytes: usize, kind: c_int)
        |function| copy(function, to, from, bytes, kind);
    [cudaMemcpyAsync cudaMemcpyAsync_ptsz]
        (to: Ptr, from: Ptr, bytes: usize, kind: c_int, stream: Ptr)
        |function| copy_async(function, (to, from), bytes, kind, stream);
    [cudaMemcpy2D cudaMemcpy2D_ptds]
        (_to: Ptr, _to_pitch: usize, _from: Ptr, _from_pitch: usize, width: usize, height: usize, _kind: c_int)
        |function| plain(function, width * height);
    [cudaMemcpy2DAsync cudaMemcpy2DAsync_ptsz]
        (_to: Ptr, _to_pitch: usize, _from: Ptr, _from_pitch: usize, width: usize, height: usize, _kind: c_int,
         _stream: Ptr)
        |function| plain(function, width * height);
    [cudaMemcpy3D cudaMemcpy3D_ptds cudaMemcpy3DAsync cudaMemcpy3DAsync_ptsz]
        (parameters: In<Box3<16>>, _stream: Ptr)
        |function| plain(function, bytes_of(parameters));
    [cudaMemcpy3DPeer cudaMemcpy3DPeer_ptds cudaMemcpy3DPeerAsync cudaMemcpy3DPeerAsync_ptsz]
        (parameters: In<Box3<18>>, _stream: Ptr)
        |function| plain(function, bytes_of(parameters));
    [cudaMemcpyPeer cudaMemcpyPeerAsync]
        (_to: Ptr, _to_device: c_int, _from: Ptr, _from_device: c_int, bytes: usize, _stream: Ptr)
        |function| plain(function, bytes);
    [cudaMemcpyToSymbol cudaMemcpyToSymbol_ptds cudaMemcpyToSymbolAsync cudaMemcpyToSymbolAsync_ptsz
     cudaMemcpyFromSymbol cudaMemcpyFromSymbol_ptds cudaMemcpyFromSymbolAsync cudaMemcpyFromSymbolAsync_ptsz]
        (_to: Ptr, _from: Ptr, bytes: usize, _offset: usize, _kind: c_int, _stream: Ptr)
        |function| plain(function, bytes);
    [cudaMemcpyToArray cudaMemcpyToArray_ptds cudaMemcpyFromArray cudaMemcpyFromArray_ptds
     cudaMemcpyToArrayAsync cudaMemcpyFromArrayAsync]
        (_first: Ptr, _second: usize, _third: usize, _fourth: usize, bytes: usize, _kind: c_int)
        |function| plain(function, bytes);
    [cudaMemcpyArrayToArray]
        (_first: Ptr, _second: usize, _third: usize, _fourth: usize, _fifth: usize, _sixth: usize, bytes: usize,
         _kind: c_int)
        |function| plain(function, bytes);
    [cudaMemcpy2DArrayToArray]
        (_first: Ptr, _second: usize, _third: usize, _fourth: usize, _fifth: usize, _sixth: usize, width: usize,
         height: usize, _kind: c_int)
        |function| plain(function, width * height);
    [cudaMemcpy2DToArray cudaMemcpy2DToArray_ptds cudaMemcpy2DFromArray cudaMemcpy2DFromArray_ptds
     cudaMemcpy2DToArrayAsync cudaMemcpy2DFromArrayAsync]
        (_first: Ptr, _second: usize, _third: usize, _fourth: usize, _fifth: usize, width: usize, height: usize,
         _kind: c_int)
        |function| plain(function, width * height);
    [cudaMemcpyWithAttributesAsync cudaMemcpyWithAttributesAsync_ptsz] (_to: Ptr, _from: Ptr, bytes: usize)
        |function| plain(function, bytes);
    [cudaMemcpy3DWithAttributesAsync cudaMemcpy3DWithAttributesAsync_ptsz] (copy: In<Box3<10>>)
        |function| plain(function, bytes_of(copy));
    [cudaMemcpyBatchAsync cudaMemcpyBatchAsync_ptsz cudaMemcpy3DBatchAsync cudaMemcpy3DBatchAsync_ptsz
     cudaMemPrefetchBatchAsync cudaMemDiscardBatchAsync cudaMemDiscardAndPrefetchBatchAsync]
        () |function| plain(function, 0);
    [cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz cudaMemPrefetchAsync_v2 cudaMemPrefetchAsync_v2_ptsz]
        (_address: Ptr, bytes: usize)
        |function| plain(function, bytes);
    [cudaMemset cudaMemset_ptds] (address: Ptr, value: c_int, bytes: usize)
        |function| finish(function.run(Call::transfer(bytes)), || {
            driver::SET_BYTES.call([address as usize, value.cast_unsigned() as usize, bytes])
        });
    [cudaMemsetAsync cudaMemsetAsync_ptsz] (address: Ptr, value: c_int, bytes: usize, stream: Ptr)
        |function| finish(function.run(Call::transfer(bytes)), || {
            let value = value.cast_unsigned() as usize;
            driver::SET_BYTES_ASYNC.call([address as usize, value, bytes, stream as usize])
        });
    [cudaMemset2D cudaMemset2D_ptds cudaMemset2DAsync cudaMemset2DAsync_ptsz]
        (_address: Ptr, _pitch: usize, _value: c_int, width: usize, height: usize, _stream: Ptr)
        |function| plain(function, width * height);
    [cudaMemset3D cudaMemset3D_ptds cudaMemset3DAsync cudaMemset3DAsync_ptsz]
        (_address: PitchedPtr, _value: c_int, extent: Extent, _stream: Ptr)
        |function| plain(function, extent.bytes());
}
