//! Where the calls of an arm64 function can be seen without a single step: its first instruction nearly always saves registers, which the
//! kernel would single-step, but branches and address computations soon after it are emulated, and so is every `ret`.
//!
//! The bytes are untrusted. A breakpoint in data would change what a program computes, so that only instructions count that control
//! reaches from the function's start, and only where the stack pointer is known at each of them: it is what it was at the start at
//! every return. The encodings are those of the Arm Architecture Reference Manual, chapter C4.

/// Most bytes of a function.
pub(super) const LONGEST: u64 = 16 << 10;
/// Most instructions before the first probe.
const MAX_START: usize = 64;
/// Most returns of a function: each has a probe.
const MAX_RETURNS: usize = 16;
const BYTES: u64 = 4;
/// Bits of the reserved bytes in a cookie.
const RESERVED_BITS: u32 = 24;

const STACK_POINTER: u32 = 31;
const FRAME_POINTER: u32 = 29;
const LINK_REGISTER: u32 = 30;
/// Registers of arguments, and of the address of a result.
const ARGUMENTS: std::ops::RangeInclusive<u32> = 0..=8;
/// The first vector register that is no argument.
const FIRST_KEPT_VECTOR: u32 = 8;
const RET: u32 = 0xd65f_03c0;

/// Places in a function, in bytes from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passage {
    /// An emulated instruction that every call passes once, with the arguments where the caller left them.
    pub(super) entry: u64,
    /// Bytes of stack that the function has reserved there.
    pub(super) reserved: u32,
    /// The emulated instructions that calls end with.
    pub(super) returns: Vec<u64>,
}

/// Returns the places in the function with this code; `None` where they cannot be known.
pub(super) fn passage(code: &[u8]) -> Option<Passage> {
    let code: Vec<u32> =
        code.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let (entry, reserved) = start(&code)?;
    let returns = returns(&code, entry)?;
    let bytes = |index: usize| index as u64 * BYTES;
    let returns = returns.into_iter().map(bytes).collect();
    Some(Passage { entry: bytes(entry), reserved, returns })
}

/// The first emulated instruction, and the bytes of stack that those before it reserve. They change no argument.
fn start(code: &[u32]) -> Option<(usize, u32)> {
    let mut reserved = 0u32;
    for (index, &word) in code.iter().enumerate().take(MAX_START) {
        if is_emulated(word) {
            return (reserved < 1 << RESERVED_BITS).then_some((index, reserved));
        }
        if !keeps_arguments(word) {
            return None;
        }
        let Change::By(change) = stack_change(word) else { return None };
        reserved = reserved.checked_add(u32::try_from(-change).ok()?)?;
    }
    None
}

/// b, bl, b.cond, cbz, cbnz, tbz, tbnz, adr, adrp, br, blr and ret, which every kernel emulates.
pub(super) const fn is_emulated(word: u32) -> bool {
    word & 0x7c00_0000 == 0x1400_0000
        || word & 0xff00_0010 == 0x5400_0000
        || word & 0x7e00_0000 == 0x3400_0000
        || word & 0x7e00_0000 == 0x3600_0000
        || word & 0x1f00_0000 == 0x1000_0000
        || word & 0xff9f_fc1f == 0xd61f_0000
}

const fn destination(word: u32) -> u32 {
    word & 31
}

const fn base(word: u32) -> u32 {
    word >> 5 & 31
}

/// A register that neither holds an argument nor where the function returns to. Number 31 is the stack pointer, or none.
fn is_free(register: u32) -> bool {
    !ARGUMENTS.contains(&register) && register != LINK_REGISTER
}

