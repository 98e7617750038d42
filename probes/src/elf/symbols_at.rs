//! Names of functions by file offset.
//!
//! Only symbols with exactly that address count: the preceding function would be a wrong answer.

use std::collections::BTreeMap;
use std::fs::File;

use object::LittleEndian as LE;
use object::elf::{SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FUNC, SectionHeader64, SectionType};

use super::link_address::address_of;
use super::source::Source;
use super::{
    ElfError, defined, file_header, program_headers, section_headers, symbol_table, symbols_of,
};

/// Longest name, in bytes. Kernels made of templates have some hundred.
const LONGEST: u64 = 4096;
/// Largest symbol table, in bytes: nearly three million symbols.
const MAX_TABLE: u64 = 64 << 20;
/// Most symbols examined per address.
const MAX_ALIASES: usize = 8;

/// A symbol at a requested offset.
#[derive(Debug, Clone, Copy)]
struct Found {
    is_local: bool,
    /// File offset of its name, and the rest of the string table.
    name: (u64, u64),
}

/// Names of the functions that start at these file offsets. Exported names are preferred. Does not move the file position.
///
/// # Errors
/// When the file is no ELF64 file for this machine, is damaged, or cannot be read.
pub fn symbols_at(file: &File, offsets: &[u64]) -> Result<BTreeMap<u64, Vec<u8>>, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    let segments = program_headers(&source, &header)?;
    let mut wanted: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
    for address in offsets.iter().filter_map(|&offset| address_of(&segments, offset)) {
        wanted.insert(address, Vec::new());
    }
    if !wanted.is_empty() {
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            search(&source, &sections, kind, &mut wanted)?;
        }
    }
    let mut names = BTreeMap::new();
    for &offset in offsets {
        let found = address_of(&segments, offset).and_then(|address| wanted.get(&address));
        let mut best: Option<(bool, Vec<u8>)> = None;
        for found in found.into_iter().flatten() {
            let candidate = (found.is_local, name_of(&source, found.name)?);
            if !candidate.1.is_empty() && best.as_ref().is_none_or(|best| candidate < *best) {
                best = Some(candidate);
            }
        }
        names.extend(best.map(|(_, name)| (offset, name)));
    }
    Ok(names)
}

fn search(
    source: &Source<'_>,
    sections: &[SectionHeader64<LE>],
    kind: SectionType,
    wanted: &mut BTreeMap<u64, Vec<Found>>,
) -> Result<(), ElfError> {
    let Some((table, strings)) = symbol_table(sections, kind, MAX_TABLE)? else { return Ok(()) };
    symbols_of(source, table, |symbols| {
        for symbol in defined(symbols, STT_FUNC) {
            let Some(found) = wanted.get_mut(&symbol.st_value.get(LE)) else { continue };
            let at = u64::from(symbol.st_name.get(LE));
            let follow = strings.sh_size.get(LE).saturating_sub(at);
            if found.len() < MAX_ALIASES {
                let name = (strings.sh_offset.get(LE).saturating_add(at), follow);
                found.push(Found { is_local: symbol.st_bind() == STB_LOCAL, name });
            }
        }
        Ok(())
    })
}

/// Strips the version that some linkers append to a name.
fn name_of(source: &Source<'_>, (at, follow): (u64, u64)) -> Result<Vec<u8>, ElfError> {
    let mut name = source.read_upto(at, follow.min(LONGEST))?;
    let end = name.iter().position(|&byte| byte == 0 || byte == b'@').unwrap_or(name.len());
    name.truncate(end);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{CODE_ADDRESS, CODE_OFFSET, Function, file_of, function, library};
    use super::*;

    fn names(functions: &[Function], offsets: &[u64]) -> Vec<(u64, String)> {
        let file = file_of(&library(functions, &[0x55; 64], b"id"));
        let names = symbols_at(&file, offsets).unwrap();
        names.into_iter().map(|(at, name)| (at, String::from_utf8(name).unwrap())).collect()
    }

    #[test]
    fn only_a_function_that_begins_there_is_the_one_at_an_offset() {
        let functions = [function("first", 0), function("second", 16)];
        let offsets = [CODE_OFFSET, CODE_OFFSET + 1, CODE_OFFSET + 16, 0, u64::MAX];
        let expected = [(CODE_OFFSET, "first".into()), (CODE_OFFSET + 16, "second".into())];
        assert_eq!(names(&functions, &offsets), expected);
    }

    #[test]
    fn an_exported_name_is_preferred_and_a_version_cut_off() {
        let local =
            Function { name: "a_local", address: CODE_ADDRESS, info: 0x02, section: 1, size: 8 };
        let undefined =
            Function { name: "a", address: CODE_ADDRESS, info: 0x12, section: 0, size: 8 };
        let data = Function { name: "b", address: CODE_ADDRESS, info: 0x11, section: 1, size: 8 };
        let functions = [local, undefined, data, function("exported@@V1", 0)];
        assert_eq!(names(&functions, &[CODE_OFFSET]), [(CODE_OFFSET, "exported".to_owned())]);
    }

    #[test]
    fn a_file_that_is_cut_off_or_no_library_is_an_error() {
        let whole = library(&[function("first", 0)], &[0x55; 64], b"id");
        for length in [0, 10, 100, whole.len() - 10] {
            let cut = file_of(&whole[..length]);
            assert!(symbols_at(&cut, &[CODE_OFFSET]).is_err(), "{length}");
        }
    }
}
