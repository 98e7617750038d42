//! CPython's table of its own offsets, at the start of its global state since 3.13.
//!
//! Each version has its own order of entries under the same magic number. A table is used only if it is of a known
//! version, of the one that CPython exports, and consistent: each offset is within its structure, and objects are as
//! in other versions.

use gpucause_abi::python::PythonLayout;

use super::PythonError;
use super::code::{BYTES_BEGIN, LENGTH, TEXT_STATE, TYPE, TYPE_NAME};
use super::memory::Memory;
use super::threads::THREAD_INTERPRETER;
use super::version::{Position, Version};

/// Magic number of the table.
const COOKIE: u64 = u64::from_ne_bytes(*b"xdebugpy");
/// Level of the first version whose layout is final: that of release candidates.
const CANDIDATE: u64 = 0xc;
/// Words of the longest table.
const WORDS: usize = 111;
/// Size of an object without fields.
const OBJECT: u64 = 16;

/// Positions in all versions, in words.
const VERSION: usize = 1;
const FREE_THREADED: usize = 2;
const RUNTIME: usize = 3;
const INTERPRETER: usize = 6;

/// Positions in one version, in words: of the size of each structure, which its offsets follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    thread: usize,
    /// In a thread, after entries that not all versions have.
    thread_id: usize,
    frame: usize,
    code: usize,
    object: usize,
    kind: usize,
    bytes: usize,
    text: usize,
}

impl Order {
    pub(super) const V3_13: Self = Self {
        thread: 19,
        thread_id: 24,
        frame: 28,
        code: 34,
        object: 44,
        kind: 46,
        bytes: 64,
        text: 67,
    };
    pub(super) const V3_14: Self = Self {
        thread: 22,
        thread_id: 27,
        frame: 31,
        code: 39,
        object: 50,
        kind: 52,
        bytes: 74,
        text: 77,
    };
    pub(super) const V3_15: Self = Self {
        thread: 22,
        thread_id: 30,
        frame: 39,
        code: 47,
        object: 58,
        kind: 60,
        bytes: 86,
        text: 89,
    };
}

/// The table of a process; untrusted.
#[derive(Debug)]
pub(super) struct OffsetTable(Vec<u64>);

impl OffsetTable {
    /// Reads it at the start of the global state, which is larger.
    pub(super) fn read(memory: &Memory, runtime: u64) -> nix::Result<Self> {
        let bytes = memory.bytes(runtime, 8 * WORDS)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(Self(words.map(|word| u64::from_ne_bytes(*word)).collect()))
    }

