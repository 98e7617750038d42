//! One rank of a job whose ranks are started one by one, as by a launcher on several hosts, and meet in each step through a file.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::clock;
use serde_json::json;

use super::ns;
use crate::cli::{Common, Lockstep};
use crate::gpu::{Gpu, Pace, check};
use crate::process::thread_id;
use crate::session;
use crate::shared::{wait, wake_all};

const MOST_RANKS: usize = 64;

/// Memory that the ranks share. Zero bytes are its first state.
#[repr(C)]
struct Meeting {
    arrivals: AtomicU32,
    /// Steps that each rank has arrived at.
    steps: [AtomicU32; MOST_RANKS],
}

/// The meeting, this rank, how many there are, and how long the GPU works then.
static RANK: OnceLock<(&'static Meeting, usize, usize, u64)> = OnceLock::new();

impl Meeting {
    fn map(path: &Path) -> Result<&'static Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        file.set_len(size_of::<Self>() as u64)?;
        let (length, access) = (size_of::<Self>(), libc::PROT_READ | libc::PROT_WRITE);
        let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, access, shared, fd, 0) };
        if at == libc::MAP_FAILED {
            bail!("{}: cannot be mapped: {}", path.display(), std::io::Error::last_os_error());
        }
        // SAFETY: the mapping is as long as the file, aligned to a page, valid for any bytes, and never unmapped.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    /// Joins at the step that the others wait in, also in place of a rank that was killed.
    fn join(&self, rank: usize) {
        let latest = self.steps.iter().map(|step| step.load(Ordering::Acquire)).max();
        self.steps[rank].store(latest.unwrap_or(0), Ordering::Release);
        self.announce();
    }

    fn announce(&self) {
        self.arrivals.fetch_add(1, Ordering::AcqRel);
        wake_all(&self.arrivals);
    }

    /// Waits until all ranks have arrived at this rank's next step.
    fn meet(&self, rank: usize, ranks: usize) {
        let own = self.steps[rank].fetch_add(1, Ordering::AcqRel) + 1;
        self.announce();
        loop {
            let seen = self.arrivals.load(Ordering::Acquire);
            if self.steps[..ranks].iter().all(|step| step.load(Ordering::Acquire) >= own) {
                return;
            }
            wait(&self.arrivals, seen);
        }
    }
}

/// Waits for the other ranks and for the GPU, as a collective does that this call waits for.
extern "C-unwind" fn meet(_: *mut c_void) {
    if let Some((meeting, rank, ranks, gpu_ns)) = RANK.get() {
        meeting.meet(*rank, *ranks);
        clock::sleep(*gpu_ns);
    }
}

pub(crate) fn run(common: &Common, options: &Lockstep) -> Result<()> {
    let (rank, ranks) = (common.rank, common.ranks);
    if rank >= ranks || ranks > MOST_RANKS {
        bail!(
            "--rank {rank} --ranks {ranks}: a rank is below the number of ranks, at most {MOST_RANKS}"
        );
    }
    let meeting = Meeting::map(&options.meet)?;
    let mut gpu = Gpu::open(common)?;
    gpu.open_collectives()?;
    session::ready(common, &[thread_id()], &json!({ "rank": rank }))?;
    let pace = Pace { host_ns: options.host, launches: 20, launch_ns: 50_000, gpu_ns: 0 };
    gpu.set_pace(&pace)?;
    let mut init = gpu.collective("ncclCommInitRank", common)?;
    let mut communicator = 0usize;
    init.slots[0] = (&raw mut communicator) as usize;
    init.slots[1] = ranks;
    init.slots[2] = rank;
    check("ncclCommInitRank", &init)?;
    let all_reduce = gpu.collective("ncclAllReduce", common)?;
    gpu.libraries.set("ncclAllReduce", "spin=20us")?;
    meeting.join(rank);
    RANK.get_or_init(|| (meeting, rank, ranks, options.gpu));
    gpu.inside("cudaStreamSynchronize", meet)?;
    let end = clock::monotonic_ns().saturating_add(ns(options.seconds));
    let mut steps = 0u64;
    while clock::monotonic_ns() < end {
        gpu.feed(&pace)?;
        check("ncclAllReduce", &all_reduce)?;
        gpu.synchronize()?;
        steps += 1;
    }
    session::finish(common, &json!({ "scenario": "lockstep", "steps": steps }))
}
