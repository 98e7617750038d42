//! Copies a file's symbol and line tables.
//!
//! Symbolisers map files, and truncation of a mapped file kills the reader with SIGBUS. They get this instead: a private
//! in-memory ELF file of bounded size, with the original's tables and no references to other files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use object::LittleEndian as LE;
use object::elf::{
    FileHeader64, SHF_COMPRESSED, SHT_DYNSYM, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB,
    SectionHeader64, SymbolSection,
};
use object::pod::{bytes_of, from_bytes};

use super::source::Source;
use super::{ElfError, SECTION_HEADER, file_header, limit, section_headers};

/// Limit of symbol tables and names per file; the largest libraries need about half.
const MAX_SYMBOLS: u64 = 256 << 20;
/// Limit of line tables and related sections. Larger files are copied without lines, as reading them would be slow.
const MAX_LINES: u64 = 64 << 20;
/// Limit of section names.
const MAX_NAMES: u64 = 1 << 20;
/// Most sections: higher numbers have special meanings.
const MAX_SECTIONS: u64 = 0xfe00;
/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;
/// Alignment of a table.
const ALIGNMENT: u64 = 16;
/// Sections required for lines.
const LINES: [&str; 2] = [".debug_info", ".debug_line"];
/// Optional sections for lines.
const BESIDE_LINES: [&str; 8] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_aranges",
];

/// The tables of a file.
#[derive(Debug)]
pub struct SymbolTables {
    /// An in-memory ELF file without code.
    pub file: File,
    /// Its length in bytes.
    pub bytes: u64,
    /// True if it has lines.
    pub has_lines: bool,
}

/// A copied section and its name.
struct Kept {
    index: usize,
    name: &'static str,
}

/// Copies the tables of `file`. Does not move the file position.
///
/// Line tables are copied on request: their contents, not their size, determine the memory that a symboliser needs.
///
/// # Errors
/// When the file is not ELF64 for this machine, is malformed or too large, or cannot be read, and when out of memory.
pub fn symbol_tables(file: &File, with_lines: bool) -> Result<SymbolTables, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    limit("the section header table", sections.len() as u64, MAX_SECTIONS)?;
    let mut kept = symbols(&sections)?;
    let lines = if with_lines { lines(&source, &header, &sections)? } else { Vec::new() };
    let has_lines = !lines.is_empty();
    kept.extend(lines);
    let (file, bytes) = write(&source, header, &sections, &kept)?;
    Ok(SymbolTables { file, bytes, has_lines })
}

/// The symbol tables, each with its names.
fn symbols(sections: &[SectionHeader64<LE>]) -> Result<Vec<Kept>, ElfError> {
    let (mut kept, mut size) = (Vec::new(), 0u64);
    for (kind, name, names) in
        [(SHT_DYNSYM, ".dynsym", ".dynstr"), (SHT_SYMTAB, ".symtab", ".strtab")]
    {
        let found = sections.iter().position(|section| section.sh_type.get(LE) == kind);
        let Some((index, table)) = found.and_then(|at| Some((at, sections.get(at)?))) else {
            continue;
        };
        let linked = usize::try_from(table.sh_link.get(LE)).unwrap_or(usize::MAX);
        let strings = sections
            .get(linked)
            .filter(|section| section.sh_type.get(LE) == SHT_STRTAB)
            .ok_or(ElfError::Malformed { what: "a symbol table without string table" })?;
        size = size.saturating_add(table.sh_size.get(LE)).saturating_add(strings.sh_size.get(LE));
        // Two tables may share their names.
        if kept.iter().all(|own: &Kept| own.index != linked) {
            kept.push(Kept { index: linked, name: names });
        }
        kept.push(Kept { index, name });
    }
    limit("the symbol tables", size, MAX_SYMBOLS)?;
    Ok(kept)
}

/// The line tables; none if some are missing, compressed, or too large together.
fn lines(
    source: &Source<'_>,
    header: &FileHeader64<LE>,
    sections: &[SectionHeader64<LE>],
) -> Result<Vec<Kept>, ElfError> {
    let Some(table) = sections.get(usize::from(header.e_shstrndx.get(LE).0)) else {
        return Ok(Vec::new());
    };
    let size = table.sh_size.get(LE).min(MAX_NAMES);
    let names = source.read_upto(table.sh_offset.get(LE), size)?;
    let (mut kept, mut size) = (Vec::<Kept>::new(), 0u64);
    for (index, section) in sections.iter().enumerate() {
        if section.sh_type.get(LE) != SHT_PROGBITS {
            continue;
        }
        let at = usize::try_from(section.sh_name.get(LE)).unwrap_or(usize::MAX);
        let name = names.get(at..).and_then(|rest| rest.split(|&byte| byte == 0).next());
        let known = LINES.iter().chain(&BESIDE_LINES).find(|own| Some(own.as_bytes()) == name);
        let Some(&name) = known else { continue };
        if section.sh_flags.get(LE).0 & SHF_COMPRESSED.0 != 0 {
            return Ok(Vec::new());
        }
        size = size.saturating_add(section.sh_size.get(LE));
        if kept.iter().all(|own| own.name != name) {
            kept.push(Kept { index, name });
        }
    }
    let is_whole = LINES.iter().all(|name| kept.iter().any(|own| own.name == *name));
    if !is_whole || size > MAX_LINES {
        kept.clear();
    }
    Ok(kept)
}

