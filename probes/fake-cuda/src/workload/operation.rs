//! One op as the workload calls it: its address, its arguments, and what a call of it means.

use std::ffi::c_int;

use anyhow::{Context as _, Result, bail};
use gpucause_abi::op::{Api, Class, OpId, op_of_symbol};
use gpucause_fake_cuda::types::{self, Slots};

use crate::cli::{Common, CopyKind};
use crate::libraries::Libraries;

/// Effect of a call on the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing but being counted.
    None,
    /// Launches the kernel function in this slot.
    Launch(usize),
    /// Copies in this direction.
    Copy(&'static str),
    /// Sends this many bytes into a collective.
    Communicate(u64),
    /// Takes memory; the address is stored through the first slot.
    Allocate(Pool, u64),
    /// Gives the memory in the first slot back.
    Free(Pool),
    /// Gives all device memory back.
    Reset,
    /// Stores a result through this slot.
    Give(usize),
}

/// Memory that is freed by the same functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    Device,
    Host,
}

/// A callable op.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The documented name.
    pub(crate) name: &'static str,
    /// Which library.
    pub(crate) api: Api,
    pub(crate) address: usize,
    pub(crate) slots: Slots,
    pub(crate) effect: Effect,
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
}

/// An address that nothing is behind, as device pointers are to the host.
const DEVICE: usize = 0x0002_0000_0000;

fn kind_name(kind: CopyKind) -> &'static str {
    match kind {
        CopyKind::H2h => "h2h",
        CopyKind::H2d => "h2d",
        CopyKind::D2h => "d2h",
        CopyKind::D2d => "d2d",
        CopyKind::Default => "default",
    }
}

fn slots<const N: usize>(given: [usize; N]) -> Slots {
    types::slots(&given)
}

/// A block of words that lives as long as the process, for structures passed by address.
fn block(words: &[usize]) -> usize {
    Box::leak(words.to_vec().into_boxed_slice()).as_ptr() as usize
}

fn block_of(length: usize, set: &[(usize, usize)]) -> usize {
    let mut words = vec![0; length];
    for &(index, value) in set {
        if let Some(word) = words.get_mut(index) {
            *word = value;
        }
    }
    block(&words)
}

/// One by one by one blocks of 256 threads, as `dim3` pairs in registers.
const GRID: [usize; 4] = [1 | 1 << 32, 1, 256 | 1 << 32, 1];

fn launch(name: &str) -> Option<(Slots, Effect)> {
    let arguments = || block(&[0; 8]);
    let [grid_xy, grid_z, block_xy, block_z] = GRID;
    Some(match name {
        "cudaLaunchKernel" | "cudaLaunchCooperativeKernel" => {
            (slots([0, grid_xy, grid_z, block_xy, block_z, arguments()]), Effect::Launch(0))
        }
        "cudaLaunchKernelExC" | "cuLaunchKernelEx" => {
            // grid.x, grid.y | grid.z, block.x | block.y, block.z | shared | stream | attributes
            let config = block(&[1 | 1 << 32, 1 | 256 << 32, 1 | 1 << 32, 0, 0, 0, 0]);
            (slots([config, 0, arguments()]), Effect::Launch(1))
        }
        "cuLaunchKernel" | "cuLaunchCooperativeKernel" => {
            (slots([0, 1, 1, 1, 256, 1, 1, 0, 0, arguments(), 0]), Effect::Launch(0))
        }
        "cuLaunch" | "cuLaunchGrid" | "cuLaunchGridAsync" => {
            (slots([0, 1, 1, 0]), Effect::Launch(0))
        }
        _ => return None,
    })
}

/// Width, height and depth of this many bytes as a box: one that is more than a row where the number allows it.
fn box_of(bytes: usize) -> [usize; 3] {
    let rows = if bytes.is_multiple_of(2) { 2 } else { 1 };
    let layers = if bytes.is_multiple_of(6) { 3 } else { 1 };
    [bytes / rows / layers, rows, layers]
}

