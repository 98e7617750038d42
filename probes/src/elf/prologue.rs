//! Cost of a uprobe by instruction: the kernel emulates some and single-steps the rest.

use super::arm64;

/// How the kernel executes a probed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prologue {
    /// Emulated in the breakpoint handler.
    Emulated,
    /// Out of line, with a second trap: about ten times the cost in a virtual machine.
    SingleStepped,
}

/// Bytes to decode, including skipped ones.
pub(super) const LONGEST: u64 = 32;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The no-op encodings known to the kernel.
const NOPS: [&[u8]; 8] = [
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Bytes to skip before the probe, and the cost there. `code` is the start of the function.
pub(super) fn of(code: &[u8]) -> (u64, Prologue) {
    if cfg!(target_arch = "aarch64") {
        return (0, on_arm64(code));
    }
    let skipped = passive(code);
    // After an instruction that changes neither stack nor arguments a probe works as well, and is cheaper.
    match code.get(skipped..) {
        Some(rest) if skipped > 0 && !rest.is_empty() => (skipped as u64, on_x86_64(rest)),
        _ => (0, on_x86_64(code)),
    }
}

/// Length of no-effect instructions at the start: a landing pad, and libcuda's check for a debugger (a compare of a
/// variable with a constant, then a conditional jump).
fn passive(code: &[u8]) -> usize {
    let pad = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    match &code[pad..] {
        // cmpl $constant, offset(%rip); jcc
        [0x81, 0x3d, _, _, _, _, _, _, _, _, 0x70..=0x7f, _, ..] => pad + 10,
        _ => pad,
    }
}

fn on_x86_64(code: &[u8]) -> Prologue {
    let emulated = match code {
        // push, with and without REX.B; nop; call, jmp and jmp short; the conditional jumps.
        [0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..]
        | [0x41, 0x50..=0x57, ..]
        | [0x0f, 0x80..=0x8f, ..] => true,
        _ => NOPS.iter().any(|nop| code.starts_with(nop)),
    };
    if emulated { Prologue::Emulated } else { Prologue::SingleStepped }
}

/// A no-op is emulated as of Linux 6.13 only.
fn on_arm64(code: &[u8]) -> Prologue {
    let first = code.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if first.is_some_and(arm64::is_emulated) { Prologue::Emulated } else { Prologue::SingleStepped }
}

#[cfg(test)]
mod arm64_tests {
    use super::*;

    #[test]
    fn branches_and_addresses_are_emulated() {
        // b, bl, b.eq, cbz, cbnz, tbz, tbnz, adr, adrp, br, blr, ret.
        for word in [
            0x1400_0002_u32,
            0x9400_0002,
            0x5400_0040,
            0xb400_0041,
            0x3500_0041,
            0x3608_0041,
            0xb708_0041,
            0x1000_0009,
            0x9000_0009,
            0xd61f_0200,
            0xd63f_0100,
            0xd65f_03c0,
        ] {
            assert_eq!(on_arm64(&word.to_le_bytes()), Prologue::Emulated, "{word:08x}");
        }
    }

    #[test]
    fn everything_else_is_single_stepped() {
        // stp x29, x30, [sp, #-16]!; sub sp, sp, #32; bti c; paciasp; nop; ldr x0, label; mov w0, #0.
        for word in [
            0xa9bf_7bfd_u32,
            0xd100_83ff,
            0xd503_245f,
            0xd503_233f,
            0xd503_201f,
            0x5800_0040,
            0x5280_0000,
        ] {
            assert_eq!(on_arm64(&word.to_le_bytes()), Prologue::SingleStepped, "{word:08x}");
        }
        assert_eq!(on_arm64(&[0x02, 0x00, 0x00]), Prologue::SingleStepped);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn pushes_nops_calls_and_jumps_are_emulated() {
        for code in [
            &[0x55, 0x48, 0x89, 0xe5][..],
            &[0x41, 0x57],
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x44, 0, 0],
            &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
            &[0xe8, 1, 2, 3, 4],
            &[0xe9, 1, 2, 3, 4],
            &[0xeb, 0x10],
            &[0x0f, 0x84, 1, 2, 3, 4],
        ] {
            assert_eq!(of(code), (0, Prologue::Emulated), "{code:02x?}");
        }
    }

    #[test]
    fn everything_else_is_single_stepped() {
        for code in [
            &[0x48, 0x83, 0xec, 0x08][..],
            &[0x48, 0x89, 0xe5],
            &[0xc3],
            &[0x40, 0x55],
            &[0x41, 0x5f],
            &[0x0f, 0x1f],
            &[0xf3, 0x0f],
            &[0x68, 1, 2, 3, 4],
            &[],
        ] {
            assert_eq!(of(code), (0, Prologue::SingleStepped), "{code:02x?}");
        }
    }

    #[test]
    fn a_landing_pad_is_skipped() {
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), (4, Prologue::Emulated));
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa, 0xc3]), (4, Prologue::SingleStepped));
    }

    #[test]
    fn a_check_for_a_debugger_is_skipped_with_the_landing_pad_before_it() {
        let check = [0x81, 0x3d, 1, 2, 3, 4, 5, 6, 7, 8];
        let with = |pad: &[u8], rest: &[u8]| of(&[pad, &check, rest].concat());
        assert_eq!(with(&[], &[0x74, 0x0c, 0xff]), (10, Prologue::Emulated));
        assert_eq!(with(&ENDBR64, &[0x75, 0x0c, 0xff]), (14, Prologue::Emulated));
        for rest in [&[0x48, 0x89][..], &[0x74], &[]] {
            assert_eq!(with(&[], rest), (0, Prologue::SingleStepped));
            assert_eq!(with(&ENDBR64, rest), (4, Prologue::SingleStepped));
        }
    }

    #[test]
    fn a_landing_pad_at_the_very_end_is_probed_itself() {
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa]), (0, Prologue::SingleStepped));
    }
}
