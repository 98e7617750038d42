//! Names and lines of CPython code objects.

use std::sync::Arc;

use super::lines::LineTable;
use super::memory::Memory;
use super::version::Version;

/// Most characters of a name and of a path.
const MAX_NAME: u64 = 256;
const MAX_PATH: u64 = 1024;
/// Largest line table: of a function of some ten thousand lines.
const MAX_TABLE: u64 = 1 << 18;
/// Offset of the type in an object, and of the name in a type.
pub(super) const TYPE: u64 = 8;
pub(super) const TYPE_NAME: u64 = 24;
/// Offsets in `str` and `bytes` objects.
pub(super) const LENGTH: u64 = 16;
pub(super) const TEXT_STATE: u64 = 32;
pub(super) const BYTES_BEGIN: u64 = 32;
/// Bits of a frame's reference to its code that are no part of the address: since 3.14, of what is never freed.
const TAGS: u64 = 3;

/// A code object.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) function: Arc<str>,
    pub(super) file: Arc<str>,
    pub(super) first_line: u32,
    pub(super) table: Option<Vec<u8>>,
}

/// The address of the object that a frame refers to.
pub(super) fn address(reference: u64) -> u64 {
    reference & !TAGS
}

/// Returns true if this is the type of code objects.
pub(super) fn is_code_type(memory: &Memory, kind: u64) -> bool {
    is_named(memory, kind, b"code\0")
}

/// Returns true if a frame may refer to this object: to code, or to `None` where native code calls Python.
pub(super) fn is_executable(memory: &Memory, reference: u64) -> bool {
    let kind = memory.word(address(reference).wrapping_add(TYPE));
    kind.is_ok_and(|kind| is_code_type(memory, kind) || is_named(memory, kind, b"NoneType\0"))
}

fn is_named(memory: &Memory, kind: u64, name: &[u8]) -> bool {
    let found = memory.word(kind.wrapping_add(TYPE_NAME));
    found.and_then(|at| memory.bytes(at, name.len())).is_ok_and(|found| found == name)
}

impl Code {
    /// Reads the code object at this address.
    pub(super) fn read(memory: &Memory, version: &Version, at: u64) -> Option<Self> {
        let pointer = |offset: u64| memory.word(at.wrapping_add(offset)).ok();
        let text = |offset, most| text(memory, version, pointer(offset)?, most);
        Some(Self {
            function: text(version.code_name, MAX_NAME)?,
            file: text(version.code_file, MAX_PATH)?,
            first_line: memory.int(at.wrapping_add(version.code_first_line)).ok()?,
            table: pointer(version.code_lines).and_then(|table| bytes(memory, table)),
        })
    }

    /// Memory of its strings and table, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let table = self.table.as_ref().map_or(0, Vec::len);
        self.function.len() + self.file.len() + table
    }

    /// The line at this byte of the code.
    pub(super) fn line(&self, lines: LineTable, at: u64) -> Option<u32> {
        lines.line(self.table.as_ref()?, self.first_line.into(), at)
    }
}

fn bytes(memory: &Memory, at: u64) -> Option<Vec<u8>> {
    let length = memory.word(at.wrapping_add(LENGTH)).ok()?;
    let length = usize::try_from(length).ok().filter(|_| length <= MAX_TABLE)?;
    memory.bytes(at.wrapping_add(BYTES_BEGIN), length).ok()
}

/// A string, up to a length. Only compact strings, as all names are.
fn text(memory: &Memory, version: &Version, at: u64, most: u64) -> Option<Arc<str>> {
    let length = memory.word(at.wrapping_add(LENGTH)).ok()?.min(most);
    let length = usize::try_from(length).ok()?;
    let state = memory.int(at.wrapping_add(TEXT_STATE)).ok()?;
    let (width, is_compact, is_ascii) =
        ((state >> 2 & 7) as usize, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
    if !is_compact {
        return None;
    }
    let head = if is_ascii { version.ascii_head } else { version.text_head };
    let bytes = memory.bytes(at.wrapping_add(head), length * width).ok()?;
    let character = |unit: &[u8]| {
        let code = match *unit {
            [a] => u32::from(a),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            _ => return None,
        };
        Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    };
    let text: Option<String> = bytes.chunks_exact(width.max(1)).map(character).collect();
    text.map(Into::into)
}
