//! Argument locations by calling convention, at function entry.

/// First stack location: the word at the stack pointer plus 8 times the excess.
pub const STACK: u8 = 16;

/// A C calling convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// System V, x86-64.
    X86_64,
    /// AAPCS64, arm64.
    Aarch64,
}

impl Abi {
    /// That of this build.
    pub const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Location of an integer or pointer argument at a position from 1, preceded only by such: a register number, or
    /// [`STACK`] and above. 0 for position 0, which means no argument.
    pub const fn integer(self, position: u8) -> u8 {
        // On x86-64 the return address precedes stack arguments.
        let (registers, first_on_stack) = match self {
            Self::X86_64 => (6, STACK + 1),
            Self::Aarch64 => (8, STACK),
        };
        if position <= registers { position } else { first_on_stack + (position - registers - 1) }
    }

    /// Location of a structure over 16 bytes passed by value, not preceded by another: on x86-64 on the stack before other
    /// arguments; on arm64 a register with its address.
    pub const fn structure(self, position: u8) -> u8 {
        match self {
            Self::X86_64 => STACK + 1,
            Self::Aarch64 => self.integer(position),
        }
    }

    /// Location of an integer argument at a position from 1, preceded by one such structure and at most 6 arguments.
    pub const fn integer_after_structure(self, position: u8) -> u8 {
        match self {
            Self::X86_64 => self.integer(position - 1),
            Self::Aarch64 => self.integer(position),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{OpId, op_of_symbol};

    /// Kernel function, first, second and kind argument of an op on both platforms.
    fn locations(name: &str) -> [[u8; 4]; 2] {
        let op = op_of_symbol(name).and_then(OpId::op).unwrap();
        [Abi::X86_64, Abi::Aarch64].map(|abi| {
            let info = op.info(abi);
            [info.function_arg, info.first, info.second, info.kind_arg]
        })
    }

    #[test]
    fn integers_fill_the_registers_before_the_stack() {
        let all = |abi: Abi| [0, 1, 6, 7, 8, 9, 10].map(|position| abi.integer(position));
        assert_eq!(all(Abi::X86_64), [0, 1, 6, STACK + 1, STACK + 2, STACK + 3, STACK + 4]);
        assert_eq!(all(Abi::Aarch64), [0, 1, 6, 7, 8, STACK, STACK + 1]);
    }

    #[test]
    fn arguments_in_registers_of_both_have_the_same_place() {
        for (name, location) in [
            ("cudaLaunchKernel", [1, 0, 0, 0]),
            ("cuLaunchKernelEx", [2, 0, 0, 0]),
            ("cudaMemcpyAsync", [0, 3, 0, 4]),
            ("cudaMemcpyBatchAsync", [0, 3, 4, 0]),
            ("cudaMalloc", [0, 2, 0, 0]),
            ("ncclAllReduceConfig", [0, 3, 4, 0]),
            ("ncclCommInitRankScalable", [0, 2, 3, 0]),
            ("ncclCommGrow", [0, 2, 4, 0]),
        ] {
            assert_eq!(locations(name), [location; 2], "{name}");
        }
    }

    #[test]
    fn few_operations_read_the_stack_of_arm64() {
        let read = OpId::all().filter_map(OpId::op).filter(|op| op.reads_stack(Abi::Aarch64));
        let read: Vec<_> = read.map(|op| op.name).collect();
        assert_eq!(read, ["cudaMemcpy2DArrayToArray"]);
    }

    #[test]
    fn the_seventh_and_eighth_argument_are_in_registers_of_arm64_alone() {
        assert_eq!(locations("cudaMemcpy2D"), [[0, 5, 6, STACK + 1], [0, 5, 6, 7]]);
        assert_eq!(locations("cudaMemcpy2DToArray"), [[0, 6, STACK + 1, STACK + 2], [0, 6, 7, 8]]);
    }

    #[test]
    fn a_structure_by_value_takes_a_register_of_arm64_alone() {
        for name in ["ncclCommInitRank", "ncclCommInitRankConfig"] {
            assert_eq!(locations(name), [[0, 2, 3, 0], [0, 2, 4, 0]], "{name}");
        }
        assert_eq!(locations("cudaMalloc3D"), [[0, STACK + 1, 0, 0], [0, 2, 0, 0]]);
        assert_eq!(locations("cudaMalloc3DArray"), [[0, STACK + 1, 0, 0], [0, 3, 0, 0]]);
    }

    #[test]
    fn offsets_into_structures_are_no_places() {
        let [x86, arm] = locations("cudaMemcpy3D");
        assert_eq!((x86, arm), ([0, 128, 0, 0], [0, 128, 0, 0]));
        assert_eq!(locations("cuArray3DCreate"), [[0, 3, 0, 0]; 2]);
    }
}
