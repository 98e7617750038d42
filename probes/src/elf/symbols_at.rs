//! Names of functions: of those that begin at a file offset, and of those that an address is in.
//!
//! The function before an address, which ends before it, would be a wrong answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf::{SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FUNC, SectionHeader64};

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

/// A function that an address is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionAround {
    /// Its link-time addresses.
    pub range: Range<u64>,
    /// Its mangled name.
    pub name: Vec<u8>,
}

/// A symbol of a requested address.
#[derive(Debug, Clone)]
struct Found {
    is_local: bool,
    range: Range<u64>,
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
    let addresses = offsets.iter().filter_map(|&offset| address_of(&segments, offset));
    let mut wanted = addresses.map(|address| (address, Vec::new())).collect();
    search(&source, &sections, &mut wanted, |begin, _| begin..begin.saturating_add(1))?;
    let mut names = BTreeMap::new();
    for &offset in offsets {
        let found = address_of(&segments, offset).and_then(|address| wanted.get(&address));
        let best = best(&source, found.map(Vec::as_slice).unwrap_or_default())?;
        names.extend(best.map(|own| (offset, own.name)));
    }
    Ok(names)
}

/// The functions that these link-time addresses are in, by address. Does not move the file position.
///
/// # Errors
/// When the file is no ELF64 file for this machine, is damaged, or cannot be read.
pub fn functions_around(
    file: &File,
    addresses: &[u64],
) -> Result<BTreeMap<u64, FunctionAround>, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    let mut wanted = addresses.iter().map(|&address| (address, Vec::new())).collect();
    search(&source, &sections, &mut wanted, |begin, size| begin..begin.saturating_add(size))?;
    let named = |(address, found): (u64, Vec<Found>)| {
        best(&source, &found).map(|best| best.map(|own| (address, own)))
    };
    wanted.into_iter().map(named).filter_map(Result::transpose).collect()
}

/// Adds the symbols whose part of the addresses, by begin and size, has wanted ones.
fn search(
    source: &Source<'_>,
    sections: &[SectionHeader64<LE>],
    wanted: &mut BTreeMap<u64, Vec<Found>>,
    part: impl Fn(u64, u64) -> Range<u64>,
) -> Result<(), ElfError> {
    if wanted.is_empty() {
        return Ok(());
    }
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Some((table, strings)) = symbol_table(sections, kind, MAX_TABLE)? else { continue };
        symbols_of(source, table, |symbols| {
            for symbol in defined(symbols, STT_FUNC) {
                let range = part(symbol.st_value.get(LE), symbol.st_size.get(LE));
                for (_, found) in wanted.range_mut(range.clone()) {
                    let at = u64::from(symbol.st_name.get(LE));
                    let follow = strings.sh_size.get(LE).saturating_sub(at);
                    if found.len() < MAX_ALIASES {
                        let name = (strings.sh_offset.get(LE).saturating_add(at), follow);
                        let is_local = symbol.st_bind() == STB_LOCAL;
                        found.push(Found { is_local, range: range.clone(), name });
                    }
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The first of the exported names, else of the others.
fn best(source: &Source<'_>, found: &[Found]) -> Result<Option<FunctionAround>, ElfError> {
    let candidate = |own: &Found| Ok((own.is_local, name_of(source, own.name)?, own.range.clone()));
    let candidates = found.iter().map(candidate).collect::<Result<Vec<_>, ElfError>>()?;
    let named = candidates.into_iter().filter(|(_, name, _)| !name.is_empty());
    let best = named.min_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    Ok(best.map(|(_, name, range)| FunctionAround { range, name }))
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
    fn an_address_is_in_the_function_that_covers_it_and_in_none_between_two() {
        let functions = [function("first", 0), function("second", 16)];
        let file = file_of(&library(&functions, &[0x55; 64], b"id"));
        let addresses = [0, 7, 8, 16, 23, 24].map(|at| CODE_ADDRESS + at);
        let around = functions_around(&file, &addresses).unwrap();
        let found = addresses.map(|at| around.get(&at).map(|own| &own.name[..]));
        let [first, second] = [Some(&b"first"[..]), Some(&b"second"[..])];
        assert_eq!(found, [first, first, None, second, second, None]);
        assert_eq!(around[&addresses[4]].range, CODE_ADDRESS + 16..CODE_ADDRESS + 24);
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
