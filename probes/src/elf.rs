//! Where to probe a library: ELF64 symbols that perform a traced op, as file offsets.
//!
//! Files are untrusted: tables are read in bounded pieces, and memory depends on the number of traced names, never on sizes
//! stated by the file.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use gpucause_abi::op::OpId;
use object::LittleEndian as LE;
use object::elf::{
    EM_AARCH64, EM_X86_64, FileHeader64, Machine, PF_X, PT_LOAD, PT_NOTE, ProgramHeader64,
    SHN_UNDEF, SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB, STT_FUNC, SectionHeader64, SectionType, Sym64,
    SymbolType,
};
use thiserror::Error;

mod arm64;
mod exported_data;
mod inside;
mod jump_stub;
mod kernel_handles;
mod link_address;
mod names;
mod note;
mod place;
mod prologue;
mod source;
mod symbol_tables;
mod symbols_at;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use exported_data::exported_data;
pub use kernel_handles::{KernelHandle, kernel_handles};
pub use link_address::LinkAddresses;
use names::{TracedName, traced_names};
use place::place;
pub use prologue::Prologue;
use source::Source;
pub use symbol_tables::{SymbolTables, symbol_tables};
pub use symbols_at::{FunctionAround, functions_around, symbols_at};

/// A file cannot be probed. Messages leave the path to the caller.
#[derive(Debug, Error)]
pub enum ElfError {
    /// Does not begin with the ELF magic.
    #[error("not an ELF file")]
    NotElf,
    /// A table or field lies beyond the end of the file.
    #[error("{what} is truncated: {end} bytes needed, the file has {len}")]
    Truncated {
        /// The truncated part.
        what: &'static str,
        /// Its end, in bytes.
        end: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A valid ELF file that cannot run or be probed here.
    #[error("{what} {value} is not supported, expected {expected}")]
    Unsupported {
        /// Header field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The supported value.
        expected: &'static str,
    },
    /// Contradicts itself.
    #[error("malformed: {what}")]
    Malformed {
        /// The contradiction.
        what: &'static str,
    },
    /// A table above the limit, which no real library comes near.
    #[error("{what} has {size}, more than the limit of {limit}")]
    TooLarge {
        /// The table.
        what: &'static str,
        /// Its size, in bytes or entries.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An I/O error.
    #[error("cannot read: {0}")]
    Read(#[from] io::Error),
}

/// A function to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSite {
    /// The op.
    pub op: OpId,
    /// Exported name, without symbol version.
    pub symbol: String,
    /// File offset of the probed instruction, in bytes.
    pub offset: u64,
    /// Bytes of stack that the function has reserved there.
    pub reserved: u32,
    /// File offsets of the instructions that calls end with, in bytes; empty where the address to return to can be changed at `offset`.
    pub returns: Vec<u64>,
    /// Cost of a hit.
    pub prologue: Prologue,
}

/// The probe sites of a library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LibraryImage {
    /// GNU build id in hex.
    pub build_id: Option<String>,
    /// Functions to probe, ordered by offset, each offset once.
    pub sites: Vec<ProbeSite>,
    /// Functions that get no probe, as the kernel would single-step each hit.
    pub left_out: Vec<String>,
    /// Traced functions outside every executable segment.
    pub unplaced: usize,
    /// Traced symbols that point into another function: a probe there could hit the middle of an instruction.
    pub misplaced: Vec<String>,
    /// Traced functions that share code with a site of another op, and count as that op.
    pub folded: usize,
}

impl LibraryImage {
    /// Sites where a hit is single-stepped: about ten times the cost.
    pub fn slow_sites(&self) -> impl Iterator<Item = &ProbeSite> {
        self.sites.iter().filter(|site| site.prologue == Prologue::SingleStepped)
    }

