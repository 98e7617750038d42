//! The arguments of an op: which kernel it launches, how many bytes it moves, allocates or frees.
//!
//! Arguments are counted from 1, as the C declaration has them; offsets are in bytes into the structure that the first
//! argument points to. Signatures are those of NVIDIA's public headers; [`Abi`] knows where each argument lies.

use super::location::Abi;
use crate::record::{ArgRole, OpInfo};
use crate::state::shared_enum;

shared_enum! {
    /// Between which memories a copy goes. The first five are in the order of `cudaMemcpyKind`.
    CopyKind, "COPY" {
        /// Within host memory.
        H2h = "h2h",
        /// To the device.
        H2d = "h2d",
        /// To the host.
        D2h = "d2h",
        /// Within device memory.
        D2d = "d2d",
        /// The library finds out from the addresses.
        Default = "default",
        /// From one device to another.
        P2p = "p2p",
    }
}

/// Where a copy's kind comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The op has one kind only.
    Fixed(CopyKind),
    /// An argument holds a `cudaMemcpyKind`.
    Arg(u8),
    /// A field of the structure holds a `cudaMemcpyKind`.
    Field(u8),
    /// Two fields of the structure hold the `CUmemorytype` of source and destination.
    MemoryTypes(u8, u8),
}

/// The arguments that the programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Args {
    /// None.
    None,
    /// An argument is the kernel function.
    Launch(u8),
    /// An argument is a number of bytes to copy.
    Copy(u8, Direction),
    /// Two arguments are the width in bytes and the height of what is copied.
    Copy2d(u8, u8, Direction),
    /// Two arguments are an array of sizes in bytes and its length: many copies in one call.
    CopySizes(u8, u8, Direction),
    /// Two arguments are an array of `cudaMemcpy3DBatchOp` and its length.
    CopyBoxes(u8, u8, Direction),
    /// Two successive words of the structure, at this offset, are the width in bytes and the height.
    CopyFields2d(u8, Direction),
    /// Three successive words of the structure are the width in bytes, the height and the depth.
    CopyFields3d(u8, Direction),
    /// The first argument points to where the address goes, another is the number of bytes.
    Alloc(u8),
    /// The first argument points to where the address goes, the second to where the pitch goes, another is the height.
    AllocPitch(u8),
    /// The first argument points to a `cudaPitchedPtr`, another is a `cudaExtent` by value.
    AllocExtent(u8),
    /// The first argument points to where the array goes, the second to its `cudaChannelFormatDesc`; two others are the width
    /// in elements and the height.
    AllocArray(u8, u8),
    /// The first two arguments are those of [`AllocArray`](Self::AllocArray); another is a `cudaExtent` by value.
    AllocArrayExtent(u8),
    /// The first argument points to where the array goes, the second to a descriptor that begins with this many lengths,
    /// followed by `CUarray_format` and the number of channels.
    AllocArrayDescribed(u8),
    /// The first argument is an address, array or handle that was allocated.
    Free,
    /// Two arguments are a count of elements and their `ncclDataType_t`.
    Collective(u8, u8),
    /// Two arguments are the number of ranks and this rank.
    Rank(u8, u8),
    /// The arguments are those of [`Rank`](Self::Rank), with an `ncclUniqueId` by value between them.
    RankAfterId(u8, u8),
    /// The first argument points to where the handle of a kernel goes, another is the kernel's name.
    KernelName(u8),
    /// The first argument points to where a handle goes, another is a handle of the same kernel.
    KernelAlias(u8),
}

/// Batched copies whose sizes are added up; the rest counts with their average size.
pub const MAX_BATCH: usize = 1024;

impl Args {
    /// The argument that holds the kernel function; 0 for none.
    pub const fn function(self) -> u8 {
        match self {
            Self::Launch(argument) => argument,
            _ => 0,
        }
    }

    pub(super) fn fill(self, abi: Abi, info: OpInfo) -> OpInfo {
        let function_arg = abi.integer(self.function());
        let (role, first, second) = self.role(abi);
        let info = OpInfo { function_arg, role: role as u8, first, second, ..info };
        match self.direction() {
            None => info,
            Some(Direction::Fixed(kind)) => OpInfo { kind: kind as u8, ..info },
            Some(Direction::Arg(argument)) => OpInfo { kind_arg: abi.integer(argument), ..info },
            Some(Direction::Field(at)) => OpInfo { kind_at: at, ..info },
            Some(Direction::MemoryTypes(source, destination)) => {
                OpInfo { source_at: source, destination_at: destination, ..info }
            }
        }
    }

    /// How the programs read the arguments, and the two numbers that they need for it.
    fn role(self, abi: Abi) -> (ArgRole, u8, u8) {
        let one = |role, argument| (role, abi.integer(argument), 0);
        let two = |role, first, second| (role, abi.integer(first), abi.integer(second));
        match self {
            Self::None | Self::Launch(_) => (ArgRole::None, 0, 0),
            Self::Copy(bytes, _) => one(ArgRole::Copy, bytes),
            Self::Copy2d(width, height, _) => two(ArgRole::Copy2d, width, height),
            Self::CopySizes(sizes, count, _) => two(ArgRole::CopySizes, sizes, count),
            Self::CopyBoxes(boxes, count, _) => two(ArgRole::CopyBoxes, boxes, count),
            Self::CopyFields2d(at, _) => (ArgRole::CopyFields2d, at, 0),
            Self::CopyFields3d(at, _) => (ArgRole::CopyFields3d, at, 0),
            Self::Alloc(bytes) => one(ArgRole::Alloc, bytes),
            Self::AllocPitch(height) => one(ArgRole::AllocPitch, height),
            Self::AllocExtent(extent) => (ArgRole::AllocExtent, abi.structure(extent), 0),
            Self::AllocArray(width, height) => two(ArgRole::AllocArray, width, height),
            Self::AllocArrayExtent(extent) => (ArgRole::AllocArrayExtent, abi.structure(extent), 0),
            Self::AllocArrayDescribed(lengths) => (ArgRole::AllocArrayDescribed, lengths, 0),
            Self::Free => (ArgRole::Free, 0, 0),
            Self::Collective(count, datatype) => two(ArgRole::Collective, count, datatype),
            Self::Rank(ranks, rank) => two(ArgRole::Rank, ranks, rank),
            Self::RankAfterId(ranks, rank) => {
                (ArgRole::Rank, abi.integer(ranks), abi.integer_after_structure(rank))
            }
            Self::KernelName(name) => one(ArgRole::KernelName, name),
            Self::KernelAlias(handle) => one(ArgRole::KernelAlias, handle),
        }
    }

    /// Returns true if the numbers of the role are offsets of fields, and no locations of arguments.
    pub(super) const fn reads_fields(self) -> bool {
        matches!(
            self,
            Self::CopyFields2d(..) | Self::CopyFields3d(..) | Self::AllocArrayDescribed(..)
        )
    }

    pub(super) const fn direction(self) -> Option<Direction> {
        match self {
            Self::Copy(_, direction)
            | Self::Copy2d(_, _, direction)
            | Self::CopySizes(_, _, direction)
            | Self::CopyBoxes(_, _, direction)
            | Self::CopyFields2d(_, direction)
            | Self::CopyFields3d(_, direction) => Some(direction),
            _ => None,
        }
    }
}
