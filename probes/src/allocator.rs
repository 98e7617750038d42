//! Allocator settings for a daemon with few threads and short peaks of memory use.

/// Blocks from this size on are returned to the system.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 1 << 20;
/// A free end of the heap that is larger is returned, too. A page of 64 processes and its sample need less, and so keep their
/// buffers, which would come from the system page by page.
#[cfg(target_env = "gnu")]
const RETAINED_BYTES: libc::c_int = 2 << 20;

/// Limits the memory that the allocator retains after a free. By default each thread gets an arena, and memory freed by a scrape
/// on one thread is not reused by the next scrape on another: 15 MiB with 64 processes. glibc also raises its mmap threshold to the
/// largest block freed (`M_MMAP_THRESHOLD` in mallopt(3)), which fragments the heap: 10 MiB with 1,000 processes. A fixed one leaves
/// `M_TRIM_THRESHOLD` at 128 KiB, and each sample of the maps would get its buffers from the system, page by page.
/// Call before threads are started. No effect with other C libraries.
pub fn limit_retained_memory() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, RETAINED_BYTES),
    ] {
        // SAFETY: it changes a setting of the allocator, which takes its own lock for that.
        let set = unsafe { libc::mallopt(setting, value) };
        if set == 0 {
            tracing::debug!(setting, "the allocator rejected a setting");
        }
    }
}