/// Writes the sections to an in-memory file. Section numbers stay the same, as others refer to them.
fn write(
    source: &Source<'_>,
    mut header: FileHeader64<LE>,
    sections: &[SectionHeader64<LE>],
    kept: &[Kept],
) -> Result<(File, u64), ElfError> {
    let copy = File::from(memfd_create("symbols", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
    let blank = [0; SECTION_HEADER as usize];
    let (blank, _) = from_bytes::<SectionHeader64<LE>>(&blank)
        .map_err(|()| ElfError::Malformed { what: "an empty section header" })?;
    let mut table = vec![*blank; sections.len() + 1];
    let table_at = size_of_val(&header) as u64;
    let mut at = table_at + table.len() as u64 * SECTION_HEADER;
    let mut names = vec![0];
    for &Kept { index, name } in kept {
        let Some((from, to)) = sections.get(index).zip(table.get_mut(index)) else { continue };
        at = at.next_multiple_of(ALIGNMENT);
        *to = *from;
        to.sh_name.set(LE, u32::try_from(names.len()).unwrap_or(0));
        to.sh_addr.set(LE, 0);
        to.sh_offset.set(LE, at);
        names.extend(name.as_bytes());
        names.push(0);
        let (mut next, mut left) = (from.sh_offset.get(LE), from.sh_size.get(LE));
        while left > 0 {
            let piece = source.read("a table", next, left.min(PIECE))?;
            copy.write_all_at(&piece, at)?;
            let read = piece.len() as u64;
            (next, at, left) = (next.saturating_add(read), at + read, left - read);
        }
    }
    copy.write_all_at(&names, at)?;
    if let Some(own) = table.last_mut() {
        own.sh_type.set(LE, SHT_STRTAB);
        own.sh_offset.set(LE, at);
        own.sh_size.set(LE, names.len() as u64);
    }
    header.e_phoff.set(LE, 0);
    header.e_phnum.set(LE, 0);
    header.e_shoff.set(LE, table_at);
    header.e_shnum.set(LE, u16::try_from(table.len()).unwrap_or(0));
    header.e_shstrndx.set(LE, SymbolSection(u16::try_from(sections.len()).unwrap_or(0)));
    copy.write_all_at(bytes_of(&header), 0)?;
    let headers: Vec<u8> = table.iter().flat_map(|own| bytes_of(own).to_vec()).collect();
    copy.write_all_at(&headers, table_at)?;
    Ok((copy, at + names.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{file_of, function, library};
    use super::*;
    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSymbol as _};

    fn bytes(file: &File, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn the_copy_has_the_symbols_of_the_file_and_none_of_its_code() {
        let code = [0x55; 4096];
        let original = library(&[function("first", 0), function("second", 16)], &code, b"id");
        let copy = symbol_tables(&file_of(&original), true).unwrap();
        assert!(!copy.has_lines);
        assert!(copy.bytes < 1024, "{} bytes", copy.bytes);
        let bytes = bytes(&copy.file, copy.bytes);
        let read = ElfFile64::<LE>::parse(&*bytes).unwrap();
        let names: Vec<_> = read.dynamic_symbols().map(|own| own.name().unwrap()).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn lines_come_along_where_the_file_has_them() {
        let own = File::open("/proc/self/exe").unwrap();
        let copy = symbol_tables(&own, true).unwrap();
        let bytes = bytes(&copy.file, copy.bytes);
        let read = ElfFile64::<LE>::parse(&*bytes).unwrap();
        assert!(read.symbols().any(|symbol| symbol.name() == Ok("main")));
        assert_eq!(copy.has_lines, read.section_by_name(".debug_line").is_some());
        assert!(read.section_by_name(".text").is_none());
        assert!(read.section_by_name(".gnu_debuglink").is_none());
        let without = symbol_tables(&own, false).unwrap();
        assert!(!without.has_lines && without.bytes < copy.bytes);
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        let whole = library(&[function("first", 0)], &[0x55; 64], b"id");
        for length in [0, 10, 100, whole.len() - 10] {
            assert!(symbol_tables(&file_of(&whole[..length]), true).is_err(), "{length}");
        }
    }
}
