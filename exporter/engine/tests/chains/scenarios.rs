//! Processes with a fault. Each scenario has a healthy beginning, followed by windows with the fault.

use gpucause_abi::ProcId;
use gpucause_abi::op::CopyKind;
use gpucause_abi::state::{LockKind, Phase, Reason, Relation, State};

use crate::host::Host;
use crate::process::{KERNEL, MIB, MS, Process, Task, US};

/// Windows that a fault lasts.
pub(crate) const FAULT_WINDOWS: u32 = 4;

pub(crate) const HOG: Task = Task("hog", 900, Relation::Other);
pub(crate) const HOLDER: Task = Task("lock-holder", 100, Relation::Thread);
pub(crate) const WORKER: Task = Task("pt_data_worker", 200, Relation::Worker);

/// A second of healthy training: launches, and waits for the GPU.
pub(crate) fn steady(train: &mut Process) {
    train.on(100).launches(2_000, 5 * US);
    train.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 40 * MS)]);
}

/// A host whose process has trained for a while.
pub(crate) fn trained() -> Host {
    let mut host = Host::training();
    host.run(8, steady);
    host.is_silent();
    host
}

/// 30 of 2,000 launches lose 4 ms each to a process on their CPU; the thread is preempted elsewhere as well.
pub(crate) fn preempted() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 30, 5 * US, &[(Reason::Preempted, 4 * MS)]);
        train.blame(Phase::Launch, Reason::Preempted, HOG, 120 * MS, 0);
        train.waits(Reason::Preempted, HOG, 480 * MS, 0);
    });
    host
}

/// The thread is woken often and then waits for a CPU that others have.
pub(crate) fn queued() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Runqueue, HOG, 500 * MS, 0);
        train.waits(Reason::Preempted, HOG, 100 * MS, 0);
    });
    host
}

/// The cgroup's CPU limit throttles the thread.
pub(crate) fn throttled() -> Host {
    let mut host = trained();
    host.throttled_cgroups = vec![(ProcId(1), 0)];
    host.run(1, steady);
    for _ in 0..FAULT_WINDOWS {
        host.throttled_cgroups[0].1 += 700 * MS;
        host.run(1, |train| {
            steady(train);
            train.off(Phase::Host, Reason::Preempted, 600 * MS);
        });
    }
    host
}

/// A thread of the process holds a lock for most of a second.
pub(crate) fn locked() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Lock, HOLDER, 700 * MS, 680 * MS);
    });
    host
}

/// Launches wait for the driver's lock, and the thread is idle besides.
pub(crate) fn locked_in_launches() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaLaunchKernel", 40, 5 * US, &[(Reason::Lock, 5 * MS)]);
        train.blame(Phase::Launch, Reason::Lock, HOLDER, 200 * MS, 200 * MS);
        train.waits(Reason::Futex, Task("frontend", 100, Relation::Thread), 800 * MS, 2 * MS);
    });
    host
}

/// A thread of the process fills memory, and holds the lock of the address space.
pub(crate) fn locked_in_the_kernel() -> Host {
    let loader = Task("shm-loader", 100, Relation::Thread);
    crate::kernel_locks::contended(LockKind::AddressSpace, loader, Some(117))
}

pub(crate) fn on_disk() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Io, KERNEL, 600 * MS, 0);
    });
    host
}

/// The thread writes its log to a pipe whose reader is slow.
pub(crate) fn behind_a_reader() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Poll, Task("log-shipper", 300, Relation::Other), 900 * MS, 900 * MS);
    });
    host
}

pub(crate) fn paging() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::PageFault, KERNEL, 300 * MS, 0);
    });
    host
}

/// Two workers read from a slow disk; the resource tracker of Python idles beside them.
pub(crate) fn starved() -> Host {
    let mut host = trained();
    for tgid in [200, 201, 202] {
        host.start_worker(0, tgid);
    }
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 900 * MS, 0);
        for worker in &mut processes[1..3] {
            let (io, futex) = (State::Off(Reason::Io), State::Off(Reason::Futex));
            worker.works(&[(State::Running, 600 * MS), (io, 1_200 * MS), (futex, 200 * MS)]);
        }
        processes[3].is_busy(&[(State::Off(Reason::Poll), 2_000 * MS)]);
    });
    host
}

/// A worker computes, and the victim waits for it through a thread that pins memory.
pub(crate) fn starved_through_a_pinning_thread() -> Host {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        let pinning = Task("pin_memory", 100, Relation::Thread);
        processes[0].waits(Reason::Futex, pinning, 1_000 * MS, 20 * MS);
        processes[0].on(102).calls("cudaEventQuery", 50, 10 * US, &[]);
        processes[0].waits(Reason::Poll, WORKER, 1_900 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    host
}

/// Every launch is waited for.
pub(crate) fn syncing() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(4_000, 5 * US);
        train.calls("cudaStreamSynchronize", 4_000, 2 * US, &[(Reason::GpuDriver, 300 * US)]);
    });
    host
}

/// Every launch's result is copied to the host.
pub(crate) fn copying_results() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(4_000, 5 * US);
        train.copies("cudaMemcpy", 0, CopyKind::D2h, 3_000, 400 * US);
    });
    host
}

