//! Symbols that point into a function rather than at its beginning.

use object::LittleEndian as LE;
use object::elf::{SHN_UNDEF, STT_FUNC, SectionHeader64, SectionType};

use super::source::Source;
use super::{ElfError, Function, symbol_table, symbols_of};

/// Removes the functions whose address lies within the extent of a function that begins before them, and returns their names.
pub(super) fn remove(
    source: &Source<'_>,
    sections: &[SectionHeader64<LE>],
    tables: &[(SectionType, u64)],
    functions: &mut Vec<Function>,
) -> Result<Vec<String>, ElfError> {
    functions.sort_by_key(|function| function.address);
    let mut inside = vec![false; functions.len()];
    for &(kind, most) in tables {
        if functions.is_empty() {
            break;
        }
        let Some((table, _)) = symbol_table(sections, kind, most)? else { continue };
        symbols_of(source, table, |symbols| {
            let defined = symbols.iter().filter(|symbol| {
                symbol.st_type() == STT_FUNC && symbol.st_shndx.get(LE) != SHN_UNDEF
            });
            for symbol in defined {
                let start = symbol.st_value.get(LE);
                let end = start.saturating_add(symbol.st_size.get(LE));
                let first = functions.partition_point(|function| function.address <= start);
                let within = functions[first..].iter().take_while(|own| own.address < end);
                inside[first..].iter_mut().zip(within).for_each(|(inside, _)| *inside = true);
            }
            Ok(())
        })?;
    }
    let mut inside = inside.into_iter();
    let removed = functions.extract_if(.., |_| inside.next().unwrap_or(false));
    Ok(removed.map(|function| function.symbol).collect())
}
