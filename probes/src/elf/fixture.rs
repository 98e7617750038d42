//! Small ELF fixtures, laid out as by a linker.

use std::fs::File;
use std::io::Write;

/// A function of a fixture.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Address; code is at [`CODE_ADDRESS`].
    pub(crate) address: u64,
    /// `st_info`: binding in the high four bits, type in the low four.
    pub(crate) info: u8,
    pub(crate) section: u16,
    pub(crate) size: u64,
}

/// A defined global function at an offset in the code.
pub(crate) fn function(name: &'static str, code_offset: u64) -> Function {
    Function { name, address: CODE_ADDRESS + code_offset, info: 0x12, section: 1, size: 8 }
}

/// Where the code is loaded.
pub(crate) const CODE_ADDRESS: u64 = 0x20_1000;
/// Where the code is in the file.
pub(crate) const CODE_OFFSET: u64 = 0x1000;

/// A shared library with these exports, this code and this build id.
pub(crate) fn library(functions: &[Function], code: &[u8], build_id: &[u8]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut symbols = vec![0; 24];
    for function in functions {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([function.info, 0]);
        symbols.extend(function.section.to_le_bytes());
        symbols.extend(function.address.to_le_bytes());
        symbols.extend(function.size.to_le_bytes());
        strings.extend(function.name.as_bytes());
        strings.push(0);
    }
    let mut note = Vec::new();
    for field in [4, build_id.len() as u32, 3] {
        note.extend(field.to_le_bytes());
    }
    note.extend(b"GNU\0");
    note.extend(build_id);

    let note_at = 64 + 2 * 56;
    let strings_at = note_at + note.len();
    let symbols_at = (strings_at + strings.len()).next_multiple_of(8);
    let code_at = CODE_OFFSET as usize;
    let sections_at = (code_at + code.len()).next_multiple_of(8);
    assert!(symbols_at + symbols.len() <= code_at, "too many functions for a fixture");

    let mut file = vec![0; sections_at];
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    put(&mut file, 0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    put(&mut file, 16, &3u16.to_le_bytes());
    put(&mut file, 18, &machine.to_le_bytes());
    put(&mut file, 20, &1u32.to_le_bytes());
    put(&mut file, 32, &64u64.to_le_bytes());
    put(&mut file, 40, &(sections_at as u64).to_le_bytes());
    for (at, value) in [(52, 64u16), (54, 56), (56, 2), (58, 64), (60, 3), (62, 0)] {
        put(&mut file, at, &value.to_le_bytes());
    }
    let (size, note_size) = (code.len() as u64, note.len() as u64);
    put(&mut file, 64, &segment(1, 5, CODE_OFFSET, CODE_ADDRESS, size));
    put(&mut file, 120, &segment(4, 4, note_at as u64, note_at as u64, note_size));
    put(&mut file, note_at, &note);
    put(&mut file, strings_at, &strings);
    put(&mut file, symbols_at, &symbols);
    put(&mut file, code_at, code);
    file.extend([0; 64]);
    file.extend(section(11, symbols_at, symbols.len(), 2, 24));
    file.extend(section(3, strings_at, strings.len(), 0, 0));
    file
}

/// A library with a few traced functions that start with a push.
pub(crate) fn cuda_library(build_id: &[u8]) -> Vec<u8> {
    let functions = [function("cudaMalloc", 0), function("cudaFree", 16)];
    library(&functions, &[0x55; 64], build_id)
}

/// The library has the functions of [`cuda_library`]; they start with an instruction that the kernel single-steps.
#[cfg(target_arch = "x86_64")]
pub(crate) fn stepped_library() -> Vec<u8> {
    let functions = [function("cudaMalloc", 0), function("cudaFree", 16)];
    library(&functions, &[0x48; 64], &[2])
}

/// A library without traced functions.
pub(crate) fn plain_library() -> Vec<u8> {
    library(&[function("main", 0)], &[0x55; 64], &[1])
}

/// An unnamed file with these bytes.
pub(crate) fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

fn segment(kind: u32, flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    for field in [offset, address, address, size, size, 4] {
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

fn section(kind: u32, offset: usize, size: usize, link: u32, entry_size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    for field in [0, 0, offset as u64, size as u64] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(link.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(8u64.to_le_bytes());
    bytes.extend(entry_size.to_le_bytes());
    bytes
}