/// Copies: the arguments and the direction.
fn copy(name: &str, common: &Common) -> Option<(Slots, Effect)> {
    let bytes = common.copy_bytes;
    let host = block(&[0; 8]);
    let chosen = kind_name(common.copy_kind);
    let kind = common.copy_kind as usize;
    let [width, height, depth] = box_of(bytes);
    let (row, rows) = (width * depth, height);
    let (from, to) = memory_types(common.copy_kind);
    let stem = name.trim_end_matches("Async");
    let (slots, direction) = match stem {
        "cudaMemcpy" => (slots([DEVICE, host, bytes, kind]), chosen),
        "cudaMemcpy2D" => (slots([DEVICE, row, host, row, row, rows, kind]), chosen),
        "cudaMemcpy3D" => {
            let fields = [(16, width), (17, height), (18, depth), (19, kind)];
            (slots([block_of(20, &fields)]), chosen)
        }
        "cudaMemcpy3DPeer" => {
            (slots([block_of(21, &[(18, width), (19, height), (20, depth)])]), "p2p")
        }
        "cudaMemcpyPeer" | "cuMemcpyPeer" => (slots([DEVICE, 0, DEVICE, 1, bytes]), "p2p"),
        "cudaMemcpyToSymbol" | "cudaMemcpyFromSymbol" => {
            (slots([DEVICE, host, bytes, 0, kind]), chosen)
        }
        "cudaMemcpyToArray" | "cudaMemcpyFromArray" => {
            (slots([DEVICE, 0, 0, host, bytes, kind]), chosen)
        }
        "cudaMemcpyArrayToArray" => (slots([DEVICE, 0, 0, DEVICE, 0, 0, bytes, kind]), chosen),
        "cudaMemcpy2DArrayToArray" => {
            (slots([DEVICE, 0, 0, DEVICE, 0, 0, row, rows, kind]), chosen)
        }
        "cudaMemcpy2DToArray" | "cudaMemcpy2DFromArray" => {
            (slots([DEVICE, 0, 0, host, row, row, rows, kind]), chosen)
        }
        "cudaMemcpyWithAttributes" | "cuMemcpyWithAttributes" => {
            (slots([DEVICE, host, bytes]), "default")
        }
        "cudaMemcpy3DWithAttributes" | "cuMemcpy3DWithAttributes" => {
            (slots([boxes([[width, height, depth]])]), "default")
        }
        "cudaMemcpyBatch" | "cuMemcpyBatch" => {
            let sizes = vec![bytes / BATCH; BATCH - 1];
            let rest = bytes - sizes.iter().sum::<usize>();
            let sizes = block(&[sizes, vec![rest]].concat());
            (slots([DEVICE, DEVICE, sizes, BATCH]), "default")
        }
        "cudaMemcpy3DBatch" | "cuMemcpy3DBatch" => {
            let parts = [[width, height, 1], [width, height, depth - 1]];
            (slots([2, boxes(parts)]), "default")
        }
        "cuMemcpyHtoD" => (slots([DEVICE, host, bytes]), "h2d"),
        "cuMemcpyDtoH" => (slots([host, DEVICE, bytes]), "d2h"),
        "cuMemcpyDtoD" => (slots([DEVICE, DEVICE, bytes]), "d2d"),
        "cuMemcpy" => (slots([DEVICE, host, bytes]), "default"),
        "cuMemcpy2D" | "cuMemcpy2DUnaligned" => {
            (slots([block_of(16, &[(2, from), (9, to), (14, row), (15, rows)])]), chosen)
        }
        "cuMemcpy3D" => {
            let fields = [(4, from), (15, to), (22, width), (23, height), (24, depth)];
            (slots([block_of(25, &fields)]), chosen)
        }
        "cuMemcpy3DPeer" => {
            (slots([block_of(25, &[(22, width), (23, height), (24, depth)])]), "p2p")
        }
        "cuMemcpyDtoA" | "cuMemcpyAtoD" => (slots([DEVICE, 0, DEVICE, bytes]), "d2d"),
        "cuMemcpyAtoA" => (slots([DEVICE, 0, DEVICE, 0, bytes]), "d2d"),
        "cuMemcpyHtoA" => (slots([DEVICE, 0, host, bytes]), "h2d"),
        "cuMemcpyAtoH" => (slots([host, DEVICE, 0, bytes]), "d2h"),
        _ => return None,
    };
    Some((slots, Effect::Copy(direction)))
}

