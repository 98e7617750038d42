//! CPython's memory layout, by version.
//!
//! Since 3.13 CPython publishes most offsets; those of earlier versions are listed here, from their headers on 64-bit
//! machines.

use std::path::Path;

use gpucause_abi::python::PythonLayout;

use super::PythonError;
use super::lines::LineTable;
use super::memory::Memory;
use super::offsets::{OffsetTable, Order};

/// Offsets in one version, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    /// Display name.
    pub(super) name: &'static str,
    /// In the global state: the newest interpreter; in an interpreter: the previous one and the first thread.
    pub(super) interpreters_head: u64,
    pub(super) interpreter_next: u64,
    pub(super) threads_head: u64,
    /// In threads and frames.
    pub(super) frames: PythonLayout,
    /// In a code object: function name, file, first line, line table.
    pub(super) code_name: u64,
    pub(super) code_file: u64,
    pub(super) code_first_line: u64,
    pub(super) code_lines: u64,
    /// Format of the line table.
    pub(super) lines: LineTable,
    /// How a frame encodes its position.
    pub(super) position: Position,
    /// Header length of ASCII strings, and of others.
    pub(super) ascii_head: u64,
    pub(super) text_head: u64,
}

/// How the instruction word of a frame encodes the position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Position {
    /// An index in units of so many bytes.
    Index(u64),
    /// An address; code starts at this offset of the code object.
    Address(u64),
}

const fn layout(
    thread_id: u16,
    thread_frame: u16,
    indirect: Option<u16>,
    frame: [u16; 3],
) -> PythonLayout {
    let [frame_code, frame_instruction, frame_back] = frame;
    let (is_indirect, indirect_frame) = match indirect {
        Some(offset) => (1, offset),
        None => (0, 0),
    };
    PythonLayout {
        threads_at: 0,
        thread_next: 8,
        thread_id,
        thread_frame,
        is_indirect,
        indirect_frame,
        frame_code,
        frame_instruction,
        frame_back,
    }
}

const V3_9: Version = Version {
    name: "CPython 3.9",
    interpreters_head: 32,
    interpreter_next: 0,
    threads_head: 8,
    frames: layout(176, 24, None, [32, 104, 24]),
    code_name: 112,
    code_file: 104,
    code_first_line: 40,
    code_lines: 120,
    lines: LineTable::Steps,
    position: Position::Index(1),
    ascii_head: 48,
    text_head: 72,
};

const V3_10: Version = Version {
    name: "CPython 3.10",
    frames: layout(176, 24, None, [32, 96, 24]),
    lines: LineTable::Ranges,
    position: Position::Index(2),
    ..V3_9
};

const V3_11: Version = Version {
    name: "CPython 3.11",
    interpreters_head: 40,
    interpreter_next: 0,
    threads_head: 16,
    frames: layout(152, 56, Some(8), [32, 56, 48]),
    code_name: 128,
    code_file: 112,
    code_first_line: 72,
    code_lines: 136,
    lines: LineTable::Locations,
    position: Position::Address(184),
    ascii_head: 48,
    text_head: 72,
};

const V3_12: Version = Version {
    name: "CPython 3.12",
    threads_head: 72,
    frames: layout(136, 56, Some(0), [0, 56, 8]),
    code_first_line: 68,
    position: Position::Address(192),
    ascii_head: 40,
    text_head: 56,
    ..V3_11
};

pub(super) const V3_13: Version = Version {
    name: "CPython 3.13",
    frames: layout(152, 72, None, [0, 56, 8]),
    position: Position::Address(200),
    ..V3_12
};

pub(super) const V3_14: Version = Version { name: "CPython 3.14", ..V3_13 };

pub(super) const V3_15: Version = Version { name: "CPython 3.15", ..V3_14 };

impl Version {
    /// Detects the version: as exported, else from the file name.
    pub(super) fn of(
        memory: &Memory,
        runtime: u64,
        exported: Option<u64>,
        path: &Path,
    ) -> Result<Self, PythonError> {
        let minor = match exported {
            Some(exported) if exported >> 24 == 3 => Some((exported >> 16 & 0xff) as u32),
            Some(_) => None,
            None => minor_of(path),
        };
        let published = |version: Self, order: Order, exported: u64| {
            OffsetTable::read(memory, runtime)?.layout(version, order, exported)
        };
        match (minor, exported) {
            (Some(9), None) => Ok(V3_9),
            (Some(10), None) => Ok(V3_10),
            (Some(11), Some(_)) => Ok(V3_11),
            (Some(12), Some(_)) => Ok(V3_12),
            (Some(13), Some(exported)) => published(V3_13, Order::V3_13, exported),
            (Some(14), Some(exported)) => published(V3_14, Order::V3_14, exported),
            (Some(15), Some(exported)) => published(V3_15, Order::V3_15, exported),
            (Some(minor), _) => Err(PythonError::Unsupported(format!("CPython 3.{minor}"))),
            (None, _) => Err(PythonError::Unsupported("a CPython of unknown version".to_owned())),
        }
    }

    /// Byte offset of a frame in its code.
    pub(super) fn position(&self, code: u64, instruction: u64) -> Option<u64> {
        match self.position {
            // A 32-bit int; the rest of the word belongs to other fields.
            Position::Index(unit) => {
                let index = (instruction as u32).cast_signed();
                u64::try_from(index).ok().map(|index| index * unit)
            }
            Position::Address(begin) => instruction.checked_sub(code.checked_add(begin)?),
        }
    }
}

/// The minor version in `python3.9` and `libpython3.9.so.1.0`.
fn minor_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let (_, rest) = name.split_once("python3.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_tells_the_version() {
        let minors = ["/usr/bin/python3.9", "/opt/lib/libpython3.10.so.1.0", "/usr/bin/python3"]
            .map(|path| minor_of(Path::new(path)));
        assert_eq!(minors, [Some(9), Some(10), None]);
    }

    #[test]
    fn a_position_counts_from_the_beginning_of_the_code() {
        assert_eq!(V3_9.position(0x1000, 0xffff_ffff_0000_0010), Some(16));
        assert_eq!(V3_10.position(0x1000, 8), Some(16));
        assert_eq!(V3_10.position(0x1000, 0xffff_ffff), None, "it has not begun");
        assert_eq!(V3_12.position(0x1000, 0x1000 + 192 + 6), Some(6));
        assert_eq!(V3_12.position(0x1000, 0x1000), None);
    }
}