/// Returns true for instructions known to leave arguments and return address alone.
fn keeps_arguments(word: u32) -> bool {
    // nop and the landing pads of indirect branches; not those that sign the return address.
    if word == 0xd503_201f || word & 0xffff_ff3f == 0xd503_241f {
        return true;
    }
    let keeps_base = || is_free(base(word));
    // A pair is stored, or one register with a constant offset or a register's.
    if word & 0x3a40_0000 == 0x2800_0000 {
        return word >> 23 & 1 == 0 || keeps_base();
    }
    let stores = word >> 22 & 3 == 0 || word & 0xffc0_0000 == 0x3d80_0000;
    if word & 0x3b00_0000 == 0x3900_0000 && stores {
        return true;
    }
    if word & 0x3b00_0000 == 0x3800_0000 && stores {
        return match (word >> 21 & 1, word >> 10 & 3) {
            (0, 0) | (1, 2) => true,
            (0, 1 | 3) => keeps_base(),
            _ => false,
        };
    }
    // Comparisons that depend on one before.
    if word & 0x3fe0_0410 == 0x3a40_0000 {
        return true;
    }
    // An integer register is copied to one of vectors.
    if word & 0x7f3f_fc00 == 0x1e27_0000 {
        return destination(word) >= FIRST_KEPT_VECTOR;
    }
    // An integer register is loaded from a base and an offset.
    let loads = word & 0xbfc0_0000 == 0xb940_0000;
    // Additions of a constant, additions and logic of registers, moves of constants, and the thread pointer.
    let computes = word & 0x1f80_0000 == 0x1100_0000
        || word & 0x1f80_0000 == 0x1280_0000
        || word & 0x1f00_0000 == 0x0a00_0000
        || word & 0x1f20_0000 == 0x0b00_0000
        || word & 0xfff0_0000 == 0xd530_0000;
    (loads || computes) && is_free(destination(word))
}

/// Effect of an instruction on the stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It moves by so many bytes.
    By(i64),
    /// It becomes the frame pointer, plus so many bytes.
    ToFrame(i64),
    /// Unknown.
    Unknown,
}

fn stack_change(word: u32) -> Change {
    let signed = |value: u32, bits: u32| {
        let shift = 32 - bits;
        i64::from((value << shift).cast_signed() >> shift)
    };
    // Additions of a constant.
    if word & 0x1f80_0000 == 0x1100_0000 {
        let sets_flags = word >> 29 & 1 == 1;
        if destination(word) != STACK_POINTER || sets_flags {
            return Change::By(0);
        }
        let constant = i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
        let change = if word >> 30 & 1 == 1 { -constant } else { constant };
        let is_wide = word >> 31 == 1;
        return match base(word) {
            STACK_POINTER if is_wide => Change::By(change),
            FRAME_POINTER if is_wide => Change::ToFrame(change),
            _ => Change::Unknown,
        };
    }
    // Pairs that are stored or loaded, and change their base.
    if word & 0x3a00_0000 == 0x2800_0000 && word >> 23 & 1 == 1 {
        let is_vector = word >> 26 & 1 == 1;
        // A pair that is stored with a tag.
        if !is_vector && word >> 30 == 1 && word >> 22 & 1 == 0 {
            return Change::Unknown;
        }
        let scale = match (word >> 30, is_vector) {
            (size, true) => 2 + size,
            (0 | 1, false) => 2,
            _ => 3,
        };
        return match base(word) {
            STACK_POINTER => Change::By(signed(word >> 15 & 0x7f, 7) << scale),
            _ => Change::By(0),
        };
    }
    // Single registers, likewise.
    if word & 0x3b20_0400 == 0x3800_0400 {
        return match base(word) {
            STACK_POINTER => Change::By(signed(word >> 12 & 0x1ff, 9)),
            _ => Change::By(0),
        };
    }
    // Additions of an extended register, and logic with a constant, can have the stack pointer as their destination.
    let extended = word & 0x1f20_0000 == 0x0b20_0000 && word >> 29 & 1 == 0;
    let logic = word & 0x1f80_0000 == 0x1200_0000 && word >> 29 & 3 != 3;
    match (extended || logic) && destination(word) == STACK_POINTER {
        true => Change::Unknown,
        false => Change::By(0),
    }
}

