//! Where a program keeps the handles of its kernels.
//!
//! What nvcc 13 makes for a kernel on the host asks once for its handle and keeps it in a local static variable, `__handle`. A
//! handle that was taken before the probes came can be found there.

use std::collections::HashMap;
use std::fs::File;

use object::LittleEndian as LE;
use object::elf::{SHT_SYMTAB, STT_OBJECT};

use super::source::Source;
use super::{ElfError, MAX_TABLE, PIECE, Section, contains, file_header, section_headers};
use super::{symbol_table, symbols_of};

/// The end of the mangled name of a variable `__handle` in a function.
const SUFFIX: &[u8] = b"E8__handle";
const TERMINATED: &[u8] = b"E8__handle\0";
/// Kernels of one file. The largest libraries have a third of that.
const MAX_KERNELS: usize = 65_536;
/// Longest name that is kept, in bytes.
const LONGEST: usize = 2048;
const STUB: &[u8] = b"__device_stub_";

/// The link-time address of a variable, with the name of the function on the host that stands for the kernel.
pub type KernelHandle = (u64, Box<[u8]>);

/// The variables of a file. Moves no file position.
///
/// # Errors
/// When it is no ELF64 file for this machine, is damaged, or cannot be read.
pub fn kernel_handles(file: &File) -> Result<Vec<KernelHandle>, ElfError> {
    let source = Source::new(file)?;
    let header = file_header(&source)?;
    let sections = section_headers(&source, &header)?;
    let mut found = Vec::new();
    let Some((table, strings)) = symbol_table(&sections, SHT_SYMTAB, MAX_TABLE)? else {
        return Ok(found);
    };
    super::limit("the string table", strings.sh_size.get(LE), MAX_TABLE)?;
    if !contains(&source, strings, TERMINATED)? {
        return Ok(found);
    }
    let names = names(&source, strings)?;
    symbols_of(&source, table, |symbols| {
        for symbol in symbols.iter().filter(|symbol| symbol.st_type() == STT_OBJECT) {
            if let Some(name) = names.get(&symbol.st_name.get(LE))
                && found.len() < MAX_KERNELS
            {
                found.push((symbol.st_value.get(LE), name.clone()));
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// The functions of all such variables, by where the variable's name is in the table.
fn names(source: &Source<'_>, strings: &Section) -> Result<HashMap<u32, Box<[u8]>>, ElfError> {
    let (offset, size) = (strings.sh_offset.get(LE), strings.sh_size.get(LE));
    let mut names = HashMap::new();
    // What the last piece left unfinished, and where in the table it begins.
    let (mut open, mut open_at, mut done): (Vec<u8>, u64, u64) = (Vec::new(), 0, 0);
    while done < size && names.len() < MAX_KERNELS {
        let piece = PIECE.min(size - done);
        open.extend(source.read("the string table", offset.saturating_add(done), piece)?);
        done += piece;
        let complete = open.iter().rposition(|&b| b == 0).map_or(0, |last| last + 1);
        let mut at = open_at;
        for string in open[..complete].split_inclusive(|&b| b == 0) {
            let name = string.strip_suffix(b"\0").and_then(function_of);
            names.extend(name.and_then(|name| Some((u32::try_from(at).ok()?, name.into()))));
            at += string.len() as u64;
        }
        // A string longer than a piece is no name.
        let drop = if complete == 0 { open.len() } else { complete };
        open.drain(..drop);
        open_at += drop as u64;
    }
    Ok(names)
}

/// The function that the variable belongs to: the stub of a kernel by its plain name, others mangled.
fn function_of(variable: &[u8]) -> Option<Vec<u8>> {
    let encoding = variable.strip_suffix(SUFFIX)?.strip_prefix(b"_ZZ")?;
    if encoding.len() > LONGEST {
        return None;
    }
    let plain = encoding.strip_prefix(b"L").unwrap_or(encoding);
    let digits = plain.iter().take_while(|b| b.is_ascii_digit()).count();
    let length = std::str::from_utf8(&plain[..digits]).ok().and_then(|text| text.parse().ok());
    let name = length.and_then(|length: usize| plain.get(digits..)?.get(..length));
    match name.filter(|name| name.starts_with(STUB)) {
        Some(stub) => Some(stub.to_vec()),
        None => Some([b"_Z", encoding].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_names_its_function() {
        let function =
            |name: &str| function_of(name.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        let expect = |name, expected: &str| assert_eq!(function(name).as_deref(), Some(expected));
        expect("_ZZ22__device_stub__Z3addPfPfE8__handle", "__device_stub__Z3addPf");
        expect("_ZZL22__device_stub__Z3addPfPfE8__handle", "__device_stub__Z3addPf");
        expect("_ZZN2at6native3addIfEEvPfE8__handle", "_ZN2at6native3addIfEEvPf");
        expect("_ZZ99addE8__handle", "_Z99add");
        for other in ["", "E8__handle", "_ZZ3addvE6handle", "_Z3addvE8__handle"] {
            assert_eq!(function(other), None, "{other}");
        }
    }
}
