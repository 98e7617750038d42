//! What a uprobe on an instruction costs: the kernel emulates a few instructions and single-steps the rest.

/// How the kernel executes the instruction under a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prologue {
    /// In software, within the breakpoint handler.
    Emulated,
    /// Out of line with a second trap: about ten times the cost in a virtual machine.
    SingleStepped,
}

/// Bytes that decide, counting a leading `endbr64`.
pub(super) const LONGEST: u64 = 20;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The no-ops that the kernel knows by their exact bytes, as compilers and linkers pad with them.
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

/// How many bytes to skip before the probe, and what it costs there. `code` begins at the function.
pub(super) fn of(code: &[u8]) -> (u64, Prologue) {
    if !cfg!(target_arch = "x86_64") {
        return (0, Prologue::Emulated);
    }
    match code.strip_prefix(&ENDBR64) {
        // A landing pad does nothing, so that behind it is as good as on it, and far cheaper.
        Some(rest) if !rest.is_empty() => (ENDBR64.len() as u64, on_x86_64(rest)),
        _ => (0, on_x86_64(code)),
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
    fn a_landing_pad_at_the_very_end_is_probed_itself() {
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa]), (0, Prologue::SingleStepped));
    }
}
