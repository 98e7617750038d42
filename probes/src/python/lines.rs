//! Line numbers from the line tables of code objects, whose format depends on the version.

/// Format of a line table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineTable {
    /// Pairs of byte and line increments: until 3.9.
    Steps,
    /// Pairs of a length in bytes and a line increment: 3.10.
    Ranges,
    /// Entries of varying length that include lines: since 3.11.
    Locations,
}

/// Marks an increment without line.
const NO_LINE: i8 = -128;

impl LineTable {
    /// The line of the instruction at this byte of the code; `None` if the table has none.
    pub(super) fn line(self, table: &[u8], first: i64, at: u64) -> Option<u32> {
        let line = match self {
            Self::Steps => steps(table, first, at),
            Self::Ranges => ranges(table, first, at),
            Self::Locations => locations(table, first, at),
        };
        line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
    }
}

fn steps(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let (mut address, mut line) = (0u64, first);
    for pair in table.chunks_exact(2) {
        address += u64::from(pair[0]);
        if address > at {
            break;
        }
        line += i64::from(pair[1].cast_signed());
    }
    Some(line)
}

fn ranges(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let (mut end, mut line) = (0u64, first);
    for pair in table.chunks_exact(2) {
        end += u64::from(pair[0]);
        let step = pair[1].cast_signed();
        if step != NO_LINE {
            line += i64::from(step);
        }
        if at < end {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

/// A little-endian number of six bits per byte. Longer ones are truncated.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let (mut value, mut shift) = (0i64, 0);
    loop {
        let byte = bytes.next()?;
        if shift < 60 {
            value |= i64::from(byte & 63) << shift;
        }
        shift = (shift + 6).min(60);
        if byte & 64 == 0 {
            return Some(value);
        }
    }
}

/// Reads a `number` that has its sign in the lowest bit.
fn signed_number(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = number(bytes)?;
    Some(if value & 1 == 1 { -(value >> 1) } else { value >> 1 })
}

fn locations(table: &[u8], first: i64, at: u64) -> Option<i64> {
    let mut bytes = table.iter().copied().peekable();
    let (mut end, mut line) = (0u64, first);
    while let Some(head) = bytes.next() {
        let kind = (head >> 3) & 15;
        // Code units are two bytes.
        end += 2 * (u64::from(head & 7) + 1);
        let step = match kind {
            10..=12 => i64::from(kind - 10),
            13 | 14 => signed_number(&mut bytes)?,
            _ => 0,
        };
        line = line.saturating_add(step);
        // Skips columns. Only the first byte of an entry has its highest bit set.
        while bytes.next_if(|byte| byte & 128 == 0).is_some() {}
        if at < end {
            return (kind != 15).then_some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(kind: LineTable, table: &[u8], code: u64) -> Vec<Option<u32>> {
        (0..code).step_by(2).map(|at| kind.line(table, 10, at)).collect()
    }

    #[test]
    fn steps_add_up_to_the_line_of_each_instruction() {
        // Line 10 for four bytes, 11 for two, then back to 9.
        let found = lines(LineTable::Steps, &[0, 0, 4, 1, 2, 0xfe], 8);
        assert_eq!(found, [Some(10), Some(10), Some(11), Some(9)]);
    }

    #[test]
    fn a_range_may_have_no_line() {
        let found = lines(LineTable::Ranges, &[4, 1, 2, 0x80, 2, 2], 10);
        assert_eq!(found, [Some(11), Some(11), None, Some(13), None]);
    }

    #[test]
    fn locations_tell_lines_in_short_and_in_long() {
        let short = 0x80 | 1; // Column form 0 of two units, one more byte.
        let next = 0x80 | 11 << 3; // One line on, two columns.
        let long = 0x80 | 14 << 3; // Any step, an end line and columns.
        let none = 0x80 | 15 << 3;
        let alone = 0x80 | 13 << 3; // A step of minus 40.
        let table = [short, 5, next, 3, 4, long, 0x40 | 8, 1, 0, 7, 9, none, alone, 0x40 | 17, 1];
        let found = lines(LineTable::Locations, &table, 14);
        let expected = [Some(10), Some(10), Some(11), Some(47), None, Some(7), None];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(
            table in prop::collection::vec(any::<u8>(), 0..300), first in any::<i32>(), at in any::<u64>(),
        ) {
            for kind in [LineTable::Steps, LineTable::Ranges, LineTable::Locations] {
                kind.line(&table, first.into(), at);
            }
        }
    }
}
