//! A response's body in pieces. A page may have many megabytes: as one buffer it would need twice as much while it grows, which the
//! allocator then keeps. A page above a limit is sent while it is still being written, so that memory is bounded.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use gpucause_investigations::http::pool::Connection;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Bytes of a page that are buffered before sending starts. Only pages of very many processes are larger.
const HELD_BYTES: u64 = 8 * 1024 * 1024;
/// Pieces that are buffered from then on; a piece has some tens of kilobytes.
const AHEAD: usize = 64;

/// How long a page may wait for its client in total while another request waits for a permit.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts to send while the buffer is full.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// The body; each piece is freed once it is sent.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Bytes>,
    left: u64,
    /// The pieces that follow; `None` marks the end of a complete page.
    more: Option<mpsc::Receiver<Option<Bytes>>>,
    /// Over which it is sent.
    connection: Option<Arc<Connection>>,
}

impl Pieces {
    /// Reports to the connection what its client takes.
    pub(super) fn send_over(&mut self, connection: &Arc<Connection>) {
        self.connection = Some(Arc::clone(connection));
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
        if let Some(connection) = &self.connection {
            connection.has_progressed();
        }
        if let Some(piece) = self.pieces.pop_front() {
            self.left -= piece.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(more) = &mut self.more else { return Poll::Ready(None) };
        let Poll::Ready(next) = more.poll_recv(context) else { return Poll::Pending };
        Poll::Ready(match next {
            Some(Some(piece)) => Some(Ok(Frame::data(piece))),
            Some(None) => {
                self.more = None;
                None
            }
            // The client must not take what it has for a complete page.
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

/// Writes a page, and hands it over as a body: when it is complete, or earlier when it is large.
pub(super) struct PageWriter<'w, E> {
    held: Pieces,
    /// `None` once the body is handed over.
    takes: Option<oneshot::Sender<Result<Pieces, E>>>,
    more: Option<mpsc::Sender<Option<Bytes>>>,
    /// How long it has waited for the client.
    waited: Duration,
    /// Whether another request waits for this one to end.
    others_wait: Box<dyn Fn() -> bool + Send + 'w>,
}

impl<'w, E> PageWriter<'w, E> {
    pub(super) fn new(
        takes: oneshot::Sender<Result<Pieces, E>>,
        others_wait: impl Fn() -> bool + Send + 'w,
    ) -> Self {
        Self {
            held: Pieces::default(),
            takes: Some(takes),
            more: None,
            waited: Duration::ZERO,
            others_wait: Box::new(others_wait),
        }
    }

    /// Reports that there is no page, or no more of it.
    pub(super) fn fail(&mut self, error: E) {
        self.more = None;
        self.hand_over(Err(error));
    }

    /// The page is complete.
    pub(super) fn finish(mut self) {
        match &self.more {
            // The client may have hung up.
            Some(_) => drop(self.send(None)),
            None => {
                let whole = std::mem::take(&mut self.held);
                self.hand_over(Ok(whole));
            }
        }
    }

    /// Waits for a slow client, but not for long in total while other requests wait.
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
        if let Some(takes) = self.takes.take() {
            // The client may have hung up.
            let _ = takes.send(body);
        }
    }
}

impl<E> io::Write for PageWriter<'_, E> {
    /// Waits while the buffer is full. Fails when the client has hung up or keeps others waiting for too long.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        if self.more.is_some() {
            self.send(Some(piece))?;
            return Ok(bytes.len());
        }
        self.held.push(piece);
        if self.held.left >= HELD_BYTES {
            let (more, follows) = mpsc::channel(AHEAD);
            let mut begun = std::mem::take(&mut self.held);
            begun.more = Some(follows);
            self.more = Some(more);
            self.hand_over(Ok(begun));
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
    fn what_was_written_comes_out_in_order_and_the_length_is_told() {
        let (mut page, mut taken) = page();
        page.write_all(b"one ").unwrap();
        page.write_all(b"page").unwrap();
        page.finish();
        let mut body = taken.try_recv().unwrap().unwrap();
        let mut read = Vec::new();
        for left in [8, 4] {
            assert_eq!(body.size_hint().exact(), Some(left));
            let Poll::Ready(Some(Ok(piece))) = poll(&mut body) else { panic!("there is more") };
            read.extend(piece);
        }
        assert_eq!(read, b"one page");
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(poll(&mut body).is_ready());
    }

    /// As fast as it can; the bytes, and whether the page came to its end.
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
    const PIECES: u64 = 4 * HELD_BYTES / PIECE.len() as u64;

    #[test]
    fn a_huge_page_is_sent_while_it_is_written_and_little_of_it_is_held() {
        let (mut page, taken) = page();
        let writer = thread::spawn(move || {
            (0..PIECES).for_each(|_| page.write_all(&PIECE).unwrap());
            page.finish();
        });
        let body = taken.blocking_recv().unwrap().unwrap();
        assert_eq!((body.left, body.size_hint().exact()), (HELD_BYTES, None));
        assert_eq!(read(body), (4 * HELD_BYTES, true));
        writer.join().unwrap();
    }

    #[test]
    fn a_huge_page_that_is_not_written_to_its_end_is_not_taken_for_whole() {
        let (mut page, taken) = page();
        let writer = thread::spawn(move || {
            (0..PIECES / 2).for_each(|_| page.write_all(&PIECE).unwrap());
            page.fail("broken");
        });
        assert_eq!(read(taken.blocking_recv().unwrap().unwrap()), (2 * HELD_BYTES, false));
        writer.join().unwrap();
    }

    #[test]
    fn a_huge_page_whose_client_is_gone_is_written_no_further() {
        let (mut page, taken) = page();
        (0..HELD_BYTES / PIECE.len() as u64).for_each(|_| page.write_all(&PIECE).unwrap());
        drop(taken);
        assert_eq!(page.write(&PIECE).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_huge_page_that_its_client_leaves_is_ended_once_others_want_its_turn() {
        let (takes, _taken) = oneshot::channel::<Result<Pieces, &'static str>>();
        let mut page = PageWriter::new(takes, || true);
        let error = (0..PIECES).find_map(|_| page.write_all(&PIECE).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_page_that_cannot_be_made_says_why() {
        let (mut page, mut taken) = page();
        page.write_all(b"half").unwrap();
        page.fail("broken");
        assert_eq!(taken.try_recv().unwrap().unwrap_err(), "broken");
    }
}
