//! Gzip of a page by two threads. Blocks are compressed independently, so that a helper thread compresses one while the writer
//! produces or compresses the next. Concatenated, the blocks are a single gzip member.

use flate2::{Compress, CompressError, Compression, Crc, FlushCompress};
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread;

/// Bytes that are compressed independently. A match reaches back 32 KiB, so smaller blocks compress worse.
const BLOCK_BYTES: usize = 128 * 1024;
/// Compressed blocks that may wait for an earlier one of the helper.
const AHEAD: usize = 64;

/// Magic number, deflate, no flags, no time, fastest, of Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3];
/// An empty last block. The others all end at a byte boundary.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// A compressed part of the page.
struct Block {
    compressed: Vec<u8>,
    crc: Crc,
}

struct Compressor {
    deflate: Compress,
    output: Vec<u8>,
}

impl Compressor {
    fn new() -> Self {
        let deflate = Compress::new(Compression::fast(), false);
        Self { deflate, output: Vec::with_capacity(BLOCK_BYTES / 4) }
    }

    fn block(&mut self, bytes: &[u8]) -> Result<Block, CompressError> {
        self.deflate.reset();
        self.output.clear();
        loop {
            let taken = usize::try_from(self.deflate.total_in()).unwrap_or(usize::MAX);
            let rest = bytes.get(taken..).unwrap_or_default();
            self.deflate.compress_vec(rest, &mut self.output, FlushCompress::Sync)?;
            // The compressor is done when the output is not full.
            if self.output.len() < self.output.capacity() {
                break;
            }
            self.output.reserve(BLOCK_BYTES / 4);
        }
        let mut crc = Crc::new();
        crc.update(bytes);
        Ok(Block { compressed: self.output.clone(), crc })
    }
}

/// A thread that compresses.
struct Helper {
    blocks: SyncSender<Vec<u8>>,
    /// In the order of submission, each with its input buffer for reuse.
    done: Receiver<(Result<Block, CompressError>, Vec<u8>)>,
}

impl Helper {
    fn start() -> io::Result<Self> {
        // One block queues behind the current one.
        let (blocks, submitted) = sync_channel::<Vec<u8>>(1);
        let (results, done) = channel();
        thread::Builder::new().name("gzip".into()).spawn(move || {
            let mut compressor = Compressor::new();
            for block in submitted {
                let compressed = compressor.block(&block);
                if results.send((compressed, block)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { blocks, done })
    }
}

/// A block that is not written yet.
enum Pending {
    Compressed(Block),
    InHelper,
}

/// Compresses what is written to it.
pub struct Gzip<W> {
    sink: W,
    /// The incomplete block.
    block: Vec<u8>,
    compressor: Compressor,
    helper: Option<Helper>,
    /// The free list of block buffers.
    free: Vec<Vec<u8>>,
    pending: VecDeque<Pending>,
    crc: Crc,
}

impl<W: io::Write> Gzip<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn new(mut sink: W) -> io::Result<Self> {
        sink.write_all(&HEADER)?;
        Ok(Self {
            sink,
            block: Vec::with_capacity(BLOCK_BYTES),
            compressor: Compressor::new(),
            helper: None,
            free: Vec::new(),
            pending: VecDeque::new(),
            crc: Crc::new(),
        })
    }

    /// Writes the incomplete block and the trailer.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.pending.push_back(Pending::Compressed(self.compressor.block(&self.block)?));
        }
        self.write_done(0)?;
        self.sink.write_all(&LAST_BLOCK)?;
        self.sink.write_all(&self.crc.sum().to_le_bytes())?;
        // The length modulo 2^32.
        self.sink.write_all(&self.crc.amount().to_le_bytes())
    }

