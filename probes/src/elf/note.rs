//! The GNU build id, from the note segments of an ELF file.

use object::elf::NT_GNU_BUILD_ID;

/// Searched bytes of a note segment; the build id comes first or soon after.
pub(super) const MAX_NOTES: u64 = 64 << 10;
/// Longest build id, in bytes: SHA-512.
const LONGEST_ID: usize = 64;

/// The build id in hex, if `notes` has one. `align` is the segment's alignment in bytes.
pub(super) fn build_id(notes: &[u8], align: u64) -> Option<String> {
    let align = if align == 8 { 8 } else { 4 };
    let mut rest = notes;
    loop {
        let header = rest.get(..12)?;
        let field = |at: usize| {
            let bytes = header.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let name_len = usize::try_from(field(0)?).ok()?;
        let id_len = usize::try_from(field(4)?).ok()?;
        let id_at = 12usize.checked_add(name_len)?.checked_next_multiple_of(align)?;
        let id_end = id_at.checked_add(id_len)?;
        let name = rest.get(12..12usize.checked_add(name_len)?)?;
        let id = rest.get(id_at..id_end)?;
        if field(8)? == NT_GNU_BUILD_ID.0 && name == b"GNU\0" && (1..=LONGEST_ID).contains(&id_len)
        {
            return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        rest = rest.get(id_end.checked_next_multiple_of(align)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(kind: u32, name: &[u8], id: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [name.len() as u32, id.len() as u32, kind] {
            bytes.extend(field.to_le_bytes());
        }
        for part in [name, id] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let mut notes = note(1, b"GNU\0", &[0; 16]);
        notes.extend(note(3, b"stapsdt\0", b"abc"));
        notes.extend(note(3, b"GNU\0", &[0xab, 0x01, 0xff]));
        assert_eq!(build_id(&notes, 4).as_deref(), Some("ab01ff"));
    }

    #[test]
    fn other_notes_are_no_build_id() {
        assert_eq!(build_id(&note(3, b"abc\0", &[1]), 4), None);
        assert_eq!(build_id(&note(1, b"GNU\0", &[1]), 4), None);
        assert_eq!(build_id(&note(3, b"GNU\0", &[]), 4), None);
        assert_eq!(build_id(&[], 4), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(notes in prop::collection::vec(any::<u8>(), 0..200),
                                            align in any::<u64>()) {
            prop_assert!(build_id(&notes, align).is_none_or(|id| !id.is_empty()));
        }
    }
}
