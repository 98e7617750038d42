//! Gzip of a page by two threads: what is written is compressed block by block, each for itself, so that a helper can be at one
//! while the writer makes or compresses the next. One after the other the blocks are a single member, as any other compressor
//! makes it.

use flate2::{Compress, CompressError, Compression, Crc, FlushCompress};
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread;

/// What is compressed for itself. A match reaches back 32 KiB, so that smaller blocks would find fewer of them.
const BLOCK_BYTES: usize = 128 * 1024;
/// Compressed blocks that wait for an earlier one, at which the helper is.
const AHEAD: usize = 64;

/// Magic number, deflate, no flags, no time, fastest, of Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3];
/// A last block with nothing in it. The others all end at a byte.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Some of the page, compressed.
struct Block {
    compressed: Vec<u8>,
    crc: Crc,
}

/// Compresses one block after the other.
struct Compressor {
    deflate: Compress,
    room: Vec<u8>,
}

impl Compressor {
    fn new() -> Self {
        let room = Vec::with_capacity(BLOCK_BYTES / 4);
        Self { deflate: Compress::new(Compression::fast(), false), room }
    }

    fn block(&mut self, bytes: &[u8]) -> Result<Block, CompressError> {
        self.deflate.reset();
        self.room.clear();
        loop {
            let taken = usize::try_from(self.deflate.total_in()).unwrap_or(usize::MAX);
            let rest = bytes.get(taken..).unwrap_or_default();
            self.deflate.compress_vec(rest, &mut self.room, FlushCompress::Sync)?;
            // It is done once it has left room.
            if self.room.len() < self.room.capacity() {
                break;
            }
            self.room.reserve(BLOCK_BYTES / 4);
        }
        let mut crc = Crc::new();
        crc.update(bytes);
        Ok(Block { compressed: self.room.clone(), crc })
    }
}

/// Another thread that compresses.
struct Helper {
    blocks: SyncSender<Vec<u8>>,
    /// In the order in which they were handed over, each with the room that it was in.
    done: Receiver<(Result<Block, CompressError>, Vec<u8>)>,
}

impl Helper {
    fn start() -> io::Result<Self> {
        // Besides the one that it is at, one to go on with.
        let (blocks, given) = sync_channel::<Vec<u8>>(1);
        let (gives, done) = channel();
        thread::Builder::new().name("gzip".into()).spawn(move || {
            let mut compressor = Compressor::new();
            for block in given {
                let compressed = compressor.block(&block);
                if gives.send((compressed, block)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { blocks, done })
    }
}

/// Who has a block.
enum Turn {
    Compressed(Block),
    Helper,
}

/// Compresses what is written to it.
pub struct Gzip<W> {
    sink: W,
    /// What is no whole block yet.
    block: Vec<u8>,
    compressor: Compressor,
    helper: Option<Helper>,
    /// Room for blocks.
    spare: Vec<Vec<u8>>,
    turns: VecDeque<Turn>,
    crc: Crc,
}

impl<W: io::Write> Gzip<W> {
    /// With nothing written yet.
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
            spare: Vec::new(),
            turns: VecDeque::new(),
            crc: Crc::new(),
        })
    }

    /// Writes what is left, and the end.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.turns.push_back(Turn::Compressed(self.compressor.block(&self.block)?));
        }
        self.pass_on(0)?;
        self.sink.write_all(&LAST_BLOCK)?;
        self.sink.write_all(&self.crc.sum().to_le_bytes())?;
        // Of the length, too, 32 bits are told.
        self.sink.write_all(&self.crc.amount().to_le_bytes())
    }

    /// Has a whole block compressed, by the helper if that has room for it.
    fn compress(&mut self) -> io::Result<()> {
        let next = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES));
        let block = std::mem::replace(&mut self.block, next);
        if self.helper.is_none() {
            // Where there can be none, this thread does all.
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
            None => self.turns.push_back(Turn::Helper),
            Some(block) => {
                self.turns.push_back(Turn::Compressed(self.compressor.block(&block)?));
                self.reuse(block);
            }
        }
        self.pass_on(AHEAD)
    }

    fn reuse(&mut self, mut room: Vec<u8>) {
        room.clear();
        self.spare.push(room);
    }

    /// Writes what is compressed, in order. Waits for the helper where more than `ahead` blocks do.
    fn pass_on(&mut self, ahead: usize) -> io::Result<()> {
        while let Some(turn) = self.turns.pop_front() {
            let block = match (turn, &self.helper) {
                (Turn::Compressed(block), _) => block,
                (Turn::Helper, Some(helper)) => {
                    let waits = self.turns.len() >= ahead;
                    let done =
                        if waits { helper.done.recv().ok() } else { helper.done.try_recv().ok() };
                    match done {
                        Some((block, room)) => {
                            self.reuse(room);
                            block?
                        }
                        None if waits => {
                            return Err(io::Error::other("a block was not compressed"));
                        }
                        None => {
                            self.turns.push_front(Turn::Helper);
                            return Ok(());
                        }
                    }
                }
                (Turn::Helper, None) => return Err(io::Error::other("a block was not compressed")),
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

    /// A block is passed on when it is whole.
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

    /// Of the one member that there is to be.
    fn decompressed(mut compressed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(&mut compressed).read_to_end(&mut bytes).unwrap();
        assert!(compressed.is_empty(), "{} bytes follow the member", compressed.len());
        bytes
    }

    /// Of up to five blocks: what compresses well, as pages do, and what does not at all.
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