pub(crate) fn churning() -> Host {
    let mut host = trained();
    host.run(2 * FAULT_WINDOWS, |train| {
        steady(train);
        train.allocates(500, 400 * US, 500 * MIB).frees(500, 200 * US, 500 * MIB);
    });
    host
}

/// A few allocations fail in each window, cached memory is freed, and they are retried.
pub(crate) fn refused_memory() -> Host {
    let mut host = trained();
    host.run(2 * FAULT_WINDOWS, |train| {
        steady(train);
        train.allocates(6, 10 * MS, 600 * MIB).frees(8, 20 * MS, 600 * MIB).refused(3);
    });
    host
}

pub(crate) fn leaking() -> Host {
    let mut host = trained();
    host.run(160, |train| {
        steady(train);
        train.allocates(20, 10 * US, 20 * MIB).frees(10, 10 * US, 10 * MIB);
    });
    host
}

pub(crate) fn recapturing() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.calls("cudaStreamBeginCapture", 20, 100 * US, &[]);
        train.calls("cudaStreamEndCapture", 20, 2 * MS, &[]);
        train.calls("cudaGraphInstantiate", 20, 15 * MS, &[]);
        train.calls("cudaGraphLaunch", 20, 50 * US, &[]);
    });
    host
}

/// New kernels long after the start.
pub(crate) fn loading_kernels() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.cold_launches(20, 30 * MS);
    });
    host
}

pub(crate) fn copying_blocks() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.copies("cudaMemcpyAsync", 1, CopyKind::H2d, 500, 20 * US);
        train.copies("cudaMemcpyAsync", 4, CopyKind::H2d, 16, 50 * MS);
    });
    host
}

/// Rank 2 of four computes while the others wait for it.
pub(crate) fn late_rank() -> Host {
    let mut host = Host::new();
    run_late_rank(&mut host);
    host
}

/// Runs the scenario of [`late_rank`] on an existing host.
pub(crate) fn run_late_rank(host: &mut Host) {
    for rank in 0..4 {
        host.start("train", 100 + rank).now.rank = Some((rank, 4));
    }
    let work = |processes: &mut [Process], late: u64| {
        for (rank, process) in processes.iter_mut().enumerate() {
            let (tid, waits) =
                (process.now.tgid.0, if rank == 2 { 100 * MS } else { 100 * MS + late });
            process.on(tid).launches(1_000, 5 * US);
            process.calls("ncclAllReduce", 10, 20 * US, &[]);
            process.calls("cudaStreamSynchronize", 10, waits / 10, &[]);
        }
    };
    host.run_all(8, |processes, _| work(processes, 0));
    host.is_silent();
    host.run_all(FAULT_WINDOWS, |processes, _| work(processes, 800 * MS));
}

/// Every GPU of the host is clock-throttled; the thread launches half as much and waits for the GPU.
pub(crate) fn slow_clock() -> Host {
    let mut host = Host::training();
    host.throttled_gpus = vec![("GPU-1", 0.0), ("GPU-2", 0.0)];
    host.run(8, steady);
    host.throttled_gpus = vec![("GPU-1", 0.9), ("GPU-2", 0.8)];
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(1_000, 5 * US);
        train.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 80 * MS)]);
    });
    host
}

/// A launch does not return: it waits for a lock.
pub(crate) fn hung() -> Host {
    let mut host = trained();
    for window in 1..=8 {
        host.run(1, |train| {
            train.on(100).rests(Phase::Launch, State::Off(Reason::Lock));
            train.in_call(Some(("cudaLaunchKernel", window * 2_000 * MS)));
        });
    }
    host
}

/// One of two workers is killed for lack of memory.
pub(crate) fn short_of_memory() -> Host {
    let mut host = trained();
    for tgid in [200, 201] {
        host.start_worker(0, tgid);
    }
    host.run_all(1, |processes, _| {
        steady(&mut processes[0]);
        processes[2].now.measures.oom_kills = 1;
    });
    host
}

/// Launches are slow and the thread never leaves the CPU in them.
pub(crate) fn slow_for_no_reason() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.launches(40, 5 * MS);
    });
    host
}

/// A data set computes for 20 ms before each burst of launches; the GPU has long been done.
pub(crate) fn computing() -> Host {
    let mut host = trained();
    host.run(FAULT_WINDOWS, slow_data_set);
    host
}

/// 66 steps: a data set computes for 20 ms, and 100 launches follow.
pub(crate) fn slow_data_set(train: &mut Process) {
    train.on(100).launches(6_600, 5 * US).pauses(66, 20 * MS).pauses(6_534, 95 * US);
    train.calls("cudaStreamSynchronize", 66, 20 * US, &[(Reason::GpuDriver, 400 * US)]);
}

/// Every scenario.
pub(crate) const ALL: [fn() -> Host; 25] = [
    computing,
    short_of_memory,
    preempted,
    queued,
    throttled,
    locked,
    locked_in_launches,
    locked_in_the_kernel,
    on_disk,
    paging,
    behind_a_reader,
    starved,
    starved_through_a_pinning_thread,
    syncing,
    copying_results,
    churning,
    refused_memory,
    leaking,
    recapturing,
    loading_kernels,
    copying_blocks,
    late_rank,
    slow_clock,
    hung,
    slow_for_no_reason,
];
