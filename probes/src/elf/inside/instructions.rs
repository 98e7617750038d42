//! Where instructions begin.

/// The longest instruction.
pub(super) const LONGEST: u64 = 15;
/// How much code is decoded at most: beyond it is hardly the same function.
pub(super) const FARTHEST: u64 = 16 << 10;

/// Returns true if an instruction begins before `place` and ends after it, when instructions follow one another from the
/// beginning of the code. After bytes that are no instruction it is unknown, which reads as `false`.
#[cfg(target_arch = "x86_64")]
pub(super) fn span(code: &[u8], place: u64) -> bool {
    use iced_x86::{Decoder, DecoderOptions};

    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while (decoder.position() as u64) < place {
        // Linkers pad with zeros; compilers do not make the instruction that a zero stands for.
        let is_padding = code.get(decoder.position()) == Some(&0);
        if is_padding || decoder.decode().is_invalid() {
            return false;
        }
    }
    decoder.position() as u64 > place
}

/// All instructions have the same length, and the kernel refuses probes between them.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn span(_: &[u8], _: u64) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// push %rbp; mov %rsp,%rbp; mov $0x55555555,%eax; vaddps %ymm0,%ymm1,%ymm2; ret
    const CODE: [u8; 14] =
        [0x55, 0x48, 0x89, 0xe5, 0xb8, 0x55, 0x55, 0x55, 0x55, 0xc5, 0xf4, 0x58, 0xd0, 0xc3];

    #[test]
    fn a_place_is_within_an_instruction_when_none_begins_there() {
        let begin = [0, 1, 4, 9, 13, 14];
        for place in 0..=14 {
            assert_eq!(span(&CODE, place), !begin.contains(&place), "{place}");
        }
    }

    #[test]
    fn what_follows_padding_or_no_instruction_is_not_known() {
        for code in [[0xc3, 0x00, 0x55, 0x55], [0xc3, 0x06, 0xb8, 0x55]] {
            assert!((0..4).all(|place| !span(&code, place)), "{code:02x?}");
        }
    }

    #[test]
    fn an_instruction_that_is_cut_off_is_none() {
        assert!(!span(&[0x55, 0xb8, 0x55], 2));
    }
}