/// Offset of the stack pointer, and of the frame pointer where it was derived from it, from the stack pointer at the start.
type Depths = (i64, Option<i64>);

/// The depths after the instruction; `None` where they are unknown.
fn after(word: u32, (stack, frame): Depths) -> Option<Depths> {
    let stack_after = match stack_change(word) {
        Change::By(change) => stack.checked_add(change)?,
        Change::ToFrame(change) => frame?.checked_add(change)?,
        Change::Unknown => return None,
    };
    // add x29, sp, #constant; mov x29, sp is one, too.
    if word & 0xff80_0000 == 0x9100_0000
        && (destination(word), base(word)) == (FRAME_POINTER, STACK_POINTER)
    {
        let constant = i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
        return Some((stack_after, Some(stack + constant)));
    }
    Some((stack_after, frame))
}

/// The code that an instruction hands control to.
enum Next {
    Falls,
    Goes(i64),
    /// To the target or on.
    Forks(i64),
    Returns,
    /// The program ends.
    Traps,
    Unknown,
}

fn next(word: u32) -> Next {
    let target = |value: u32, bits: u32| {
        let shift = 32 - bits;
        i64::from((value << shift).cast_signed() >> shift)
    };
    match word {
        RET => Next::Returns,
        // b.
        _ if word & 0xfc00_0000 == 0x1400_0000 => Next::Goes(target(word & 0x03ff_ffff, 26)),
        _ if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            Next::Forks(target(word >> 5 & 0x7_ffff, 19))
        }
        _ if word & 0x7e00_0000 == 0x3600_0000 => Next::Forks(target(word >> 5 & 0x3fff, 14)),
        // brk and udf.
        _ if word & 0xffe0_001f == 0xd420_0000 || word >> 16 == 0 => Next::Traps,
        // blr comes back.
        _ if word & 0xffff_fc1f == 0xd63f_0000 => Next::Falls,
        // bl comes back, and so do calls of the kernel and what concerns the system.
        _ if word & 0xfc00_0000 == 0x9400_0000
            || word & 0xffe0_001f == 0xd400_0001
            || word >> 24 == 0xd5 =>
        {
            Next::Falls
        }
        // All other branches, of later processors, too.
        _ if word & 0x1c00_0000 == 0x1400_0000 => Next::Unknown,
        _ => Next::Falls,
    }
}

/// The returns that control reaches from the start. `None` where it may leave the function otherwise, come back to its start, or return
/// with another stack pointer.
fn returns(code: &[u32], entry: usize) -> Option<Vec<usize>> {
    let mut known: Vec<Option<Depths>> = vec![None; code.len()];
    let mut left = vec![(0usize, (0i64, None))];
    let mut returns = Vec::new();
    while let Some((index, depths)) = left.pop() {
        match known.get(index)? {
            Some(before) if *before == depths => continue,
            // Paths with other depths meet.
            Some(_) => return None,
            None => {}
        }
        *known.get_mut(index)? = Some(depths);
        let word = *code.get(index)?;
        let depths = after(word, depths)?;
        let to = |offset: i64| {
            let target = usize::try_from(i64::try_from(index).ok()?.checked_add(offset)?).ok()?;
            (target > entry && target < code.len()).then_some((target, depths))
        };
        match next(word) {
            Next::Falls => left.push((index + 1, depths)),
            Next::Goes(offset) => left.push(to(offset)?),
            Next::Forks(offset) => {
                left.push(to(offset)?);
                left.push((index + 1, depths));
            }
            Next::Returns if depths.0 == 0 => returns.push(index),
            Next::Traps => {}
            Next::Returns | Next::Unknown => return None,
        }
    }
    returns.sort_unstable();
    (!returns.is_empty() && returns.len() <= MAX_RETURNS).then_some(returns)
}

#[cfg(test)]
mod tests;
