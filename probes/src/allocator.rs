//! How the C library's allocator serves a daemon of few threads that now and then needs much memory for a moment.

/// From this size on memory is given back to the system as soon as it is freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Has the allocator keep little of what is freed. By default glibc gives each thread an arena of its own, and what a scrape on
/// one thread has freed is then of no use to the next scrape on another: with 64 processes observed the daemon holds 15 MiB more.
/// And once a large block was freed, it takes others of that size from the heap, where they leave holes (`M_MMAP_THRESHOLD` in
/// mallopt(3)): with 1,000 processes that is another 10 MiB.
/// To be called before threads are started; of no effect where the C library is another.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE_BYTES)] {
        // SAFETY: it changes a setting of the allocator, which takes its own lock for that.
        let set = unsafe { libc::mallopt(setting, value) };
        if set == 0 {
            tracing::debug!(setting, "the allocator keeps its default");
        }
    }
}
