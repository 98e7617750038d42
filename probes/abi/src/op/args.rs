//! What the arguments of an op tell: which kernel it launches, how many bytes it moves, takes or gives back.
//!
//! Arguments are counted from 1, as integer arguments of the C calling convention; offsets are in bytes into the structure
//! that the first argument points to. Signatures are those of NVIDIA's public headers.

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

/// Where the kind of a copy is told.
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

/// What an op's arguments tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Args {
    /// Nothing of interest.
    None,
    /// An argument is the kernel function.
    Launch(u8),
    /// An argument is a number of bytes to copy.
    Copy(u8, Direction),
    /// Two arguments are the width in bytes and the height of what is copied.
    Copy2d(u8, u8, Direction),
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
    /// As [`AllocArray`](Self::AllocArray), but another argument is a `cudaExtent` by value.
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
    /// The first argument points to where the handle of a kernel goes, another is the kernel's name.
    KernelName(u8),
    /// The first argument points to where a handle goes, another is a handle of the same kernel.
    KernelAlias(u8),
}

impl Args {
    /// The argument that holds the kernel function; 0 for none.
    #[must_use]
    pub const fn function(self) -> u8 {
        match self {
            Self::Launch(argument) => argument,
            _ => 0,
        }
    }

    pub(super) fn fill(self, info: OpInfo) -> OpInfo {
        let (role, first, second, direction) = match self {
            Self::None => (ArgRole::None, 0, 0, None),
            Self::Launch(argument) => return OpInfo { function_arg: argument, ..info },
            Self::Copy(bytes, direction) => (ArgRole::Copy, bytes, 0, Some(direction)),
            Self::Copy2d(width, height, direction) => {
                (ArgRole::Copy2d, width, height, Some(direction))
            }
            Self::CopyFields2d(at, direction) => (ArgRole::CopyFields2d, at, 0, Some(direction)),
            Self::CopyFields3d(at, direction) => (ArgRole::CopyFields3d, at, 0, Some(direction)),
            Self::Alloc(bytes) => (ArgRole::Alloc, bytes, 0, None),
            Self::AllocPitch(height) => (ArgRole::AllocPitch, height, 0, None),
            Self::AllocExtent(extent) => (ArgRole::AllocExtent, extent, 0, None),
            Self::AllocArray(width, height) => (ArgRole::AllocArray, width, height, None),
            Self::AllocArrayExtent(extent) => (ArgRole::AllocArrayExtent, extent, 0, None),
            Self::AllocArrayDescribed(lengths) => (ArgRole::AllocArrayDescribed, lengths, 0, None),
            Self::Free => (ArgRole::Free, 0, 0, None),
            Self::Collective(count, datatype) => (ArgRole::Collective, count, datatype, None),
            Self::Rank(ranks, rank) => (ArgRole::Rank, ranks, rank, None),
            Self::KernelName(name) => (ArgRole::KernelName, name, 0, None),
            Self::KernelAlias(handle) => (ArgRole::KernelAlias, handle, 0, None),
        };
        let info = OpInfo { role: role as u8, first, second, ..info };
        match direction {
            None => info,
            Some(Direction::Fixed(kind)) => OpInfo { kind: kind as u8, ..info },
            Some(Direction::Arg(argument)) => OpInfo { kind_arg: argument, ..info },
            Some(Direction::Field(at)) => OpInfo { kind_at: at, ..info },
            Some(Direction::MemoryTypes(source, destination)) => {
                OpInfo { source_at: source, destination_at: destination, ..info }
            }
        }
    }
}
