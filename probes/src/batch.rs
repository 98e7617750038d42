//! Copies hash maps: the whole with few system calls, or single entries into one buffer.
//!
//! libbpf-rs's iterator ends early, without an error, when the kernel returns a short batch before the end of the map.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle};

/// Entries per call.
const BATCH: usize = 512;

/// Calls `each` with the key and value of every entry. Entries added meanwhile may be missed.
pub(crate) fn for_each(map: &MapHandle, mut each: impl FnMut(&[u8], &[u8])) -> std::io::Result<()> {
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let mut capacity = BATCH.min(map.max_entries() as usize).max(1);
    let mut keys = vec![0u8; capacity * key_size];
    let mut values = vec![0u8; capacity * value_size];
    // An opaque position; the kernel writes 4 bytes for hash maps.
    let mut position = [0u8; 8];
    let mut next = [0u8; 8];
    let mut first = true;
    loop {
        let mut count = u32::try_from(capacity).unwrap_or(u32::MAX);
        let from = if first { std::ptr::null_mut() } else { position.as_mut_ptr() };
        // SAFETY: the buffers hold `count` keys and values of the map's own sizes, and the positions are larger than what
        // the kernel writes for a hash map.
        let failed = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        let errno = if failed == 0 { 0 } else { -failed };
        match errno {
            0 | libc::ENOENT => {}
            libc::EINTR => continue,
            // A hash bucket has more entries than the buffer.
            libc::ENOSPC => {
                capacity *= 2;
                keys.resize(capacity * key_size, 0);
                values.resize(capacity * value_size, 0);
                continue;
            }
            _ => return Err(std::io::Error::from_raw_os_error(errno)),
        }
        let entries = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        for (key, value) in entries.take(count as usize) {
            each(key, value);
        }
        if errno == libc::ENOENT {
            return Ok(());
        }
        position = next;
        first = false;
    }
}

/// Copies the value of an entry into a buffer of the map's value size. Returns false if there is none.
pub(crate) fn look_up(map: &MapHandle, key: &[u8], value: &mut [u8]) -> std::io::Result<bool> {
    if key.len() != map.key_size() as usize || value.len() != map.value_size() as usize {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: both buffers have the sizes of the map, which is not of one value per CPU.
    let failed = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_fd().as_raw_fd(),
            key.as_ptr().cast(),
            value.as_mut_ptr().cast(),
        )
    };
    match -failed {
        0 => Ok(true),
        libc::ENOENT => Ok(false),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}
