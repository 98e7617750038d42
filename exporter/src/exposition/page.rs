//! A page while it is written: in chunks, since the whole of it may be many megabytes and a compressor needs no more.

use std::io;

/// How much of a page is written at a time.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// Room beyond a chunk for what is added before somebody looks.
pub(super) const SLACK_BYTES: usize = 8 * 1024;

/// The part of a page that is not written yet.
pub(super) struct Page<'a> {
    pub(super) buffer: Vec<u8>,
    sink: &'a mut dyn io::Write,
}

impl<'a> Page<'a> {
    pub(super) fn new(sink: &'a mut dyn io::Write) -> Self {
        Self { buffer: Vec::with_capacity(CHUNK_BYTES + SLACK_BYTES), sink }
    }

    /// Writes what there is once that is enough.
    pub(super) fn flush_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < CHUNK_BYTES { Ok(()) } else { self.flush() }
    }

    /// Writes what there is.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.sink.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}
