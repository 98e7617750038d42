//! Ranks that meet in each step, one of them late.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::{Culprit, Fault};
use crate::cli::{Common, FaultOptions};
use crate::gpu::{Gpu, Pace, check};
use crate::loss::Loss;
use crate::operation::Operation;
use crate::process::{self, fork};
use crate::shared::Shared;

const NAME: &str = "trainer-rank";
const WORLD: u32 = 2;
const LATE: u32 = WORLD - 1;

/// Memory and rank for the wait inside a synchronisation.
static MEETING: OnceLock<(&'static Shared, u32)> = OnceLock::new();

/// Waits for the other ranks, and counts how long.
extern "C-unwind" fn meet(_: *mut c_void) {
    let Some((shared, rank)) = MEETING.get() else { return };
    let start = clock::monotonic_ns();
    shared.meet(WORLD);
    let waited = clock::monotonic_ns() - start;
    if shared.faulty.load(Ordering::Relaxed) != 0
        && let Some(total) = shared.times_ns.get(*rank as usize)
    {
        total.fetch_add(waited, Ordering::Relaxed);
    }
}

/// One rank's communicator.
struct Rank {
    all_reduce: Operation,
}

impl Rank {
    fn join(gpu: &Gpu, common: &Common, shared: &'static Shared, rank: u32) -> Result<Self> {
        gpu.set_pace(&Pace::STEADY)?;
        let mut join = gpu.collective("ncclCommInitRank", common)?;
        let mut communicator = 0usize;
        join.slots[0] = (&raw mut communicator) as usize;
        join.slots[1] = WORLD as usize;
        join.slots[2] = rank as usize;
        check("ncclCommInitRank", &join)?;
        let all_reduce = gpu.collective("ncclAllReduce", common)?;
        gpu.libraries.set("ncclAllReduce", "spin=20us")?;
        MEETING.get_or_init(|| (shared, rank));
        gpu.inside("cudaStreamSynchronize", meet)?;
        Ok(Self { all_reduce })
    }

    fn step(&self, gpu: &mut Gpu, more_ns: u64) -> Result<()> {
        clock::spin(more_ns);
        gpu.feed(&Pace::STEADY)?;
        check("ncclAllReduce", &self.all_reduce)?;
        gpu.synchronize()
    }
}

/// A rank in a process of its own.
fn other_rank(
    (common, options): (&Common, &FaultOptions),
    shared: &'static Shared,
    rank: u32,
    late_ns: u64,
) -> Result<()> {
    process::end_with_parent();
    process::set_comm(NAME)?;
    options.settle(options.other_cpu()?)?;
    let mut gpu = Gpu::open(common)?;
    gpu.open_collectives()?;
    shared.prepared.fetch_add(1, Ordering::AcqRel);
    while shared.begun.load(Ordering::Acquire) == 0 {
        clock::sleep(1_000_000);
    }
    let own = Rank::join(&gpu, common, shared, rank)?;
    while shared.over.load(Ordering::Relaxed) == 0 {
        let late = rank == LATE && shared.faulty.load(Ordering::Relaxed) != 0;
        own.step(&mut gpu, if late { late_ns } else { 0 })?;
    }
    Ok(())
}

/// The fault; this process is the first rank.
pub(super) struct Straggler {
    shared: &'static Shared,
    common: Common,
    others: Vec<u32>,
    own: Option<Rank>,
    reported_ns: u64,
}

impl Straggler {
    pub(super) fn new(common: &Common, options: &FaultOptions, late_ns: u64) -> Result<Self> {
        let shared = Shared::map()?;
        let mut others = Vec::new();
        for rank in 1..WORLD {
            others.push(fork(|| other_rank((common, options), shared, rank, late_ns))?);
        }
        while shared.prepared.load(Ordering::Acquire) < WORLD - 1 {
            clock::sleep(1_000_000);
        }
        Ok(Self { shared, common: common.clone(), others, own: None, reported_ns: 0 })
    }

    /// Returns how much longer this rank waits than the late one, in nanoseconds.
    fn waited_ns(&self) -> u64 {
        let of = |rank: u32| self.shared.times_ns[rank as usize].load(Ordering::Relaxed);
        of(0).saturating_sub(of(LATE))
    }
}

impl Fault for Straggler {
    fn culprit(&self) -> Option<Culprit> {
        Some(Culprit { comm: NAME.into(), pids: self.others.last().copied().into_iter().collect() })
    }

    fn open(&mut self, gpu: &Gpu) -> Result<()> {
        process::set_comm(NAME)?;
        gpu.open_collectives()
    }

    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        self.shared.begun.store(1, Ordering::Release);
        self.own = Some(Rank::join(gpu, &self.common, self.shared, 0)?);
        Ok(())
    }

    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.shared.faulty.store(1, Ordering::Relaxed);
        Ok(())
    }

    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        if let Some(own) = &self.own {
            own.step(gpu, 0)?;
        }
        if let Some(loss) = loss {
            let waited = self.waited_ns();
            loss.add(waited.saturating_sub(self.reported_ns));
            self.reported_ns = self.reported_ns.max(waited);
        }
        Ok(())
    }
}

impl Drop for Straggler {
    fn drop(&mut self) {
        self.shared.over.store(1, Ordering::Relaxed);
        for &pid in &self.others {
            let _ = process::wait_for(pid);
        }
    }
}
