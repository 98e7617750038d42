//! Bounded positional reads of a file that is untrusted and may change meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::pod::{self, Pod};

use super::ElfError;

/// Largest single read: a full table of 65,535 section headers.
const MAX_READ: u64 = 4 << 20;

pub(super) struct Source<'a> {
    file: &'a File,
    len: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a File) -> Result<Self, ElfError> {
        Ok(Self { file, len: file.metadata()?.len() })
    }

    /// Exactly `size` bytes.
    pub(super) fn read(
        &self,
        what: &'static str,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>, ElfError> {
        super::limit(what, size, MAX_READ)?;
        let end = offset.saturating_add(size);
        let truncated = ElfError::Truncated { what, end, len: self.len };
        if end > self.len {
            return Err(truncated);
        }
        // At most MAX_READ, so the cast is exact.
        let mut bytes = vec![0; size as usize];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(truncated),
            Err(error) => Err(error.into()),
        }
    }

    /// Up to `size` bytes.
    pub(super) fn read_upto(&self, offset: u64, size: u64) -> Result<Vec<u8>, ElfError> {
        self.read("the file", offset, size.min(self.len.saturating_sub(offset)))
    }

    pub(super) fn read_one<T: Pod>(&self, what: &'static str, offset: u64) -> Result<T, ElfError> {
        let many = self.read_many(what, offset, 1)?;
        many.into_iter().next().ok_or(ElfError::Malformed { what })
    }

    pub(super) fn read_many<T: Pod>(
        &self,
        what: &'static str,
        offset: u64,
        count: u64,
    ) -> Result<Vec<T>, ElfError> {
        let bytes = self.read(what, offset, count.saturating_mul(size_of::<T>() as u64))?;
        match pod::slice_from_all_bytes::<T>(&bytes) {
            Ok(values) => Ok(values.to_vec()),
            Err(()) => Err(ElfError::Malformed { what }),
        }
    }

    /// Takes each string of a table without its end, and its offset in the table. Of one that is longer than `keep` bytes the
    /// beginning may be missing. Reads pieces of a size.
    pub(super) fn strings(
        &self,
        (offset, size): (u64, u64),
        (piece, keep): (u64, usize),
        mut take: impl FnMut(&[u8], u64) -> Result<(), ElfError>,
    ) -> Result<(), ElfError> {
        // The unfinished string of the last piece, and its offset in the table.
        let (mut open, mut open_at, mut done): (Vec<u8>, u64, u64) = (Vec::new(), 0, 0);
        while done < size {
            let piece = piece.min(size - done);
            open.extend(self.read("the string table", offset.saturating_add(done), piece)?);
            done += piece;
            let complete = open.iter().rposition(|&b| b == 0).map_or(0, |last| last + 1);
            let mut at = open_at;
            for string in open[..complete].split_inclusive(|&b| b == 0) {
                take(&string[..string.len() - 1], at)?;
                at += string.len() as u64;
            }
            let drop = complete.max(open.len().saturating_sub(keep));
            open.drain(..drop);
            open_at += drop as u64;
        }
        Ok(())
    }
}
