//! Spending time in one named way on the calling thread.
//!
//! Resources of a way (pipes, files, helper threads) are created at its first use on a thread and live as long as it.

mod ping;

use std::cell::RefCell;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::scratch::{DirectFile, EvictedMapping};
use crate::script::Way;
use crate::waker::Waker;
use crate::{clock, futex};
use ping::Ping;

pub use crate::scratch::set_dir;

/// Spends at least `ns` nanoseconds of wall time in one way.
///
/// # Errors
///
/// When the system refuses what the way needs: files for `io` and `page_fault`, seccomp notifications for `ioctl`.
pub fn block(way: Way, ns: u64) -> io::Result<()> {
    match way {
        Way::Spin => clock::spin(ns),
        Way::Sleep => clock::sleep(ns),
        Way::Futex => again_until(ns, |left| futex::wait(&AtomicU32::new(0), 0, Some(left))),
        Way::Poll => again_until(ns, poll),
        Way::Yield => again_until(ns, |_| std::thread::yield_now()),
        Way::Lock => with(|own| &mut own.lock, || Lock::new(None), |lock| lock.wait(ns))?,
        Way::Retry => {
            with(|own| &mut own.retry, || Lock::new(Some(PIECE_NS)), |lock| lock.wait(ns))?;
        }
        Way::Pipe => with(|own| &mut own.pipe, Pipe::new, |pipe| pipe.wait(ns))??,
        Way::Net => with(|own| &mut own.net, Net::new, |net| net.wait(ns))??,
        Way::Ioctl => with(|own| &mut own.ping, Ping::new, |ping| ping.wait(ns))??,
        Way::Io => with(|own| &mut own.direct, DirectFile::new, |file| file.read_for(ns))??,
        Way::PageFault => {
            with(|own| &mut own.mapping, EvictedMapping::new, |map| map.touch_for(ns))?;
        }
    }
    Ok(())
}

/// Creates the resources of a way on this thread, so that its first use is not slower.
///
/// # Errors
///
/// As for [`block`].
pub fn prepare(way: Way) -> io::Result<()> {
    match way {
        Way::Lock => with(|own| &mut own.lock, || Lock::new(None), |_| ()),
        Way::Retry => with(|own| &mut own.retry, || Lock::new(Some(PIECE_NS)), |_| ()),
        Way::Pipe => with(|own| &mut own.pipe, Pipe::new, |_| ()),
        Way::Net => with(|own| &mut own.net, Net::new, |_| ()),
        Way::Ioctl => with(|own| &mut own.ping, Ping::new, |_| ()),
        Way::Io => with(|own| &mut own.direct, DirectFile::new, |_| ()),
        Way::PageFault => with(|own| &mut own.mapping, EvictedMapping::new, |_| ()),
        Way::Spin | Way::Sleep | Way::Futex | Way::Poll | Way::Yield => Ok(()),
    }
}

fn again_until(ns: u64, mut step: impl FnMut(u64)) {
    let end = clock::monotonic_ns().saturating_add(ns);
    loop {
        let now = clock::monotonic_ns();
        if now >= end {
            return;
        }
        step(end - now);
    }
}

fn poll(ns: u64) {
    let timeout = clock::timespec(ns);
    // SAFETY: no descriptors and no mask are passed, and the timeout is a valid time.
    unsafe { libc::ppoll(std::ptr::null_mut(), 0, &raw const timeout, std::ptr::null()) };
}

/// Resources of one thread's waits.
#[derive(Default)]
struct Own {
    lock: Option<Lock>,
    retry: Option<Lock>,
    pipe: Option<Pipe>,
    net: Option<Net>,
    ping: Option<Ping>,
    direct: Option<DirectFile>,
    mapping: Option<EvictedMapping>,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}

fn with<T, R>(
    slot: impl FnOnce(&mut Own) -> &mut Option<T>,
    make: impl FnOnce() -> io::Result<T>,
    wait: impl FnOnce(&mut T) -> R,
) -> io::Result<R> {
    OWN.with(|own| {
        let mut own = own.try_borrow_mut().map_err(io::Error::other)?;
        let slot = slot(&mut own);
        let object = match slot {
            Some(object) => object,
            None => slot.insert(make()?),
        };
        Ok(wait(object))
    })
}

/// Value of a contended glibc mutex.
const CONTENDED: u32 = 2;

/// Value of a lock that is no such mutex, and for how long it is waited for at a time.
const TAKEN: u32 = 1;
const PIECE_NS: u64 = 1_000_000;

/// A mutex that a helper thread locks, sleeps with, and releases; or a lock that is waited for in pieces, while the helper works.
struct Lock {
    word: Arc<AtomicU32>,
    busy_ns: Arc<AtomicU64>,
    piece_ns: Option<u64>,
    holder: Waker,
}

impl Lock {
    fn new(piece_ns: Option<u64>) -> io::Result<Self> {
        let word = Arc::new(AtomicU32::new(0));
        let busy_ns = Arc::new(AtomicU64::new(0));
        let (released, busy) = (Arc::clone(&word), Arc::clone(&busy_ns));
        let holder = Waker::start("lock-holder", move || {
            clock::spin(busy.load(Ordering::Relaxed));
            released.store(0, Ordering::Release);
            futex::wake(&released);
        })?;
        Ok(Self { word, busy_ns, piece_ns, holder })
    }

    fn wait(&self, ns: u64) {
        let (value, busy_ns) = self.piece_ns.map_or((CONTENDED, 0), |_| (TAKEN, ns));
        self.word.store(value, Ordering::Relaxed);
        self.busy_ns.store(busy_ns, Ordering::Relaxed);
        self.holder.wake_after(ns - busy_ns);
        while self.word.load(Ordering::Acquire) == value {
            futex::wait(&self.word, value, self.piece_ns);
        }
    }
}

/// A pipe into which a helper thread writes.
struct Pipe {
    reader: io::PipeReader,
    writer: Waker,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        use std::io::Write as _;
        let (reader, mut end) = io::pipe()?;
        let writer = Waker::start("pipe-writer", move || {
            let _ = end.write(&[1]);
        })?;
        Ok(Self { reader, writer })
    }

    fn wait(&mut self, ns: u64) -> io::Result<()> {
        use std::io::Read as _;
        self.writer.wake_after(ns);
        self.reader.read_exact(&mut [0])
    }
}

/// A socket to which a helper thread sends.
struct Net {
    socket: UnixDatagram,
    sender: Waker,
}

impl Net {
    fn new() -> io::Result<Self> {
        let (socket, end) = UnixDatagram::pair()?;
        let sender = Waker::start("net-sender", move || {
            let _ = end.send(&[1]);
        })?;
        Ok(Self { socket, sender })
    }

    fn wait(&self, ns: u64) -> io::Result<()> {
        self.sender.wake_after(ns);
        loop {
            match self.socket.recv(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }
}

/// Owns a descriptor that a system call just returned.
fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: the descriptor is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_takes_the_time_asked_for() {
        for (name, way) in Way::ALL {
            prepare(way).unwrap_or_else(|error| panic!("{name}: {error}"));
            for _ in 0..3 {
                let (start, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
                block(way, 3_000_000).unwrap_or_else(|error| panic!("{name}: {error}"));
                let wall = clock::monotonic_ns() - start;
                let cpu = clock::thread_cpu_ns() - cpu;
                assert!(wall >= 3_000_000, "{name}: {wall} ns");
                let busy = matches!(way, Way::Spin | Way::Yield | Way::Io | Way::PageFault);
                assert!(busy || cpu < wall / 2, "{name}: {cpu} of {wall} ns on the CPU");
            }
        }
    }
}
