//! Response bodies in pieces. A page may have many megabytes: one buffer would take twice as much while it grows, which the
//! allocator then retains. A page above a limit is sent while it is still being written, so that memory is bounded.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::server_pool::Connection;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Bytes of a page that are buffered before sending starts. Only pages of very many processes are larger.
const BUFFERED_BYTES: u64 = 8 * 1024 * 1024;
/// Pieces that are queued from then on; a piece has tens of kilobytes.
const QUEUED_PIECES: usize = 64;

/// Total time that a page waits for its client while another request waits for a permit.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts to send while the queue is full.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// The body; each piece is freed once it is sent.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    left: u64,
    /// The pieces that follow; `None` marks the end of a complete page.
    more: Option<mpsc::Receiver<Option<Bytes>>>,
    connection: Option<Arc<Connection>>,
}

impl Pieces {
    /// Reports progress to the connection.
    pub(super) fn send_over(&mut self, connection: &Arc<Connection>) {
        self.connection = Some(Arc::clone(connection));
    }

    /// Whoever asks for a piece has sent those before it.
    fn sends(&self, piece: &[u8]) {
        if let Some(connection) = &self.connection {
            connection.sends(piece.len() as u64);
        }
    }

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

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(piece) = self.pieces.pop_front() {
            self.left -= piece.len() as u64;
            self.sends(&piece);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        self.sends(&[]);
        let Some(more) = &mut self.more else { return Poll::Ready(None) };
        let Poll::Ready(next) = more.poll_recv(context) else { return Poll::Pending };
        Poll::Ready(match next {
            Some(Some(piece)) => {
                self.sends(&piece);
                Some(Ok(Frame::data(piece)))
            }
            Some(None) => {
                self.more = None;
                None
            }
            // The client must not mistake a truncated page for a complete one.
            None => Some(Err(io::Error::other("the page was not written to its end"))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.more.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.more {
            None => SizeHint::with_exact(self.left),
            Some(_) => SizeHint::default(),
        }
    }
}

/// Buffers a page, and hands it over as a body when it is complete, or earlier when it is large.
pub struct PageWriter<'w, E> {
    buffer: Pieces,
    /// `None` once the body is handed over.
    body: Option<oneshot::Sender<Result<Pieces, E>>>,
    more: Option<mpsc::Sender<Option<Bytes>>>,
    /// Total time that it has waited for the client.
    waited: Duration,
    /// Returns true while another request waits for a permit.
    others_wait: Box<dyn Fn() -> bool + Send + 'w>,
}

impl<'w, E> PageWriter<'w, E> {
    /// A page whose body goes to `body`. `others_wait` says whether another request waits for a permit.
    pub fn new(
        body: oneshot::Sender<Result<Pieces, E>>,
        others_wait: impl Fn() -> bool + Send + 'w,
    ) -> Self {
        Self {
            buffer: Pieces::default(),
            body: Some(body),
            more: None,
            waited: Duration::ZERO,
            others_wait: Box::new(others_wait),
        }
    }

    /// Reports an error; a page that was handed over is truncated.
    pub fn fail(&mut self, error: E) {
        self.more = None;
        self.hand_over(Err(error));
    }

    /// The page is complete.
    pub fn finish(mut self) {
        match &self.more {
            // The client may have hung up.
            Some(_) => drop(self.send(None)),
            None => {
                let whole = std::mem::take(&mut self.buffer);
                self.hand_over(Ok(whole));
            }
        }
    }

    /// Waits for a slow client, within a total limit while other requests wait.
    fn send(&mut self, mut piece: Option<Bytes>) -> io::Result<()> {
        let Some(more) = &self.more else { return Ok(()) };
        loop {
            piece = match more.try_send(piece) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(TrySendError::Full(piece)) => piece,
            };
            if self.waited >= MAX_WAIT && (self.others_wait)() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(RETRY_EVERY);
            self.waited += RETRY_EVERY;
        }
    }

    fn hand_over(&mut self, body: Result<Pieces, E>) {
        if let Some(sender) = self.body.take() {
            // The client may have hung up.
            let _ = sender.send(body);
        }
    }
}

impl<E> io::Write for PageWriter<'_, E> {
    /// Waits while the queue is full. Fails when the client has hung up or keeps others waiting for too long.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        if self.more.is_some() {
            self.send(Some(piece))?;
            return Ok(bytes.len());
        }
        self.buffer.push(piece);
        if self.buffer.left >= BUFFERED_BYTES {
            let (more, receiver) = mpsc::channel(QUEUED_PIECES);
            let mut body = std::mem::take(&mut self.buffer);
            body.more = Some(receiver);
            self.more = Some(more);
            self.hand_over(Ok(body));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    type Page = PageWriter<'static, &'static str>;

    fn page() -> (Page, oneshot::Receiver<Result<Pieces, &'static str>>) {
        let (takes, taken) = oneshot::channel();
        (PageWriter::new(takes, || false), taken)
    }

    fn poll(body: &mut Pieces) -> Poll<Option<io::Result<Bytes>>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let frame = Pin::new(body).poll_frame(&mut context);
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.into_data().unwrap())))
    }

    #[test]
    fn pieces_come_out_in_order_and_with_their_length() {
        let (mut page, mut taken) = page();
        page.write_all(b"one ").unwrap();
        page.write_all(b"page").unwrap();
        page.finish();
        let mut body = taken.try_recv().unwrap().unwrap();
        let mut read = Vec::new();
        for left in [8, 4] {
            assert_eq!(body.size_hint().exact(), Some(left));
            let Poll::Ready(Some(Ok(piece))) = poll(&mut body) else {
                panic!("a piece is missing")
            };
            read.extend(piece);
        }
        assert_eq!(read, b"one page");
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(poll(&mut body).is_ready());
    }

    /// Reads as fast as it can; returns the number of bytes, and true if the page came to its end.
    fn read(mut body: Pieces) -> (u64, bool) {
        let mut bytes = 0;
        loop {
            match poll(&mut body) {
                Poll::Ready(Some(Ok(piece))) => bytes += piece.len() as u64,
                Poll::Ready(None) => return (bytes, true),
                Poll::Ready(Some(Err(_))) => return (bytes, false),
                Poll::Pending => thread::yield_now(),
            }
        }
    }

    static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
    const PIECES: u64 = 4 * BUFFERED_BYTES / PIECE.len() as u64;

    #[test]
    fn a_huge_page_is_sent_while_it_is_written_and_little_of_it_is_buffered() {
        let (mut page, taken) = page();
        let writer = thread::spawn(move || {
            (0..PIECES).for_each(|_| page.write_all(&PIECE).unwrap());
            page.finish();
        });
        let body = taken.blocking_recv().unwrap().unwrap();
        assert_eq!((body.left, body.size_hint().exact()), (BUFFERED_BYTES, None));
        assert_eq!(read(body), (4 * BUFFERED_BYTES, true));
        writer.join().unwrap();
    }

    #[test]
    fn a_huge_page_that_fails_midway_is_truncated_with_an_error() {
        let (mut page, taken) = page();
        let writer = thread::spawn(move || {
            (0..PIECES / 2).for_each(|_| page.write_all(&PIECE).unwrap());
            page.fail("broken");
        });
        assert_eq!(read(taken.blocking_recv().unwrap().unwrap()), (2 * BUFFERED_BYTES, false));
        writer.join().unwrap();
    }

    #[test]
    fn a_huge_page_whose_client_has_hung_up_fails_to_be_written() {
        let (mut page, taken) = page();
        (0..BUFFERED_BYTES / PIECE.len() as u64).for_each(|_| page.write_all(&PIECE).unwrap());
        drop(taken);
        assert_eq!(page.write(&PIECE).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_huge_page_with_a_stalled_client_times_out_while_others_wait() {
        let (takes, _taken) = oneshot::channel::<Result<Pieces, &'static str>>();
        let mut page = PageWriter::new(takes, || true);
        let error = (0..PIECES).find_map(|_| page.write_all(&PIECE).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_page_that_fails_reports_its_error() {
        let (mut page, mut taken) = page();
        page.write_all(b"half").unwrap();
        page.fail("broken");
        assert_eq!(taken.try_recv().unwrap().unwrap_err(), "broken");
    }
}
