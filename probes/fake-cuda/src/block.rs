//! Spending time in one named way on the calling thread.
//!
//! Resources of a way (pipes, files, helper threads) are created at its first use on a thread and live as long as it.

mod ping;
mod switched;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::contention::Contention;
use crate::scratch::{DirectFile, EvictedMapping};
use crate::script::Way;
use crate::waker::Waker;
use crate::{clock, futex};
use ping::Ping;
use switched::Switched;

pub use crate::scratch::set_dir;

/// Sleeps of [`Way::Woken`] until a time that has passed: most do not leave the CPU.
const WOKEN_BEFORE: u32 = 4;

/// Spends at least `ns` nanoseconds of wall time in one way.
///
/// # Errors
///
/// When the system refuses what the way needs: files for `io` and `page_fault`, memory for `kernel_` ways, seccomp
/// notifications for `ioctl`.
pub fn block(way: Way, ns: u64) -> io::Result<()> {
    match way {
        Way::Spin => clock::spin(ns),
        Way::Sleep => clock::sleep(ns),
        Way::Woken => {
            let end = clock::monotonic_ns().saturating_add(ns);
            (0..WOKEN_BEFORE).for_each(|_| clock::sleep_until(1));
            clock::sleep_until(end);
        }
        Way::Futex => again_until(ns, |left| futex::wait(&AtomicU32::new(0), 0, Some(left))),
        Way::Poll => again_until(ns, poll),
        Way::Yield => again_until(ns, |_| std::thread::yield_now()),
        Way::Lock => with(|own| &mut own.lock, || Other::new(MUTEX), |own| own.wait(ns))?,
        Way::Polled => with(|own| &mut own.polled, || Other::new(POLLED), |own| own.wait(ns))?,
        Way::Switched => with(|own| &mut own.switched, switched, |own| own.wait(ns))?,
        Way::Spun => with(|own| &mut own.spun, spun, |own| own.wait(ns))?,
        Way::Unseen => with(|own| &mut own.unseen, unseen, |own| own.wait(ns))?,
        Way::Work => with(|own| &mut own.work, || Other::new(WORK), |own| own.wait(ns))?,
        Way::Pipe => with(|own| &mut own.pipe, Pipe::new, |pipe| pipe.wait(ns))??,
        Way::FullPipe => with(|own| &mut own.full, FullPipe::new, |pipe| pipe.wait(ns))??,
        Way::Net => with(|own| &mut own.net, Net::new, |net| net.wait(ns))??,
        Way::Ioctl => with(|own| &mut own.ping, Ping::new, |ping| ping.wait(ns))??,
        Way::Mappings => {
            with(|own| &mut own.mappings, Contention::of_mappings, |own| own.wait(ns))??;
        }
        Way::Faults => with(|own| &mut own.faults, Contention::of_faults, |own| own.wait(ns))??,
        Way::Files => with(|own| &mut own.files, Contention::of_files, |own| own.wait(ns))??,
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
/// The errors are those of [`block`].
pub fn prepare(way: Way) -> io::Result<()> {
    match way {
        Way::Lock => with(|own| &mut own.lock, || Other::new(MUTEX), |_| ()),
        Way::Polled => with(|own| &mut own.polled, || Other::new(POLLED), |_| ()),
        Way::Switched => with(|own| &mut own.switched, switched, |_| ()),
        Way::Spun => with(|own| &mut own.spun, spun, |_| ()),
        Way::Unseen => with(|own| &mut own.unseen, unseen, |_| ()),
        Way::Work => with(|own| &mut own.work, || Other::new(WORK), |_| ()),
        Way::Pipe => with(|own| &mut own.pipe, Pipe::new, |_| ()),
        Way::FullPipe => with(|own| &mut own.full, FullPipe::new, |_| ()),
        Way::Net => with(|own| &mut own.net, Net::new, |_| ()),
        Way::Ioctl => with(|own| &mut own.ping, Ping::new, |_| ()),
        Way::Mappings => with(|own| &mut own.mappings, Contention::of_mappings, |_| ()),
        Way::Faults => with(|own| &mut own.faults, Contention::of_faults, |_| ()),
        Way::Files => with(|own| &mut own.files, Contention::of_files, |_| ()),
        Way::Io => with(|own| &mut own.direct, DirectFile::new, |_| ()),
        Way::PageFault => with(|own| &mut own.mapping, EvictedMapping::new, |_| ()),
        Way::Spin | Way::Sleep | Way::Woken | Way::Futex | Way::Poll | Way::Yield => Ok(()),
    }
}

fn switched() -> io::Result<Switched> {
    Switched::new(switched::waits_or_polls, 0)
}

fn spun() -> io::Result<Switched> {
    Switched::new(switched::spins, 0)
}

fn unseen() -> io::Result<Switched> {
    Switched::new(switched::seldom_polls, switched::PAUSE_NS)
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
    lock: Option<Other>,
    polled: Option<Other>,
    switched: Option<Switched>,
    spun: Option<Switched>,
    unseen: Option<Switched>,
    work: Option<Other>,
    pipe: Option<Pipe>,
    full: Option<FullPipe>,
    net: Option<Net>,
    ping: Option<Ping>,
    mappings: Option<Contention<()>>,
    faults: Option<Contention<OwnedFd>>,
    files: Option<Contention<OwnedFd>>,
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

/// For how long a lock, or work, is waited for at a time.
const PIECE_NS: u64 = 1_000_000;

/// Another thread has this lock, or does this work.
#[derive(Clone, Copy)]
struct Kind {
    thread: &'static str,
    /// Value of the futex meanwhile.
    value: u32,
    piece_ns: Option<u64>,
    /// True if the other thread waits for the futex before it works.
    is_polled: bool,
}

/// A mutex of glibc that is waited for, while the other thread sleeps.
const MUTEX: Kind = Kind { thread: "lock-holder", value: 2, piece_ns: None, is_polled: false };
/// A lock like that of Python's interpreter.
const POLLED: Kind = Kind { value: 1, piece_ns: Some(PIECE_NS), is_polled: true, ..MUTEX };
const WORK: Kind = Kind { thread: "producer", is_polled: false, ..POLLED };

/// A futex, and what follows it in glibc's mutex.
#[repr(C)]
struct Word {
    value: AtomicU32,
    count: u32,
    owner: AtomicU32,
}

/// A helper thread that ends the waits of this one.
struct Other {
    kind: Kind,
    word: Arc<Word>,
    busy_ns: Arc<AtomicU64>,
    thread: Waker,
}

impl Other {
    fn new(kind: Kind) -> io::Result<Self> {
        let (value, owner) = (AtomicU32::new(0), AtomicU32::new(0));
        let word = Arc::new(Word { value, count: 1, owner });
        let busy_ns = Arc::new(AtomicU64::new(0));
        let (released, busy) = (Arc::clone(&word), Arc::clone(&busy_ns));
        let thread = Waker::start(kind.thread, move || {
            let end = clock::monotonic_ns() + busy.load(Ordering::Relaxed);
            if kind.is_polled {
                futex::wait(&released.value, kind.value, kind.piece_ns.map(|ns| ns / 10));
            }
            clock::spin(end.saturating_sub(clock::monotonic_ns()));
            released.owner.store(0, Ordering::Relaxed);
            released.value.store(0, Ordering::Release);
            futex::wake(&released.value);
        })?;
        Ok(Self { kind, word, busy_ns, thread })
    }

    fn wait(&self, ns: u64) {
        let busy_ns = self.kind.piece_ns.map_or(0, |_| ns);
        // Any thread of the process will do.
        self.word.owner.store(std::process::id(), Ordering::Relaxed);
        self.word.value.store(self.kind.value, Ordering::Relaxed);
        self.busy_ns.store(busy_ns, Ordering::Relaxed);
        self.thread.wake_after(ns - busy_ns);
        while self.word.value.load(Ordering::Acquire) == self.kind.value {
            futex::wait(&self.word.value, self.kind.value, self.kind.piece_ns);
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

/// A full pipe from which a helper thread reads.
struct FullPipe {
    writer: io::PipeWriter,
    reader: Waker,
}

impl FullPipe {
    fn new() -> io::Result<Self> {
        use std::io::{Read as _, Write as _};
        let (mut end, mut writer) = io::pipe()?;
        // SAFETY: the descriptor is open, and no memory is passed.
        let bytes = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        writer.write_all(&vec![0; usize::try_from(bytes).map_err(io::Error::other)?])?;
        // Room is made by whole pages.
        let reader = Waker::start("pipe-reader", move || {
            let _ = end.read_exact(&mut [0; PIECE]);
        })?;
        Ok(Self { writer, reader })
    }

    fn wait(&mut self, ns: u64) -> io::Result<()> {
        use std::io::Write as _;
        self.reader.wake_after(ns);
        self.writer.write_all(&[0; PIECE])
    }
}

/// Bytes of a page.
const PIECE: usize = 4096;

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
