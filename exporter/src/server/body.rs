//! A response's body in pieces: a page may have many megabytes, and in one piece it would need room for twice as many
//! while it grows, which the allocator then keeps.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Written to before it is sent, and freed piece by piece as it is.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    left: u64,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        self.left += piece.len() as u64;
        self.pieces.push_back(piece);
    }
}

impl From<Bytes> for Pieces {
    fn from(piece: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }
}

impl From<&'static str> for Pieces {
    fn from(text: &'static str) -> Self {
        Bytes::from(text).into()
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl io::Write for Pieces {
    /// Makes one piece of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(Bytes::copy_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.pop_front();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_was_written_comes_out_in_order_and_the_length_is_told() {
        let mut body = Pieces::default();
        body.write_all(b"one ").unwrap();
        body.write_all(b"page").unwrap();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut read = Vec::new();
        for left in [8, 4] {
            assert_eq!(body.size_hint().exact(), Some(left));
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
                panic!("there is more");
            };
            read.extend(frame.into_data().unwrap());
        }
        assert_eq!(read, b"one page");
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
    }
}