/// Copies of one call.
const BATCH: usize = 3;

/// `cudaMemcpy3DBatchOp` for each extent.
fn boxes<const N: usize>(extents: [[usize; 3]; N]) -> usize {
    let words = |[width, height, depth]: [usize; 3]| {
        let mut words = [0; 14];
        words[10..13].copy_from_slice(&[width, height, depth]);
        words
    };
    block(extents.map(words).as_flattened())
}

/// `CUmemorytype` of source and destination.
fn memory_types(kind: CopyKind) -> (usize, usize) {
    match kind {
        CopyKind::H2h => (1, 1),
        CopyKind::H2d => (1, 2),
        CopyKind::D2h => (2, 1),
        CopyKind::D2d => (2, 2),
        CopyKind::Default => (4, 4),
    }
}

/// Elements of arrays are two floats, as `cudaChannelFormatDesc` and as `CUarray_format` with the number of channels.
const ELEMENT: usize = 8;
const ELEMENT_BITS: [usize; 3] = [32 | 32 << 32, 0, 2];
const ELEMENT_FORMAT: usize = 0x20 | 2 << 32;

/// Arguments that end with a structure of three lengths by value: on the stack behind the registers, or on arm64 as its address.
fn before_lengths(registers: &[usize], lengths: [usize; 3]) -> Slots {
    let mut words = registers.to_vec();
    if cfg!(target_arch = "aarch64") {
        words.push(block(&lengths));
    } else {
        words.resize(6, 0);
        words.extend(lengths);
    }
    types::slots(&words)
}

/// Arrays: the format's address is the second argument.
fn array(name: &str, common: &Common) -> Option<(Slots, Effect)> {
    let (rows, slices) = (common.alloc_rows, common.alloc_slices);
    let width = common.alloc_bytes / ELEMENT;
    let (slots, cells) = match name {
        "cudaMallocArray" => (slots([0, block(&ELEMENT_BITS), width, rows]), width * rows),
        "cudaMalloc3DArray" => {
            let registers = [0, block(&ELEMENT_BITS)];
            (before_lengths(&registers, [width, rows, slices]), width * rows * slices)
        }
        "cuArrayCreate" => (slots([0, block(&[width, rows, ELEMENT_FORMAT])]), width * rows),
        "cuArray3DCreate" => {
            let descriptor = block(&[width, rows, slices, ELEMENT_FORMAT, 0]);
            (slots([0, descriptor]), width * rows * slices)
        }
        _ => return None,
    };
    Some((slots, Effect::Allocate(Pool::Device, (cells * ELEMENT) as u64)))
}

