//! The operations that are traced. One table drives attach, decoding and labels.

mod args;
mod launch;
mod load;
mod location;
mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use zerocopy::FromZeros as _;

use crate::record::{MAX_OPS, OpInfo};
use crate::state::{Phase, shared_enum};

pub use args::{Args, CopyKind, Direction, MAX_BATCH};
pub use launch::LaunchOps;
pub use load::LoadClass;
pub use location::{Abi, STACK};
pub use table::OPS;

/// Index into [`OPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u16);

shared_enum! {
    /// The library layer that an op belongs to.
    Api, "API" {
        /// libcudart.
        Runtime = "runtime",
        /// libcuda.
        Driver = "driver",
        /// libnccl.
        Nccl = "nccl",
    }
}

shared_enum! {
    /// Kind of work that an op does.
    Class, "CLASS" {
        /// Starts a kernel.
        Launch = "launch",
        /// Copies memory.
        Memcpy = "memcpy",
        /// Fills memory.
        Memset = "memset",
        /// Allocates memory.
        Alloc = "alloc",
        /// Frees memory.
        Free = "free",
        /// Waits for the GPU.
        Sync = "sync",
        /// Records, queries or waits on an event or a stream.
        Event = "event",
        /// Captures, builds or launches a graph.
        Graph = "graph",
        /// Communicates between GPUs.
        Nccl = "nccl",
        /// Sets up or queries a device, context, stream or communicator, or loads code.
        Init = "init",
    }
}

/// One traced operation and the symbols that perform it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The documented function name, without ABI suffixes: the `op` label.
    pub name: &'static str,
    /// The layer.
    pub api: Api,
    /// Kind of work that it does.
    pub class: Class,
    /// Its arguments.
    pub args: Args,
}

/// `cudaErrorNotReady` and `CUDA_ERROR_NOT_READY`.
const CUDA_NOT_READY: u16 = 600;
/// `ncclInProgress`.
const NCCL_IN_PROGRESS: u16 = 7;

impl Op {
    /// Returns true if each call hands the GPU kernels to run: launches, and launches of whole graphs.
    pub fn feeds_gpu(&self) -> bool {
        self.class == Class::Launch || matches!(self.name, "cudaGraphLaunch" | "cuGraphLaunch")
    }

    /// Returns true if calls are launches: those that feed the GPU, less functions that the host runs in its turn.
    pub fn is_launch(&self) -> bool {
        self.feeds_gpu() && !self.name.ends_with("LaunchHostFunc")
    }

    /// Returns true if the kernel programs read arguments of this op from the stack on a platform.
    pub fn reads_stack(&self, abi: Abi) -> bool {
        let OpInfo { function_arg, first, second, kind_arg, .. } = self.info(abi);
        let of_role = if self.args.reads_fields() { [0, 0] } else { [first, second] };
        of_role.into_iter().chain([function_arg, kind_arg]).any(|location| location >= STACK)
    }

    /// Returns the facts that the kernel programs need about this op on a platform.
    pub fn info(&self, abi: Abi) -> OpInfo {
        let info = OpInfo {
            phase: self.class.phase() as u8,
            is_launch: u8::from(self.feeds_gpu()),
            api: self.api as u8,
            load: self.load_class() as u8,
            pending_code: match self.api {
                Api::Runtime | Api::Driver => CUDA_NOT_READY,
                Api::Nccl => NCCL_IN_PROGRESS,
            },
            ..OpInfo::new_zeroed()
        };
        self.args.fill(abi, info)
    }
}

impl Class {
    /// Returns the phase of a thread inside such an op.
    pub const fn phase(self) -> Phase {
        match self {
            Self::Launch => Phase::Launch,
            Self::Memcpy | Self::Memset => Phase::Memcpy,
            Self::Alloc | Self::Free => Phase::Alloc,
            Self::Sync => Phase::Sync,
            Self::Graph => Phase::Graph,
            Self::Nccl => Phase::Nccl,
            Self::Event | Self::Init => Phase::Other,
        }
    }
}

impl OpId {
    /// The op's row, unless the id is from a newer table.
    pub fn op(self) -> Option<&'static Op> {
        OPS.get(usize::from(self.0))
    }

    /// Every op of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        (0u16..).take(OPS.len()).map(Self)
    }
}

/// The op that an exported symbol performs. ABI suffixes (`_v2`, `_ptsz`, `_ptds`) and NCCL's `pnccl` aliases count as
/// the op itself.
pub fn op_of_symbol(symbol: &str) -> Option<OpId> {
    let stem =
        symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    let stem = match stem.rsplit_once("_v") {
        Some((base, version))
            if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) =>
        {
            base
        }
        _ => stem,
    };
    let name = match stem.strip_prefix('p') {
        Some(base) if base.starts_with("nccl") => base,
        _ => stem,
    };
    BY_NAME.get(name).copied()
}

/// Libraries have many names that resemble ops.
static BY_NAME: LazyLock<HashMap<&str, OpId>> =
    LazyLock::new(|| OpId::all().zip(OPS).map(|(id, op)| (op.name, id)).collect());

const _: () = assert!(OPS.len() <= MAX_OPS);

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(symbol: &str) -> Option<&'static str> {
        op_of_symbol(symbol).and_then(OpId::op).map(|op| op.name)
    }

    #[test]
    fn abi_variants_count_as_their_op() {
        assert_eq!(name_of("cudaLaunchKernel_ptsz"), Some("cudaLaunchKernel"));
        assert_eq!(name_of("cuMemcpyHtoDAsync_v2_ptsz"), Some("cuMemcpyHtoDAsync"));
        assert_eq!(name_of("cuMemAlloc_v2"), Some("cuMemAlloc"));
        assert_eq!(name_of("cudaMemcpy_ptds"), Some("cudaMemcpy"));
        assert_eq!(name_of("pncclAllReduce"), Some("ncclAllReduce"));
    }

    #[test]
    fn other_symbols_are_not_ops() {
        for symbol in
            ["cudaLaunchKernelX", "cuMemAlloc_vx", "cuMemAlloc_v", "nccl", "", "_v2", "pcudaMalloc"]
        {
            assert_eq!(op_of_symbol(symbol), None, "{symbol}");
        }
    }

    #[test]
    fn names_are_unique_and_imply_their_api() {
        for (index, op) in OPS.iter().enumerate() {
            assert!(OPS[..index].iter().all(|other| other.name != op.name), "{} twice", op.name);
            let prefix = match op.api {
                Api::Runtime => "cuda",
                Api::Driver => "cu",
                Api::Nccl => "nccl",
            };
            assert!(op.name.starts_with(prefix), "{}", op.name);
            assert_eq!(op.api == Api::Runtime, op.name.starts_with("cuda"), "{}", op.name);
        }
    }
}
