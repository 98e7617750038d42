//! Memory of another process.

use std::io::IoSliceMut;

use gpucause_abi::Tgid;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Reads exactly as many bytes or fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory(Pid);

impl Memory {
    pub(crate) fn of(tgid: Tgid) -> Self {
        Self(Pid::from_raw(tgid.0.cast_signed()))
    }

    pub(crate) fn bytes(&self, at: u64, length: usize) -> nix::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let base = usize::try_from(at).map_err(|_| Errno::EFAULT)?;
        let remote = RemoteIoVec { base, len: length };
        let read = process_vm_readv(self.0, &mut [IoSliceMut::new(&mut bytes)], &[remote])?;
        if read == length { Ok(bytes) } else { Err(Errno::EFAULT) }
    }

    pub(super) fn word(&self, at: u64) -> nix::Result<u64> {
        let bytes = self.bytes(at, 8)?;
        bytes.first_chunk().map(|word| u64::from_ne_bytes(*word)).ok_or(Errno::EFAULT)
    }

    /// The word, or 0 where no memory is mapped.
    pub(super) fn word_or_zero(&self, at: u64) -> nix::Result<u64> {
        match self.word(at) {
            Err(Errno::EFAULT) => Ok(0),
            read => read,
        }
    }

    pub(super) fn int(&self, at: u64) -> nix::Result<u32> {
        let bytes = self.bytes(at, 4)?;
        bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_read_and_what_is_not_is_an_error() {
        let own = Memory::of(Tgid(std::process::id()));
        let value = 0x1234_5678_9abc_def0_u64;
        assert_eq!(own.word(std::ptr::from_ref(&value) as u64), Ok(value));
        assert_eq!(own.word(16), Err(Errno::EFAULT));
        assert_eq!(own.word_or_zero(16), Ok(0));
        assert_eq!(own.int(u64::MAX), Err(Errno::EFAULT));
    }
}