/// Allocations and frees. The first slot of an allocation is filled in at each call.
fn memory(name: &str, common: &Common) -> Option<(Slots, Effect)> {
    let (bytes, rows, slices) = (common.alloc_bytes, common.alloc_rows, common.alloc_slices);
    let padded = bytes.next_multiple_of(512);
    let device = |bytes: usize| Effect::Allocate(Pool::Device, bytes as u64);
    Some(match name {
        "cudaMalloc"
        | "cudaMallocAsync"
        | "cudaMallocFromPoolAsync"
        | "cuMemAlloc"
        | "cuMemAllocAsync"
        | "cuMemAllocFromPoolAsync"
        | "cuMemCreate"
        | "ncclMemAlloc" => (slots([0, bytes]), device(bytes)),
        "cudaMallocManaged" | "cuMemAllocManaged" => (slots([0, bytes, 1]), device(bytes)),
        "cudaMallocPitch" | "cuMemAllocPitch" => {
            (slots([0, block(&[0]), bytes, rows, 4]), device(padded * rows))
        }
        "cudaMalloc3D" => {
            (before_lengths(&[0], [bytes, rows, slices]), device(padded * rows * slices))
        }
        "cudaMallocHost" | "cudaHostAlloc" | "cuMemAllocHost" | "cuMemHostAlloc" => {
            (slots([0, bytes]), Effect::Allocate(Pool::Host, bytes as u64))
        }
        "cudaHostRegister" | "cuMemHostRegister" => (slots([block(&[0; 8]), bytes]), Effect::None),
        "cudaFree" | "cudaFreeAsync" | "cudaFreeArray" | "cuMemFree" | "cuMemFreeAsync"
        | "cuMemRelease" | "cuArrayDestroy" | "ncclMemFree" => {
            (slots([0]), Effect::Free(Pool::Device))
        }
        "cudaFreeHost" | "cuMemFreeHost" => (slots([0]), Effect::Free(Pool::Host)),
        _ => return array(name, common),
    })
}

/// Bytes of an element of an `ncclDataType_t`.
pub(crate) const fn element_bytes(data_type: usize) -> usize {
    match data_type {
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => 1,
    }
}

fn collective(name: &str, common: &Common) -> Option<(Slots, Effect)> {
    let data_type = common.nccl_type;
    let count = common.copy_bytes / element_bytes(data_type);
    let sent = (count * element_bytes(data_type)) as u64;
    let arguments = match name.trim_end_matches("Config") {
        "ncclBcast" | "ncclSend" | "ncclRecv" | "ncclPutSignal" => {
            slots([DEVICE, count, data_type])
        }
        "ncclAllReduce" | "ncclReduceScatter" | "ncclReduce" | "ncclBroadcast" | "ncclGather"
        | "ncclScatter" | "ncclAllGather" | "ncclAlltoAll" => {
            slots([DEVICE, DEVICE, count, data_type])
        }
        _ => return None,
    };
    Some((arguments, Effect::Communicate(sent)))
}

/// Communicators of several processes. `ncclUniqueId` goes by value: on the stack, which the stand-in ignores, or on
/// arm64 as its address.
fn communicator(name: &str, common: &Common) -> Option<(Slots, Effect)> {
    let (ranks, rank) = (common.ranks, common.rank);
    Some(match name {
        "ncclCommInitRank" | "ncclCommInitRankConfig" if cfg!(target_arch = "aarch64") => {
            (slots([0, ranks, block(&[0; 16]), rank]), Effect::Give(0))
        }
        "ncclCommInitRank" | "ncclCommInitRankConfig" | "ncclCommInitRankScalable" => {
            (slots([0, ranks, rank]), Effect::Give(0))
        }
        "ncclCommGrow" => (slots([0, ranks, 0, rank, 0]), Effect::Give(4)),
        _ => return None,
    })
}

/// Parts of the names of other functions that store a result through their first argument.
const GIVING: [&str; 13] = [
    "GraphInstantiate",
    "StreamCreate",
    "EventCreate",
    "GetDeviceCount",
    "CtxCreate",
    "PrimaryCtxRetain",
    "ModuleLoad",
    "ModuleGetFunction",
    "LibraryLoad",
    "LibraryGetKernel",
    "KernelGetFunction",
    "cudaGetKernel",
    "GetFuncBySymbol",
];

/// The other functions with an argument that matters: where they store a result.
fn result(name: &str) -> (Slots, Effect) {
    let effect = match name {
        "cudaDeviceReset" => Effect::Reset,
        "cudaStreamEndCapture" | "cuStreamEndCapture" => Effect::Give(1),
        _ if GIVING.iter().any(|part| name.contains(part)) => Effect::Give(0),
        _ => Effect::None,
    };
    let name = c"kernel".as_ptr() as usize;
    (slots([0, 0, if effect == Effect::Give(0) { name } else { 0 }]), effect)
}

