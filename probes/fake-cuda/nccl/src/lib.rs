//! A stand-in for `libnccl.so.2`: the traced functions of NCCL with NVIDIA's names and arguments, doing what the script
//! says. Grammar and control functions: `gpucause_fake_cuda`. `pncclX` is at the address of `ncclX` (`build.rs`).
#![allow(unsafe_code, reason = "the library speaks C")]

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpucause_fake_cuda::function::{Call, Function};
use gpucause_fake_cuda::memory::Heap;
use gpucause_fake_cuda::types::{Out, Ptr};
use gpucause_fake_cuda::{Api, Library, exports};

static LIBRARY: Library =
    Library { name: "libnccl.so.2", api: Api::Nccl, functions: &[FUNCTIONS], nest: None };

gpucause_fake_cuda::control!(LIBRARY);

/// `ncclUniqueId`: passed by value on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    bytes: [u8; 128],
}

static HEAP: Heap = Heap::new(0x7f00_0400_0000);

/// `ncclUnhandledCudaError`.
const UNHANDLED_CUDA_ERROR: c_int = 1;
/// `ncclInvalidArgument`.
const INVALID_ARGUMENT: c_int = 4;

/// Rank and size of each communicator by its handle.
static COMMUNICATORS: Mutex<Vec<(usize, c_int, c_int)>> = Mutex::new(Vec::new());

fn communicator(function: &Function, out: Out<usize>, rank: c_int, size: c_int) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5700_0000_0040);
    match function.plain() {
        0 => {
            let handle = NEXT.fetch_add(0x40, Ordering::Relaxed);
            if let Ok(mut all) = COMMUNICATORS.lock() {
                all.push((handle, rank, size));
            }
            out.give(handle);
            0
        }
        code => code,
    }
}

fn of_communicator(
    function: &Function,
    handle: usize,
    out: Out<c_int>,
    choose: fn(&(usize, c_int, c_int)) -> c_int,
) -> c_int {
    let found = COMMUNICATORS
        .lock()
        .ok()
        .and_then(|all| all.iter().find(|row| row.0 == handle).map(choose));
    match (function.plain(), found) {
        (0, Some(value)) => {
            out.give(value);
            0
        }
        (0, None) => INVALID_ARGUMENT,
        (code, _) => code,
    }
}

/// Bytes of `count` elements of an `ncclDataType_t`.
const fn transfer(count: usize, data_type: c_int) -> Call {
    let element = match data_type {
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => 1,
    };
    Call::transfer(count.wrapping_mul(element))
}

exports! {
    [ncclAllReduce ncclReduceScatter ncclAllReduceConfig ncclReduceScatterConfig]
        (_from: Ptr, _to: Ptr, count: usize, data_type: c_int, _operation: c_int, _comm: usize, _stream: Ptr)
        |function| function.run(transfer(count, data_type));
    [ncclReduce ncclReduceConfig]
        (_from: Ptr, _to: Ptr, count: usize, data_type: c_int, _operation: c_int, _root: c_int, _comm: usize,
         _stream: Ptr)
        |function| function.run(transfer(count, data_type));
    [ncclBroadcast ncclGather ncclScatter ncclBroadcastConfig ncclGatherConfig ncclScatterConfig]
        (_from: Ptr, _to: Ptr, count: usize, data_type: c_int, _root: c_int, _comm: usize, _stream: Ptr)
        |function| function.run(transfer(count, data_type));
    [ncclAllGather ncclAlltoAll ncclAllGatherConfig ncclAlltoAllConfig]
        (_from: Ptr, _to: Ptr, count: usize, data_type: c_int, _comm: usize, _stream: Ptr)
        |function| function.run(transfer(count, data_type));
    [ncclBcast ncclSend ncclRecv ncclPutSignal]
        (_buffer: Ptr, count: usize, data_type: c_int, _peer: c_int, _comm: usize, _stream: Ptr)
        |function| function.run(transfer(count, data_type));
    [ncclGroupStart ncclGroupEnd ncclSignal ncclWaitSignal ncclCommFinalize ncclCommDestroy
     ncclCommAbort ncclCommShrink ncclCommRevoke ncclCommSuspend ncclCommResume ncclCommRegister
     ncclCommDeregister ncclCommWindowRegister ncclCommWindowDeregister ncclDevCommCreate
     ncclDevCommDestroy]
        () |function| function.plain();
    [ncclGetVersion] (out: Out<c_int>)
        |function| {
            out.give(22_707);
            function.plain()
        };
    [ncclGetUniqueId] (out: Out<UniqueId>)
        |function| {
            out.give(UniqueId { bytes: [0x47; 128] });
            function.plain()
        };
    [ncclCommInitRank] (out: Out<usize>, size: c_int, _id: UniqueId, rank: c_int)
        |function| communicator(function, out, rank, size);
    [ncclCommInitRankConfig] (out: Out<usize>, size: c_int, _id: UniqueId, rank: c_int, _config: Ptr)
        |function| communicator(function, out, rank, size);
    [ncclCommInitRankScalable]
        (out: Out<usize>, size: c_int, rank: c_int, _ids: c_int, _id: Ptr, _config: Ptr)
        |function| communicator(function, out, rank, size);
    [ncclCommGrow]
        (_comm: usize, size: c_int, _id: Ptr, rank: c_int, out: Out<usize>, _config: Ptr)
        |function| communicator(function, out, rank, size);
    [ncclMemAlloc] (out: Out<usize>, bytes: usize)
        |function| match function.run(Call::transfer(bytes)) {
            0 => HEAP.allocate(bytes as u64).map_or(UNHANDLED_CUDA_ERROR, |address| {
                out.give(address);
                0
            }),
            code => code,
        };
    [ncclMemFree] (address: usize)
        |function| match function.plain() {
            0 if HEAP.release(address).is_none() => INVALID_ARGUMENT,
            code => code,
        };
    [ncclCommInitAll] (out: Out<usize>, devices: c_int, _list: Ptr)
        |function| communicator(function, out, 0, devices);
    [ncclCommSplit] (_comm: usize, _color: c_int, key: c_int, out: Out<usize>, _config: Ptr)
        |function| communicator(function, out, key, 1);
    [ncclCommCount] (comm: usize, out: Out<c_int>)
        |function| of_communicator(function, comm, out, |row| row.2);
    [ncclCommUserRank] (comm: usize, out: Out<c_int>)
        |function| of_communicator(function, comm, out, |row| row.1);
}
