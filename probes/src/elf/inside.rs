//! Symbols that point into a function.

use object::LittleEndian as LE;
use object::elf::{ProgramHeader64, STT_FUNC, SectionHeader64, SectionType};

use super::source::Source;
use super::{ElfError, Function, defined, file_range, symbol_table, symbols_of};

mod instructions;

/// The file's headers, and its symbol tables with their size limits.
pub(super) struct Layout<'a> {
    pub(super) segments: &'a [ProgramHeader64<LE>],
    pub(super) sections: &'a [SectionHeader64<LE>],
    pub(super) tables: &'a [(SectionType, u64)],
}

/// Removes functions that start inside an earlier function, or inside an instruction of one of unknown size; returns their
/// names.
pub(super) fn remove(
    source: &Source<'_>,
    layout: &Layout<'_>,
    functions: &mut Vec<Function>,
) -> Result<Vec<String>, ElfError> {
    functions.sort_by_key(|function| function.address);
    let mut inside = vec![false; functions.len()];
    // Start and size of the function before each address.
    let mut before = vec![(0, 0); functions.len()];
    for &(kind, most) in layout.tables {
        if functions.is_empty() {
            break;
        }
        let Some((table, _)) = symbol_table(layout.sections, kind, most)? else { continue };
        symbols_of(source, table, |symbols| {
            for symbol in defined(symbols, STT_FUNC) {
                let (start, size) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
                let end = start.saturating_add(size);
                let first = functions.partition_point(|function| function.address <= start);
                let within = functions[first..].iter().take_while(|own| own.address < end);
                inside[first..].iter_mut().zip(within).for_each(|(inside, _)| *inside = true);
                // Functions further up start after the first.
                let next = functions.get(first).map(|function| function.address);
                let nearest = functions[first..].iter().take_while(|own| Some(own.address) == next);
                before[first..]
                    .iter_mut()
                    .zip(nearest)
                    .for_each(|(before, _)| *before = (*before).max((start, size)));
            }
            Ok(())
        })?;
    }
    for ((function, inside), (start, size)) in functions.iter().zip(&mut inside).zip(before) {
        if !*inside && size == 0 && start > 0 {
            *inside = is_in_instruction(source, layout.segments, start, function.address)?;
        }
    }
    let mut inside = inside.into_iter();
    let removed = functions.extract_if(.., |_| inside.next().unwrap_or(false));
    Ok(removed.map(|function| function.symbol).collect())
}

/// Returns true if an instruction of the function at `start` spans `address`.
fn is_in_instruction(
    source: &Source<'_>,
    segments: &[ProgramHeader64<LE>],
    start: u64,
    address: u64,
) -> Result<bool, ElfError> {
    let distance = address - start;
    let Some((offset, available)) = file_range(segments, start) else { return Ok(false) };
    if distance >= available || distance > instructions::FARTHEST {
        return Ok(false);
    }
    let code = source.read_upto(offset, available.min(distance + instructions::LONGEST))?;
    Ok(instructions::span(&code, distance))
}