    /// Leaves out the functions where a hit would be single-stepped.
    #[must_use]
    pub fn without_single_steps(mut self) -> Self {
        self.left_out.extend(self.slow_sites().map(|site| site.symbol.clone()).collect::<Vec<_>>());
        self.sites.retain(|site| site.prologue != Prologue::SingleStepped);
        self
    }
}

const SECTION_HEADER: u64 = size_of::<SectionHeader64<LE>>() as u64;
const PROGRAM_HEADER: u64 = size_of::<ProgramHeader64<LE>>() as u64;
const SYMBOL: u64 = size_of::<Sym64<LE>>() as u64;
/// Most symbols in memory at a time.
const SYMBOLS_AT_ONCE: u64 = 4096;
const MAX_PROGRAM_HEADERS: u64 = 1024;
/// Largest string or symbol table. Executables with full debug symbols need about a tenth.
const MAX_TABLE: u64 = 512 << 20;
/// A suffix in every CUDA runtime.
const EVERY_RUNTIME: &[u8] = b"cudaLaunchKernel\0";
/// Bytes searched at a time.
const PIECE: u64 = 1 << 20;
/// The limit for modules, whose search takes 10 ms at most. CuPy's need a twentieth.
const MAX_MODULE_TABLE: u64 = 16 << 20;
/// Most traced functions per file; libcuda has a few hundred.
const MAX_FUNCTIONS: usize = 2_048;

const HOST_MACHINE: Option<Machine> = if cfg!(target_arch = "x86_64") {
    Some(EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(EM_AARCH64)
} else {
    None
};

/// A traced function, by address.
struct Function {
    address: u64,
    op: OpId,
    symbol: String,
    /// In bytes; 0 where the file does not say.
    size: u64,
}

/// Finds the functions of `file` to probe. Does not move the file position; reads only headers, symbol tables and the first
/// instructions of each function.
///
/// # Errors
/// When the file is not ELF64 for this machine, is malformed, or cannot be read.
pub fn read_library(file: &File) -> Result<LibraryImage, ElfError> {
    read(file, &[(SHT_DYNSYM, MAX_TABLE), (SHT_SYMTAB, MAX_TABLE)], Stubs::Probed)
}

/// Finds functions like [`read_library`] in a file that may have the CUDA runtime linked in, without those that only hand calls to a library.
///
/// # Errors
/// When the file is not ELF64 for this machine, is malformed, or cannot be read.
pub fn read_program(file: &File) -> Result<LibraryImage, ElfError> {
    read(file, &[(SHT_DYNSYM, MAX_TABLE), (SHT_SYMTAB, MAX_TABLE)], Stubs::LeftOut)
}

/// Finds functions like [`read_program`], but only local ones and in smaller files: any module may have the CUDA runtime
/// linked in, so a host has many to search.
///
/// # Errors
/// When the file is not ELF64 for this machine, is malformed, or cannot be read.
pub fn read_module(file: &File) -> Result<LibraryImage, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    if let Some((_, strings)) = symbol_table(&sections, SHT_SYMTAB, MAX_MODULE_TABLE)? {
        limit("the string table", strings.sh_size.get(LE), MAX_MODULE_TABLE)?;
        if contains(&source, strings, EVERY_RUNTIME)? {
            return read(file, &[(SHT_SYMTAB, MAX_MODULE_TABLE)], Stubs::LeftOut);
        }
    }
    Ok(LibraryImage::default())
}

/// Returns true if a section contains these bytes.
fn contains(source: &Source<'_>, section: &Section, wanted: &[u8]) -> Result<bool, ElfError> {
    let size = section.sh_size.get(LE);
    let mut done = 0;
    while done < size {
        // Pieces overlap, so that a match is not split.
        let piece = PIECE.min(size - done);
        let bytes = source.read(
            "the string table",
            section.sh_offset.get(LE).saturating_add(done),
            piece,
        )?;
        // SAFETY: both pointers go with the lengths of what they point to.
        let found = unsafe {
            libc::memmem(bytes.as_ptr().cast(), bytes.len(), wanted.as_ptr().cast(), wanted.len())
        };
        if !found.is_null() {
            return Ok(true);
        }
        done += if piece == PIECE { piece - wanted.len() as u64 } else { piece };
    }
    Ok(false)
}

/// Functions that only hand their calls to a pointer are probed or left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stubs {
    /// NVIDIA's driver exports such.
    Probed,
    LeftOut,
}

