//! The write buffer of a page, which may have many megabytes.

use std::io;

/// Bytes that are written at a time.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// Capacity beyond a chunk: the buffer is only checked between samples.
pub(super) const SLACK_BYTES: usize = 8 * 1024;

pub(super) struct Page<'a> {
    pub(super) buffer: Vec<u8>,
    sink: &'a mut dyn io::Write,
}

impl<'a> Page<'a> {
    pub(super) fn new(sink: &'a mut dyn io::Write) -> Self {
        Self { buffer: Vec::with_capacity(CHUNK_BYTES + SLACK_BYTES), sink }
    }

    /// Writes the buffer if it holds a chunk.
    pub(super) fn flush_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < CHUNK_BYTES { Ok(()) } else { self.flush() }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.sink.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}
