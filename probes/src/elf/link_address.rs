//! Converts file offsets to link-time addresses, as used by symbol tables and `addr2line`.

use std::fs::File;

use object::LittleEndian as LE;
use object::elf::ProgramHeader64;

use super::source::Source;
use super::{ElfError, code, file_header, program_headers};

/// The largest page size.
const MAX_PAGE: u64 = 1 << 16;

/// Executable segments of a file, before relocation.
#[derive(Debug)]
pub struct LinkAddresses {
    segments: Vec<ProgramHeader64<LE>>,
}

impl LinkAddresses {
    /// Reads the segments. Does not move the file position.
    ///
    /// # Errors
    /// When it is no ELF64 file for this machine, is damaged, or cannot be read.
    pub fn of(file: &File) -> Result<Self, ElfError> {
        let source = Source::new(file)?;
        let header = file_header(&source)?;
        Ok(Self { segments: program_headers(&source, &header)? })
    }

    /// The load bias of a file, if the code at this offset, the start of a mapping, is mapped at this address.
    pub fn bias(&self, mapped_at: u64, offset: u64) -> Option<u64> {
        let own = code(&self.segments).find(|segment| {
            let begin = segment.p_offset.get(LE);
            // A mapping starts at the page boundary before the segment.
            offset <= begin.saturating_add(segment.p_filesz.get(LE))
                && begin <= offset.saturating_add(MAX_PAGE)
        })?;
        let linked_at = own.p_vaddr.get(LE).wrapping_sub(own.p_offset.get(LE)).wrapping_add(offset);
        Some(mapped_at.wrapping_sub(linked_at))
    }

    /// The address of a file offset, if it is code.
    pub fn at(&self, offset: u64) -> Option<u64> {
        address_of(&self.segments, offset)
    }
}

/// Link-time address of an offset in an executable segment.
pub(super) fn address_of(segments: &[ProgramHeader64<LE>], offset: u64) -> Option<u64> {
    code(segments).find_map(|segment| {
        let within = offset.checked_sub(segment.p_offset.get(LE))?;
        if within >= segment.p_filesz.get(LE) {
            return None;
        }
        segment.p_vaddr.get(LE).checked_add(within)
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{CODE_ADDRESS, CODE_OFFSET, file_of, function, library};
    use super::*;

    #[test]
    fn code_has_the_address_that_the_linker_gave_it_and_nothing_else_has_one() {
        let file = file_of(&library(&[function("first", 0)], &[0x55; 64], b"id"));
        let addresses = LinkAddresses::of(&file).unwrap();
        assert_ne!(CODE_ADDRESS, CODE_OFFSET);
        assert_eq!(addresses.at(CODE_OFFSET + 5), Some(CODE_ADDRESS + 5));
        assert_eq!([0, u64::MAX].map(|offset| addresses.at(offset)), [None; 2]);
        let bias = addresses.bias(0x7000_0000 + CODE_OFFSET, CODE_OFFSET).unwrap();
        assert_eq!(CODE_ADDRESS + bias, 0x7000_0000 + CODE_OFFSET);
        assert_eq!(addresses.bias(0x7000_0000, 1 << 32), None);
    }
}