fn read(
    file: &File,
    tables: &[(SectionType, u64)],
    stubs: Stubs,
) -> Result<LibraryImage, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    let segments = program_headers(&source, &header)?;
    let mut functions = Vec::new();
    for &(kind, most) in tables {
        read_symbols(&source, &sections, (kind, most), &mut functions)?;
    }
    let layout = inside::Layout { segments: &segments, sections: &sections, tables };
    if stubs == Stubs::LeftOut {
        leave_out_stubs(&source, &segments, &mut functions)?;
    }
    let misplaced = inside::remove(&source, &layout, &mut functions)?;
    let build_id = build_id(&source, &segments)?;
    let mut image = LibraryImage { build_id, misplaced, ..LibraryImage::default() };
    place(&source, &segments, functions, &mut image)?;
    Ok(image)
}

fn file_header(source: &Source<'_>) -> Result<FileHeader64<LE>, ElfError> {
    let magic = source.read_upto(0, 4)?;
    if magic != object::elf::ELFMAG {
        return Err(ElfError::NotElf);
    }
    let header: FileHeader64<LE> = source.read_one("the file header", 0)?;
    let expect = |what, value: u64, wanted: u64, expected| {
        if value == wanted { Ok(()) } else { Err(ElfError::Unsupported { what, value, expected }) }
    };
    let ident = source.read("the file header", 0, 6)?;
    expect("ELF class", ident[4].into(), 2, "2 (64-bit)")?;
    expect("ELF byte order", ident[5].into(), 1, "1 (little-endian)")?;
    if let Some(machine) = HOST_MACHINE {
        let value = header.e_machine.get(LE).0.into();
        expect("ELF machine", value, machine.0.into(), "this host's")?;
    }
    Ok(header)
}

fn section_headers(
    source: &Source<'_>,
    header: &FileHeader64<LE>,
) -> Result<Vec<SectionHeader64<LE>>, ElfError> {
    let offset = header.e_shoff.get(LE);
    if offset == 0 {
        return Ok(Vec::new());
    }
    if u64::from(header.e_shentsize.get(LE)) != SECTION_HEADER {
        return Err(ElfError::Malformed { what: "the size of a section header is not 64" });
    }
    // Zero means that the number is in section 0; only object files do that.
    source.read_many("the section header table", offset, header.e_shnum.get(LE).into())
}

fn program_headers(
    source: &Source<'_>,
    header: &FileHeader64<LE>,
) -> Result<Vec<ProgramHeader64<LE>>, ElfError> {
    let count = u64::from(header.e_phnum.get(LE));
    if count == 0 {
        return Ok(Vec::new());
    }
    if u64::from(header.e_phentsize.get(LE)) != PROGRAM_HEADER {
        return Err(ElfError::Malformed { what: "the size of a program header is not 56" });
    }
    limit("the program header table", count, MAX_PROGRAM_HEADERS)?;
    source.read_many("the program header table", header.e_phoff.get(LE), count)
}

fn limit(what: &'static str, size: u64, limit: u64) -> Result<(), ElfError> {
    if size > limit { Err(ElfError::TooLarge { what, size, limit }) } else { Ok(()) }
}

type Section = SectionHeader64<LE>;

/// The file's symbol table of one kind, up to a size, and its string table.
fn symbol_table(
    sections: &[SectionHeader64<LE>],
    kind: SectionType,
    most: u64,
) -> Result<Option<(&Section, &Section)>, ElfError> {
    let Some(table) = sections.iter().find(|section| section.sh_type.get(LE) == kind) else {
        return Ok(None);
    };
    let strings = usize::try_from(table.sh_link.get(LE))
        .ok()
        .and_then(|index| sections.get(index))
        .filter(|section| section.sh_type.get(LE) == SHT_STRTAB)
        .ok_or(ElfError::Malformed { what: "a symbol table without string table" })?;
    if table.sh_entsize.get(LE) != SYMBOL {
        return Err(ElfError::Malformed { what: "the size of a symbol is not 24" });
    }
    limit("the symbol table", table.sh_size.get(LE), most)?;
    Ok(Some((table, strings)))
}

/// Adds the traced functions of one kind of symbol table.
fn read_symbols(
    source: &Source<'_>,
    sections: &[SectionHeader64<LE>],
    (kind, most): (SectionType, u64),
    functions: &mut Vec<Function>,
) -> Result<(), ElfError> {
    let Some((table, strings)) = symbol_table(sections, kind, most)? else { return Ok(()) };
    limit("the string table", strings.sh_size.get(LE), most)?;
    let names = traced_names(source, strings.sh_offset.get(LE), strings.sh_size.get(LE))?;
    // Ordinary programs end here, before the larger table is read.
    if names.is_empty() {
        return Ok(());
    }
    symbols_of(source, table, |symbols| collect(symbols, &names, functions))
}

