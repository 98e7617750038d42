//! Files whose reading makes a thread wait for the disk, and memory that is touched for the first time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock;

const FILE_BYTES: usize = 16 << 20;
const READ_BYTES: usize = 128 << 10;
const DIRTY_BYTES: usize = 2 << 20;
/// `O_DIRECT` and page faults work in units of so many bytes.
const PAGE: usize = 4096;
/// Bytes that are requested from the disk before one page fault waits for all of them. They take a hundred times as long as the
/// switches away from the thread and back, and several times the CPU time of their pages.
const REQUEST_BYTES: usize = 256 << 10;

static DIR: RwLock<Option<PathBuf>> = RwLock::new(None);

/// Sets the folder of later files; the default is `/var/tmp`.
pub fn set_dir(dir: PathBuf) {
    if let Ok(mut current) = DIR.write() {
        *current = Some(dir);
    }
}

fn dir() -> PathBuf {
    let chosen = DIR.read().ok().and_then(|dir| dir.clone());
    chosen.unwrap_or_else(|| PathBuf::from("/var/tmp"))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A new file. Each library of a process counts its own names, which another may have taken.
fn create() -> io::Result<(File, PathBuf)> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    loop {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = dir().join(format!(".gpucause-fake-{}-{serial}", std::process::id()));
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(named(&path, &error)),
        }
    }
}

/// A file without a name, filled with so many bytes and on disk. Written in steps, so that little of it is dirty at a time.
fn file(flags: i32, bytes: usize) -> io::Result<File> {
    let (mut file, path) = create()?;
    let mut fill = || {
        let block = vec![0xa5; READ_BYTES];
        for written in (0..bytes).step_by(READ_BYTES) {
            file.write_all(&block)?;
            if written % DIRTY_BYTES == 0 {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        std::fs::remove_file(&path)?;
        opened
    };
    fill().map_err(|error| named(&path, &error))
}

#[repr(align(4096))]
struct Aligned([u8; READ_BYTES]);

/// A file that is read past the page cache.
#[allow(missing_debug_implementations, reason = "the buffer tells nothing")]
pub struct DirectFile {
    file: File,
    buffer: Box<Aligned>,
    offset: usize,
}

impl DirectFile {
    /// Makes and fills one.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written to.
    pub fn new() -> io::Result<Self> {
        let buffer = Box::new(Aligned([0; READ_BYTES]));
        Ok(Self { file: file(libc::O_DIRECT, FILE_BYTES)?, buffer, offset: 0 })
    }

    /// Reads until `ns` nanoseconds have passed.
    pub(crate) fn read_for(&mut self, ns: u64) -> io::Result<()> {
        let end = clock::monotonic_ns().saturating_add(ns);
        while clock::monotonic_ns() < end {
            self.read_next()?;
        }
        Ok(())
    }

    /// Reads the next 128 KiB, from the beginning again after the end; returns how many bytes it read.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn read_next(&mut self) -> io::Result<u64> {
        let offset = libc::off_t::try_from(self.offset).map_err(io::Error::other)?;
        let into = self.buffer.0.as_mut_ptr().cast();
        // SAFETY: the buffer is this many bytes long and aligned as O_DIRECT wants it.
        let read = unsafe { libc::pread(self.file.as_raw_fd(), into, READ_BYTES, offset) };
        let read = u64::try_from(read).map_err(|_| io::Error::last_os_error())?;
        self.offset = (self.offset + READ_BYTES) % FILE_BYTES;
        Ok(read)
    }
}

/// Writes so many bytes to a file without a name, through the page cache, and on to the disk.
///
/// # Errors
///
/// When the folder cannot be written to.
pub fn write_through_the_cache(bytes: usize) -> io::Result<()> {
    file(0, bytes).map(drop)
}

/// Allocates memory in small pages, touches each once, and frees it.
///
/// # Errors
///
/// When the system is out of memory.
pub fn touch_new_memory(bytes: usize) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the advice is for the mapping just made.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    for offset in (0..bytes).step_by(PAGE) {
        // SAFETY: `offset` is below the mapping's length.
        let page = unsafe { start.cast::<u8>().add(offset) };
        // SAFETY: the mapping is writable and nobody else knows of it.
        unsafe { page.write_volatile(1) };
    }
    // SAFETY: the range is the mapping, to which no reference exists.
    unsafe { libc::munmap(start, bytes) };
    Ok(())
}

/// A file mapping whose pages are evicted before they are touched.
#[allow(missing_debug_implementations, reason = "the mapping tells nothing")]
pub struct EvictedMapping {
    file: File,
    start: *mut u8,
    /// The first byte that was neither touched nor asked for since all pages were evicted.
    next: usize,
}

impl EvictedMapping {
    /// Makes, fills and maps a file.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written to, or the mapping fails.
    pub fn new() -> io::Result<Self> {
        let file = file(0, FILE_BYTES)?;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), FILE_BYTES, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the advice is for the mapping just made.
        unsafe { libc::madvise(start, FILE_BYTES, libc::MADV_RANDOM) };
        Ok(Self { file, start: start.cast(), next: FILE_BYTES })
    }

    fn evict(&mut self) {
        // SAFETY: the range is this object's mapping, to which no reference exists.
        unsafe { libc::madvise(self.start.cast(), FILE_BYTES, libc::MADV_DONTNEED) };
        // SAFETY: the descriptor is open.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        self.next = 0;
    }

    /// Touches the page at an offset, or the last one.
    fn touch(&self, offset: usize) {
        // SAFETY: what is added is below the mapping's length.
        let page = unsafe { self.start.add(offset.min(FILE_BYTES - PAGE)) };
        // SAFETY: the mapping is readable and the file is not truncated.
        unsafe { page.read_volatile() };
    }

    /// Touches pages until `ns` nanoseconds have passed.
    pub(crate) fn touch_for(&mut self, ns: u64) {
        let end = clock::monotonic_ns().saturating_add(ns);
        while clock::monotonic_ns() < end {
            if self.next >= FILE_BYTES {
                self.evict();
            }
            self.touch(self.next);
            self.next += PAGE;
        }
    }

    /// Asks the disk for the next 256 KiB, from the beginning again after the end, without waiting for them.
    ///
    /// # Errors
    ///
    /// When the system refuses the advice.
    pub fn request_next(&mut self) -> io::Result<()> {
        if self.next >= FILE_BYTES {
            self.evict();
        }
        let [from, length] = [self.next, REQUEST_BYTES].map(libc::off_t::try_from);
        let (from, length) = (from.map_err(io::Error::other)?, length.map_err(io::Error::other)?);
        let fd = self.file.as_raw_fd();
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::posix_fadvise(fd, from, length, libc::POSIX_FADV_WILLNEED) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        self.next = (self.next + REQUEST_BYTES).min(FILE_BYTES);
        Ok(())
    }

    /// Touches the last page that was asked for: one page fault, until the disk has read it.
    pub fn touch_requested(&self) {
        self.touch(self.next.saturating_sub(PAGE));
    }
}

impl Drop for EvictedMapping {
    fn drop(&mut self) {
        // SAFETY: the range is this object's mapping and is not used again.
        unsafe { libc::munmap(self.start.cast(), FILE_BYTES) };
    }
}