impl Operation {
    /// The code that says that work goes on, which is no error.
    pub(crate) const fn pending_code(&self) -> c_int {
        match self.api {
            Api::Nccl => 7,
            Api::Runtime | Api::Driver => 600,
        }
    }

    /// Looks the symbol up and decides what to pass.
    pub(crate) fn new(symbol: &str, libraries: &Libraries, common: &Common) -> Result<Self> {
        let op = op_of_symbol(symbol)
            .and_then(OpId::op)
            .with_context(|| format!("`{symbol}`: gpucause traces no such function"))?;
        let known = match op.class {
            Class::Launch => launch(op.name),
            Class::Memcpy => copy(op.name, common),
            Class::Alloc | Class::Free => memory(op.name, common),
            Class::Nccl => collective(op.name, common),
            Class::Init if op.api == Api::Nccl => communicator(op.name, common),
            Class::Memset if op.name.starts_with("cudaMemset3D") => {
                // The pitched pointer and the extent go by value on the stack, or on arm64 as their addresses.
                let (at, bytes) = (DEVICE, common.copy_bytes);
                let given = if cfg!(target_arch = "aarch64") {
                    slots([block(&[at, bytes, bytes, 1]), 0, block(&[bytes, 1, 1])])
                } else {
                    slots([0, 0, 0, 0, 0, 0, at, bytes, bytes, 1, bytes, 1, 1])
                };
                Some((given, Effect::None))
            }
            Class::Memset if op.name.contains("2D") => {
                Some((slots([DEVICE, common.copy_bytes, 0, common.copy_bytes, 1]), Effect::None))
            }
            Class::Memset => Some((slots([DEVICE, 0, common.copy_bytes]), Effect::None)),
            _ => None,
        };
        let (slots, effect) = known.unwrap_or_else(|| result(op.name));
        let address = libraries.function(symbol)?;
        let bytes = common.copy_bytes as u64;
        Ok(Self { name: op.name, api: op.api, address, slots, effect, bytes })
    }
}

/// Ops in the order in which a thread calls them, over and over.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// Each op once.
    pub(crate) operations: Vec<Operation>,
    /// Indices into them.
    pub(crate) order: Vec<usize>,
}

impl Pattern {
    /// Reads `op=weight,...`; ops are spread evenly.
    pub(crate) fn new(mix: &str, libraries: &Libraries, common: &Common) -> Result<Self> {
        let mut operations = Vec::new();
        let mut weights = Vec::new();
        for item in mix.split(',') {
            let (symbol, weight) = item.split_once('=').unwrap_or((item, "1"));
            let weight: u32 =
                weight.parse().ok().filter(|weight| (1..=10_000).contains(weight)).with_context(
                    || format!("`{item}`: write op=weight, weights from 1 to 10000"),
                )?;
            operations.push(Operation::new(symbol.trim(), libraries, common)?);
            weights.push(weight);
        }
        let order = spread(&weights);
        if order.is_empty() {
            bail!("`{mix}`: no op to call");
        }
        Ok(Self { operations, order })
    }
}

/// Smooth weighted round robin: each index as often as its weight says, far from its own kind.
fn spread(weights: &[u32]) -> Vec<usize> {
    let total: i64 = weights.iter().map(|&weight| i64::from(weight)).sum();
    let mut credit = vec![0i64; weights.len()];
    (0..total)
        .filter_map(|_| {
            for (credit, &weight) in credit.iter_mut().zip(weights) {
                *credit += i64::from(weight);
            }
            let chosen = (0..weights.len()).rev().max_by_key(|&index| credit[index])?;
            credit[chosen] -= total;
            Some(chosen)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_kept_and_ops_interleave() {
        assert_eq!(spread(&[1]), [0]);
        assert_eq!(spread(&[1, 1]), [0, 1]);
        assert_eq!(spread(&[3, 1]), [0, 0, 1, 0]);
        let order = spread(&[8, 1, 2]);
        let count = |index| order.iter().filter(|&&chosen| chosen == index).count();
        assert_eq!([count(0), count(1), count(2)], [8, 1, 2]);
    }
}