/// Reads a symbol table in pieces.
fn symbols_of(
    source: &Source<'_>,
    table: &SectionHeader64<LE>,
    mut take: impl FnMut(&[Sym64<LE>]) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    let count = table.sh_size.get(LE) / SYMBOL;
    let mut next = 0;
    while next < count {
        let batch = SYMBOLS_AT_ONCE.min(count - next);
        let offset = table.sh_offset.get(LE).saturating_add(next * SYMBOL);
        let symbols: Vec<Sym64<LE>> = source.read_many("the symbol table", offset, batch)?;
        take(&symbols)?;
        next += batch;
    }
    Ok(())
}

/// The symbols of one kind that are defined in the file.
fn defined(symbols: &[Sym64<LE>], kind: SymbolType) -> impl Iterator<Item = &Sym64<LE>> {
    symbols
        .iter()
        .filter(move |symbol| symbol.st_type() == kind && symbol.st_shndx.get(LE) != SHN_UNDEF)
}

/// Adds the defined functions with traced names, of any binding and version.
fn collect(
    symbols: &[Sym64<LE>],
    names: &HashMap<u64, TracedName>,
    functions: &mut Vec<Function>,
) -> Result<(), ElfError> {
    for symbol in defined(symbols, STT_FUNC) {
        let Some(name) = names.get(&u64::from(symbol.st_name.get(LE))) else { continue };
        if functions.len() >= MAX_FUNCTIONS {
            let (size, limit) = (functions.len() as u64 + 1, MAX_FUNCTIONS as u64);
            return Err(ElfError::TooLarge { what: "the list of traced functions", size, limit });
        }
        functions.push(Function {
            address: symbol.st_value.get(LE),
            op: name.op,
            symbol: name.symbol.clone(),
            size: symbol.st_size.get(LE),
        });
    }
    Ok(())
}

fn leave_out_stubs(
    source: &Source<'_>,
    segments: &[ProgramHeader64<LE>],
    functions: &mut Vec<Function>,
) -> Result<(), ElfError> {
    let mut kept = Vec::with_capacity(functions.len());
    for function in functions.drain(..) {
        let place = file_range(segments, function.address);
        let code = match place.zip(jump_stub::examined(function.size)) {
            Some(((offset, available), most)) => source.read_upto(offset, available.min(most))?,
            None => Vec::new(),
        };
        if !jump_stub::is_stub(&code, function.size > 0) {
            kept.push(function);
        }
    }
    *functions = kept;
    Ok(())
}

fn build_id(
    source: &Source<'_>,
    segments: &[ProgramHeader64<LE>],
) -> Result<Option<String>, ElfError> {
    for segment in segments.iter().filter(|segment| segment.p_type.get(LE) == PT_NOTE) {
        let size = segment.p_filesz.get(LE).min(note::MAX_NOTES);
        let notes = source.read("the notes", segment.p_offset.get(LE), size)?;
        if let Some(id) = note::build_id(&notes, segment.p_align.get(LE)) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// File offset of an address in an executable segment, and the bytes that follow in the segment.
fn file_range(segments: &[ProgramHeader64<LE>], address: u64) -> Option<(u64, u64)> {
    code(segments).find_map(|segment| {
        let within = address.checked_sub(segment.p_vaddr.get(LE))?;
        let available = segment.p_filesz.get(LE).checked_sub(within).filter(|n| *n > 0)?;
        let offset = segment.p_offset.get(LE).checked_add(within)?;
        // The kernel takes signed offsets.
        i64::try_from(offset).ok().filter(|o| *o < i64::MAX - 16)?;
        Some((offset, available))
    })
}

/// The executable segments.
fn code(segments: &[ProgramHeader64<LE>]) -> impl Iterator<Item = &ProgramHeader64<LE>> {
    segments
        .iter()
        .filter(|own| own.p_type.get(LE) == PT_LOAD && own.p_flags.get(LE).0 & PF_X.0 != 0)
}
