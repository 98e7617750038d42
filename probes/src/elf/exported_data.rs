//! Addresses of exported data.

use std::collections::BTreeMap;
use std::fs::File;

use object::LittleEndian as LE;
use object::elf::{SHT_DYNSYM, STT_OBJECT};

use super::source::Source;
use super::{ElfError, defined, file_header, section_headers, symbol_table, symbols_of};

/// Limit of the symbol table; the largest libraries need a tenth.
const MAX_TABLE: u64 = 16 << 20;

/// Link-time addresses of the exported data with these names. Does not move the file position.
///
/// # Errors
/// When it is no ELF64 file for this machine, is damaged, or cannot be read.
pub fn exported_data<'n>(
    file: &File,
    names: &[&'n str],
) -> Result<BTreeMap<&'n str, u64>, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    let mut found = BTreeMap::new();
    let Some((table, strings)) = symbol_table(&sections, SHT_DYNSYM, MAX_TABLE)? else {
        return Ok(found);
    };
    let text =
        source.read("the string table", strings.sh_offset.get(LE), strings.sh_size.get(LE))?;
    let name_at = |at: u32| {
        let rest = text.get(usize::try_from(at).ok()?..)?;
        names.iter().find(|name| {
            rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        })
    };
    symbols_of(&source, table, |symbols| {
        for symbol in defined(symbols, STT_OBJECT) {
            if let Some(name) = name_at(symbol.st_name.get(LE)) {
                found.insert(*name, symbol.st_value.get(LE));
            }
        }
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::SYMBOL;
    use super::super::fixture::{CODE_ADDRESS, Function, file_of, function, library};
    use super::*;

    #[test]
    fn data_is_found_by_its_whole_name() {
        let data = |name, info| Function { name, address: CODE_ADDRESS, info, section: 1, size: 8 };
        let missing = Function { section: 0, ..data("missing", 0x11) };
        let symbols = [function("code", 0), data("datum", 0x11), missing];
        let file = file_of(&library(&symbols, &[0x55; 64], b"id"));
        let found = exported_data(&file, &["datum", "dat", "code", "missing"]).unwrap();
        assert_eq!(found, BTreeMap::from([("datum", CODE_ADDRESS)]));
    }

    #[test]
    fn an_enormous_table_of_a_sparse_file_is_refused() {
        let mut bytes = library(&[function("code", 0)], &[0x55; 64], b"id");
        // The size of the section for symbols, which is the last but one.
        let at = bytes.len() - (128 - 32);
        bytes[at..at + 8].copy_from_slice(&(MAX_TABLE + SYMBOL).to_le_bytes());
        let file = file_of(&bytes);
        file.set_len(1 << 30).unwrap();
        let error = exported_data(&file, &["code"]).unwrap_err();
        assert!(matches!(error, ElfError::TooLarge { what: "the symbol table", .. }), "{error}");
    }
}
