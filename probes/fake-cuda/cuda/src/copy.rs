//! Copies and fills. Nothing is moved: only the bytes count.

use gpucause_fake_cuda::exports;
use gpucause_fake_cuda::function::Call;
use gpucause_fake_cuda::types::{In, Ptr};

/// `CUDA_MEMCPY2D`, `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`: `N` words that do not matter here, then `D` lengths.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape<const N: usize, const D: usize> {
    ends: [usize; N],
    lengths: [usize; D],
}

fn transfer<const N: usize, const D: usize>(shape: In<Shape<N, D>>) -> Call {
    Call::transfer(shape.read().map_or(0, |shape| shape.lengths.iter().product()))
}

exports! {
    [cuMemcpy cuMemcpy_ptds cuMemcpyAsync cuMemcpyAsync_ptsz
     cuMemcpyHtoD cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds
     cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz
     cuMemcpyDtoH cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds
     cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz
     cuMemcpyDtoD cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds
     cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz]
        (_to: Ptr, _from: Ptr, bytes: usize, _stream: Ptr)
        |function| function.run(Call::transfer(bytes));
    [cuMemcpy2D cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2
     cuMemcpy2DUnaligned_v2_ptds cuMemcpy2DAsync cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz]
        (shape: In<Shape<14, 2>>, _stream: Ptr)
        |function| function.run(transfer(shape));
    [cuMemcpy3D cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpy3DAsync cuMemcpy3DAsync_v2
     cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy3DPeerAsync
     cuMemcpy3DPeerAsync_ptsz]
        (shape: In<Shape<22, 3>>, _stream: Ptr)
        |function| function.run(transfer(shape));
    [cuMemcpyPeer cuMemcpyPeer_ptds cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz]
        (_to: Ptr, _to_context: Ptr, _from: Ptr, _from_context: Ptr, bytes: usize, _stream: Ptr)
        |function| function.run(Call::transfer(bytes));
    [cuMemcpyAtoA] (_first: usize, _second: usize, _third: usize, _fourth: usize, bytes: usize)
        |function| function.run(Call::transfer(bytes));
    [cuMemcpyHtoA cuMemcpyHtoA_v2 cuMemcpyAtoH cuMemcpyAtoH_v2 cuMemcpyHtoAAsync cuMemcpyAtoHAsync
     cuMemcpyDtoA cuMemcpyAtoD]
        (_first: usize, _second: usize, _third: usize, bytes: usize)
        |function| function.run(Call::transfer(bytes));
    [cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz] (_to: Ptr, _from: Ptr, bytes: usize)
        |function| function.run(Call::transfer(bytes));
    [cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz] (shape: In<Shape<10, 3>>)
        |function| function.run(transfer(shape));
    [cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpy3DBatchAsync
     cuMemcpy3DBatchAsync_v2 cuMemPrefetchBatchAsync cuMemDiscardBatchAsync
     cuMemDiscardAndPrefetchBatchAsync cuMemBatchDecompressAsync cuFabricCpyBatchAsync]
        () |function| function.plain();
    [cuMemPrefetchAsync cuMemPrefetchAsync_ptsz cuMemPrefetchAsync_v2] (_address: Ptr, bytes: usize)
        |function| function.run(Call::transfer(bytes));
    [cuMemsetD8 cuMemsetD8_v2 cuMemsetD8Async cuMemsetD8Async_ptsz]
        (_address: Ptr, _value: u32, count: usize, _stream: Ptr)
        |function| function.run(Call::transfer(count));
    [cuMemsetD16 cuMemsetD16_v2 cuMemsetD16Async cuMemsetD16Async_ptsz]
        (_address: Ptr, _value: u32, count: usize, _stream: Ptr)
        |function| function.run(Call::transfer(count * 2));
    [cuMemsetD32 cuMemsetD32_v2 cuMemsetD32Async cuMemsetD32Async_ptsz]
        (_address: Ptr, _value: u32, count: usize, _stream: Ptr)
        |function| function.run(Call::transfer(count * 4));
    [cuMemsetD2D8 cuMemsetD2D8_v2 cuMemsetD2D8Async]
        (_address: Ptr, _pitch: usize, _value: u32, width: usize, height: usize, _stream: Ptr)
        |function| function.run(Call::transfer(width * height));
    [cuMemsetD2D16 cuMemsetD2D16_v2 cuMemsetD2D16Async]
        (_address: Ptr, _pitch: usize, _value: u32, width: usize, height: usize, _stream: Ptr)
        |function| function.run(Call::transfer(width * height * 2));
    [cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD2D32Async]
        (_address: Ptr, _pitch: usize, _value: u32, width: usize, height: usize, _stream: Ptr)
        |function| function.run(Call::transfer(width * height * 4));
}