    /// The layout of this version, with the offsets of the table.
    pub(super) fn layout(
        &self,
        version: Version,
        order: Order,
        exported: u64,
    ) -> Result<Version, PythonError> {
        let refused = |what: &str| PythonError::Unsupported(format!("{} {what}", version.name));
        if self.word(0) != COOKIE || self.word(VERSION) != exported {
            return Err(refused("without its table of offsets"));
        }
        if exported >> 4 & 0xf < CANDIDATE {
            return Err(refused("before its release"));
        }
        if self.word(FREE_THREADED) != 0 {
            return Err(refused("without a global lock"));
        }
        self.checked(version, order).ok_or_else(|| refused("with offsets that make no sense"))
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// The offset of a field of so many bytes, within the structure whose size is at the other position.
    fn offset(&self, structure: usize, at: usize, bytes: u64) -> Option<u16> {
        let offset = self.word(at);
        let end = offset.checked_add(bytes)?;
        u16::try_from(offset).ok().filter(|_| end <= self.word(structure))
    }

    fn checked(&self, version: Version, order: Order) -> Option<Version> {
        let Order { thread, thread_id, frame, code, object, kind, bytes, text } = order;
        let known = [
            (thread + 3, THREAD_INTERPRETER),
            (object, OBJECT),
            (object + 1, TYPE),
            (kind + 1, TYPE_NAME),
            (bytes + 1, LENGTH),
            (bytes + 2, BYTES_BEGIN),
            (text + 1, TEXT_STATE),
            (text + 2, LENGTH),
            (text + 3, version.ascii_head),
        ];
        if known.iter().any(|&(at, offset)| self.word(at) != offset) {
            return None;
        }
        let pointer = |structure: usize, at: usize| self.offset(structure, at, 8);
        Some(Version {
            interpreters_head: pointer(RUNTIME, RUNTIME + 2)?.into(),
            interpreter_next: pointer(INTERPRETER, INTERPRETER + 2)?.into(),
            threads_head: pointer(INTERPRETER, INTERPRETER + 3)?.into(),
            frames: PythonLayout {
                thread_next: pointer(thread, thread + 2)?,
                thread_frame: pointer(thread, thread + 4)?,
                thread_id: pointer(thread, thread_id)?,
                frame_back: pointer(frame, frame + 1)?,
                frame_code: pointer(frame, frame + 2)?,
                frame_instruction: pointer(frame, frame + 3)?,
                ..version.frames
            },
            code_file: pointer(code, code + 1)?.into(),
            code_name: pointer(code, code + 3)?.into(),
            code_lines: pointer(code, code + 4)?.into(),
            code_first_line: self.offset(code, code + 5, 4)?.into(),
            position: Position::Address(self.offset(code, code + 9, 1)?.into()),
            ..version
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::version::{V3_13, V3_14, V3_15};

    const ORDERS: [(Version, Order, u64); 3] = [
        (V3_13, Order::V3_13, 0x030d_00f0),
        (V3_14, Order::V3_14, 0x030e_0af0),
        (V3_15, Order::V3_15, 0x030f_00c1),
    ];

    /// A table in this order.
    fn table(order: Order, exported: u64) -> OffsetTable {
        let Order { thread, thread_id, frame, code, object, kind, bytes, text } = order;
        let mut words = vec![0; WORDS];
        let mut put = |at: usize, own: &[u64]| words[at..at + own.len()].copy_from_slice(own);
        put(0, &[COOKIE, exported, 0]);
        put(RUNTIME, &[9000, 800, 808]);
        put(INTERPRETER, &[9000, 7000, 7008, 7016]);
        put(thread, &[800, 0, 8, 16, 72]);
        put(thread_id, &[152]);
        put(frame, &[88, 8, 0, 56]);
        put(code, &[216, 112, 120, 128, 136, 68, 52, 96, 104, 208]);
        put(object, &[16, 8]);
        put(kind, &[400, 24]);
        put(bytes, &[40, 16, 32]);
        put(text, &[64, 32, 16, 40]);
        OffsetTable(words)
    }

    fn refusal(table: &OffsetTable, of: (Version, Order, u64)) -> String {
        table.layout(of.0, of.1, of.2).unwrap_err().to_string()
    }

    #[test]
    fn each_version_has_its_own_order() {
        for (version, order, exported) in ORDERS {
            let own = table(order, exported).layout(version, order, exported).unwrap();
            assert_eq!((own.interpreters_head, own.threads_head), (808, 7016));
            let PythonLayout { thread_frame, thread_id, frame_instruction, .. } = own.frames;
            assert_eq!((thread_frame, thread_id, frame_instruction), (72, 152, 56));
            assert_eq!((own.code_name, own.code_lines), (128, 136));
            assert_eq!(own.position(0x1000, 0x1000 + 208 + 6), Some(6));
        }
    }

    #[test]
    fn a_table_in_the_order_of_another_version_is_refused() {
        for other in ORDERS {
            for own in ORDERS.iter().filter(|own| own.2 != other.2) {
                let refusal = refusal(&table(other.1, own.2), *own);
                assert!(refusal.contains("offsets that make no sense"), "{refusal}");
            }
        }
    }

    #[test]
    fn another_version_than_the_exported_one_is_refused() {
        let (version, order, exported) = ORDERS[1];
        let refused = |table: &OffsetTable| refusal(table, (version, order, exported));
        let expected = "CPython 3.14 without its table of offsets is not supported";
        assert_eq!(refused(&table(order, exported - 0x100)), expected);
        assert_eq!(refused(&OffsetTable(vec![0; WORDS])), expected);
        assert_eq!(refused(&OffsetTable(Vec::new())), expected);
    }

    #[test]
    fn a_version_without_a_global_lock_and_one_before_its_release_are_refused() {
        let (version, order, exported) = ORDERS[1];
        let mut unlocked = table(order, exported);
        unlocked.0[FREE_THREADED] = 1;
        let expected = "CPython 3.14 without a global lock is not supported";
        assert_eq!(refusal(&unlocked, ORDERS[1]), expected);
        let beta = 0x030e_00b4;
        let expected = "CPython 3.14 before its release is not supported";
        assert_eq!(refusal(&table(order, beta), (version, order, beta)), expected);
    }

    #[test]
    fn offsets_beyond_their_structure_and_other_objects_are_refused() {
        let of = ORDERS[2];
        let Order { thread, frame, code, object, kind, text, .. } = of.1;
        let changes = [
            (thread, 100),
            (thread + 3, 24),
            (thread + 4, 793),
            (thread + 4, u64::MAX),
            (frame + 3, 1 << 20),
            (code, 100),
            (object, 32),
            (kind + 1, 40),
            (text + 1, 40),
            (INTERPRETER + 3, 1 << 16),
        ];
        for (at, value) in changes {
            let mut changed = table(of.1, of.2);
            changed.0[at] = value;
            assert!(refusal(&changed, of).contains("make no sense"), "{at}: {value}");
        }
    }
}