    /// Compresses a whole block, in the helper unless its queue is full.
    fn compress(&mut self) -> io::Result<()> {
        let next = self.free.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES));
        let block = std::mem::replace(&mut self.block, next);
        if self.helper.is_none() {
            // Without a helper this thread compresses all blocks.
            self.helper = Helper::start().ok();
        }
        let refused = match &self.helper {
            None => Some(block),
            Some(helper) => match helper.blocks.try_send(block) {
                Ok(()) => None,
                Err(TrySendError::Full(block) | TrySendError::Disconnected(block)) => Some(block),
            },
        };
        match refused {
            None => self.pending.push_back(Pending::InHelper),
            Some(block) => {
                self.pending.push_back(Pending::Compressed(self.compressor.block(&block)?));
                self.reuse(block);
            }
        }
        self.write_done(AHEAD)
    }

    fn reuse(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.free.push(buffer);
    }

    /// Writes compressed blocks in order. Waits for the helper when more than `ahead` blocks are pending.
    fn write_done(&mut self, ahead: usize) -> io::Result<()> {
        while let Some(next) = self.pending.pop_front() {
            let block = match (next, &self.helper) {
                (Pending::Compressed(block), _) => block,
                (Pending::InHelper, Some(helper)) => {
                    let waits = self.pending.len() >= ahead;
                    let done =
                        if waits { helper.done.recv().ok() } else { helper.done.try_recv().ok() };
                    match done {
                        Some((block, buffer)) => {
                            self.reuse(buffer);
                            block?
                        }
                        None if waits => {
                            return Err(io::Error::other("a block was not compressed"));
                        }
                        None => {
                            self.pending.push_front(Pending::InHelper);
                            return Ok(());
                        }
                    }
                }
                (Pending::InHelper, None) => {
                    return Err(io::Error::other("a block was not compressed"));
                }
            };
            self.sink.write_all(&block.compressed)?;
            self.crc.combine(&block.crc);
        }
        Ok(())
    }
}

impl<W: io::Write> io::Write for Gzip<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.compress()?;
        }
        Ok(taken)
    }

    /// Blocks are written when they are whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::bufread::GzDecoder;
    use proptest::prelude::*;
    use std::io::{Read as _, Write as _};

    fn compressed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut compressed = Vec::new();
        let mut gzip = Gzip::new(&mut compressed).unwrap();
        pieces.into_iter().for_each(|piece| gzip.write_all(piece).unwrap());
        gzip.finish().unwrap();
        compressed
    }

    /// Decompresses the only member that there is to be.
    fn decompressed(mut compressed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(&mut compressed).read_to_end(&mut bytes).unwrap();
        assert!(compressed.is_empty(), "{} bytes follow the member", compressed.len());
        bytes
    }

    /// Makes pieces of up to five blocks: text that compresses well, as pages do, and noise that does not compress at all.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let text = (0..9u8, 0..5 * BLOCK_BYTES / 4).prop_map(|(digit, length)| {
            let line = format!("name_bucket{{pid=\"{digit}\",le=\"0.00{digit}\"}} {digit}\n");
            line.bytes().cycle().take(length).collect()
        });
        let noise = (any::<u64>(), 0..5 * BLOCK_BYTES / 4).prop_map(|(seed, length)| {
            let mut state = seed | 1;
            let next = |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            };
            (0..length).map(next).collect()
        });
        prop_oneof![text, noise, prop::collection::vec(any::<u8>(), 0..100)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn whatever_is_written_is_one_member_that_holds_it(
            pieces in prop::collection::vec(piece(), 0..4),
        ) {
            let compressed = compressed(pieces.iter().map(Vec::as_slice));
            prop_assert!(decompressed(&compressed) == pieces.concat());
        }
    }

    #[test]
    fn blocks_that_end_where_the_page_does_are_no_exception() {
        for length in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let page = vec![b'x'; length];
            assert_eq!(decompressed(&compressed([page.as_slice()])), page);
        }
    }

    #[test]
    fn without_a_helper_the_page_is_the_same() {
        let page: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).collect();
        let mut alone = Vec::new();
        let mut gzip = Gzip::new(&mut alone).unwrap();
        let (blocks, _) = sync_channel(0);
        let (_, done) = channel();
        gzip.helper = Some(Helper { blocks, done });
        gzip.write_all(&page).unwrap();
        gzip.finish().unwrap();
        assert_eq!(alone, compressed([page.as_slice()]));
        assert_eq!(decompressed(&alone), page);
    }

    /// Takes the header and one block.
    struct Full(usize);

    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 2 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sink_that_takes_no_more_ends_it() {
        let mut gzip = Gzip::new(Full(0)).unwrap();
        let pieces = std::iter::repeat_n([b'x'; BLOCK_BYTES], 2 * AHEAD + 8);
        let error = pieces.map(|piece| gzip.write_all(&piece)).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
