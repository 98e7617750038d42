//! Functions that hand their call to a pointer.
//!
//! Programs that load CUDA on demand have one by the name of each of its functions: what it points to is the function in the
//! library, which is probed there. A runtime that is linked in does work of its own, and in longer functions: NVIDIA's shortest
//! has more than 350 bytes.

/// Most bytes of a stub.
pub(super) const LONGEST: u64 = 256;
/// Bytes of a function whose size is unknown: it ends where its code does not go on.
const UNSIZED: u64 = 64;

/// How many bytes of a function of this size (0: unknown) tell whether it is a stub; none where it is too long for one.
pub(super) fn examined(size: u64) -> Option<u64> {
    match size {
        0 => Some(UNSIZED),
        1..=LONGEST => Some(size),
        _ => None,
    }
}

/// Returns true if the function with this code jumps to a pointer, or calls it last and returns what that returns. If the
/// size of the function is unknown, only code before its first end counts.
pub(super) fn is_stub(code: &[u8], has_size: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86_64::is_stub(code, has_size);
    #[cfg(target_arch = "aarch64")]
    return aarch64::is_stub(code, has_size);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Registers that hold a pointer from memory or what a function returned; jump tables compute theirs.
#[derive(Default)]
struct Pointers(u32);

impl Pointers {
    fn set(&mut self, register: usize, is_pointer: bool) {
        let bit = 1u32.checked_shl(u32::try_from(register).unwrap_or(u32::MAX)).unwrap_or(0);
        self.0 = if is_pointer { self.0 | bit } else { self.0 & !bit };
    }

    fn has(&self, register: usize) -> bool {
        u32::try_from(register).ok().and_then(|at| self.0.checked_shr(at)).unwrap_or(0) & 1 == 1
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

    use super::Pointers;

    pub(super) fn is_stub(code: &[u8], has_size: bool) -> bool {
        let mut pointers = Pointers::default();
        let mut has_called = false;
        for instruction in &mut Decoder::new(64, code, DecoderOptions::NONE) {
            let to_pointer = || goes_to_pointer(&instruction, &pointers);
            match instruction.mnemonic() {
                Mnemonic::INVALID => return false,
                Mnemonic::Jmp if to_pointer() => return true,
                Mnemonic::Ret if has_called => return true,
                Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Int3 if !has_size => return false,
                Mnemonic::Call => {
                    has_called = to_pointer();
                    pointers.set(0, true);
                    continue;
                }
                Mnemonic::Add | Mnemonic::Lea if instruction.op0_register() == Register::RSP => {
                    continue;
                }
                Mnemonic::Pop | Mnemonic::Leave => continue,
                _ => {}
            }
            has_called = false;
            follow(&instruction, &mut pointers);
        }
        false
    }

    /// Returns the number of a general register of 64 or 32 bits.
    fn number(register: Register) -> Option<usize> {
        let of = |first: Register| (register as usize).checked_sub(first as usize);
        [Register::RAX, Register::EAX].into_iter().filter_map(of).find(|number| *number < 16)
    }

    fn goes_to_pointer(instruction: &Instruction, pointers: &Pointers) -> bool {
        match instruction.op0_kind() {
            OpKind::Register => {
                number(instruction.op0_register()).is_some_and(|own| pointers.has(own))
            }
            OpKind::Memory => instruction.memory_index() == Register::None,
            _ => false,
        }
    }

    fn follow(instruction: &Instruction, pointers: &mut Pointers) {
        let reads_only =
            matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        let Some(written) = number(instruction.op0_register()).filter(|_| !reads_only) else {
            return;
        };
        let is_pointer = match instruction.op1_kind() {
            OpKind::Memory => instruction.memory_index() == Register::None,
            OpKind::Register => {
                number(instruction.op1_register()).is_some_and(|from| pointers.has(from))
            }
            _ => false,
        };
        pointers.set(written, instruction.mnemonic() == Mnemonic::Mov && is_pointer);
    }
}

#[cfg(any(test, target_arch = "aarch64"))]
mod aarch64 {
    use super::Pointers;

    pub(super) fn is_stub(code: &[u8], has_size: bool) -> bool {
        let mut pointers = Pointers::default();
        let mut has_called = false;
        let words = code.chunks_exact(4);
        for word in words.filter_map(|word| word.try_into().ok()).map(u32::from_le_bytes) {
            let register = |at: u32| (word >> at & 31) as usize;
            let is = |mask: u32, value: u32| word & mask == value;
            // br; ret; b; blr; bl
            match word {
                _ if is(0xffff_fc1f, 0xd61f_0000) && pointers.has(register(5)) => return true,
                0xd65f_03c0 | 0xd65f_0bff if has_called => return true,
                0xd65f_03c0 | 0xd65f_0bff if !has_size => return false,
                _ if !has_size && is(0xfc00_0000, 0x1400_0000) => return false,
                _ if is(0xffff_fc1f, 0xd63f_0000) => has_called = pointers.has(register(5)),
                _ if is(0xfc00_0000, 0x9400_0000) => {
                    has_called = false;
                    pointers.set(0, true);
                }
                // These restore registers: ldp and ldr from the stack; add to the stack pointer; autiasp
                _ if is(0xfe40_03e0, 0xa840_03e0)
                    || is(0xffe0_07e0, 0xf840_07e0)
                    || is(0xffc0_03e0, 0xf940_03e0)
                    || is(0xff80_03ff, 0x9100_03ff) =>
                {
                    follow(word, &mut pointers);
                }
                0xd503_23bf => {}
                _ => {
                    has_called = false;
                    follow(word, &mut pointers);
                }
            }
        }
        false
    }

    fn follow(word: u32, pointers: &mut Pointers) {
        let is = |mask: u32, value: u32| word & mask == value;
        let written = (word & 31) as usize;
        // ldr with an offset, of the code's own data; ldur; ldar; ldapr
        let is_load = is(0xffc0_0000, 0xf940_0000)
            || is(0xff00_0000, 0x5800_0000)
            || is(0xffe0_0c00, 0xf840_0000)
            || is(0xffff_fc00, 0xc8df_fc00)
            || is(0xffff_fc00, 0xf8bf_c000);
        // mov of a register
        let is_move = is(0xffe0_ffe0, 0xaa00_03e0);
        // add, adr and adrp; ldr with an index
        let is_computed = is(0x7f00_0000, 0x1100_0000)
            || is(0x7f00_0000, 0x0b00_0000)
            || is(0x1f00_0000, 0x1000_0000)
            || is(0xffe0_0c00, 0xf860_0800);
        if is_load || is_computed {
            pointers.set(written, is_load);
        } else if is_move {
            let from = (word >> 16 & 31) as usize;
            pointers.set(written, pointers.has(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn only_short_functions_are_examined() {
        assert_eq!([1, 256].map(examined), [Some(1), Some(256)]);
        assert_eq!((examined(0), examined(257)), (Some(64), None));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_jump_to_a_pointer_in_memory_is_a_stub() {
        let slot = [0, 0x10, 0, 0];
        for code in [
            // cmpq $0,slot(%rip); je 1f; jmp *slot(%rip): as JAX has it
            &[&[0x48, 0x83, 0x3d], &slot[..], &[0, 0x74, 6, 0xff, 0x25], &slot[..]].concat()[..],
            // endbr64; bnd jmp *slot(%rip)
            &[&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25], &slot[..]].concat(),
            // mov slot(%rip),%rax; test %rax,%rax; je 1f; jmp *%rax
            &[&[0x48, 0x8b, 5], &slot[..], &[0x48, 0x85, 0xc0, 0x74, 2, 0xff, 0xe0]].concat(),
            // push %rbx; mov %rdi,%rbx; mov slot(%rip),%rax; mov %rbx,%rdi; pop %rbx; jmp *%rax
            &[
                &[0x53, 0x48, 0x89, 0xfb, 0x48, 0x8b, 5],
                &slot[..],
                &[0x48, 0x89, 0xdf, 0x5b, 0xff, 0xe0],
            ]
            .concat(),
            // mov slot(%rip),%rax; jmp *24(%rax)
            &[&[0x48, 0x8b, 5], &slot[..], &[0xff, 0x60, 0x18]].concat(),
        ] {
            assert!(is_stub(code, false) && is_stub(code, true), "{code:02x?}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_of_a_pointer_whose_result_is_returned_is_a_stub() {
        // mov 0x1000(%rip),%rax; call *%rax; then leave; ret, or add $8,%rsp; pop %rbx; ret
        let call = [0x48, 0x8b, 5, 0, 0x10, 0, 0, 0xff, 0xd0];
        assert!(is_stub(&[&call[..], &[0xc9, 0xc3]].concat(), true));
        assert!(is_stub(&[&call[..], &[0x48, 0x83, 0xc4, 8, 0x5b, 0xc3]].concat(), false));
        // test %eax,%eax; ret: the function does something with it
        assert!(!is_stub(&[&call[..], &[0x85, 0xc0, 0xc3]].concat(), true));
        // call of a function of the file; ret
        assert!(!is_stub(&[0xe8, 0, 1, 0, 0, 0xc3], true));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn jump_tables_and_jumps_within_the_file_are_no_stubs() {
        for code in [
            // movslq (%rdx,%rax,4),%rax; add %rdx,%rax; notrack jmp *%rax
            &[0x48, 0x63, 4, 0x82, 0x48, 1, 0xd0, 0x3e, 0xff, 0xe0][..],
            // mov (%rdx,%rax,8),%rax; jmp *%rax
            &[0x48, 0x8b, 4, 0xc2, 0xff, 0xe0],
            // jmp *0x1000(,%rax,8)
            &[0xff, 0x24, 0xc5, 0, 0x10, 0, 0],
            &[0xe9, 0, 1, 0, 0],
            &[0x55; 64],
            &[],
        ] {
            assert!(!is_stub(code, true), "{code:02x?}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_stub_behind_a_function_of_unknown_size_is_another_function() {
        // xor %eax,%eax; ret; jmp *0x1000(%rip)
        let code = [0x31, 0xc0, 0xc3, 0xff, 0x25, 0, 0x10, 0, 0];
        assert!(!is_stub(&code, false));
        assert!(is_stub(&code, true));
    }

    #[test]
    fn a_branch_to_a_pointer_is_a_stub_on_arm() {
        let (adrp, ldr, cbz, br) = (0xb000_0a90, 0xf945_c210, 0xb400_0050, 0xd61f_0200);
        assert!(aarch64::is_stub(&words(&[adrp, ldr, cbz, br]), false));
        // Another function's code comes before the same stub.
        let ret = 0xd65f_03c0;
        assert!(!aarch64::is_stub(&words(&[ret, adrp, ldr, cbz, br]), false));
        // blr x16; ldp x29,x30,[sp],#16; ret
        assert!(aarch64::is_stub(&words(&[adrp, ldr, 0xd63f_0200, 0xa8c1_7bfd, ret]), true));
        // blr x16; cmp w0,#0; ret
        assert!(!aarch64::is_stub(&words(&[adrp, ldr, 0xd63f_0200, 0x7100_001f, ret]), true));
    }

    #[test]
    fn a_jump_table_is_no_stub_on_arm() {
        // ldr x16,[x1]; add x16,x16,w1,sxtb #2; br x16
        assert!(!aarch64::is_stub(&words(&[0xf940_0030, 0x8b21_8a10, 0xd61f_0200]), true));
    }
}
