//! Healthy programs, for ten minutes each.

use gpucause_abi::op::CopyKind;
use gpucause_abi::state::{Phase, Reason, Relation, State};

use crate::host::Host;
use crate::process::{KERNEL, MIB, MS, Task, US};
use crate::scenarios::{WORKER, steady, trained};

/// Windows in ten minutes.
const WINDOWS: u32 = 300;

#[test]
fn a_program_that_trains() {
    let mut host = Host::training();
    host.run(WINDOWS, steady);
    host.is_silent();
}

#[test]
fn a_program_that_warms_up() {
    let mut host = Host::training();
    let mut cached = 0;
    host.run_all(WINDOWS, |processes, window| {
        let train = &mut processes[0];
        match window {
            // Weights are read in from disk, page by page, and copied.
            0..3 => {
                train.on(100).launches(150, 10 * US).allocates(200, 50 * US, 4_000 * MIB);
                train.waits(Reason::PageFault, KERNEL, 700 * MS, 0);
                train.waits(Reason::Io, KERNEL, 600 * MS, 0);
                train.copies("cudaMemcpy", 4, CopyKind::H2d, 8, 60 * MS);
            }
            // The first steps load kernels, probe for free memory and capture graphs.
            3..7 => {
                steady(train);
                train.cold_launches(80, 8 * MS).allocates(100, 100 * US, 900 * MIB);
                train.frees(40, 100 * US, 500 * MIB);
                train.calls("cudaGraphInstantiate", 5, 10 * MS, &[]);
            }
            _ => {
                steady(train);
                // Caches fill for three minutes.
                let more = if window < 97 { 40 } else { 0 };
                cached += more;
                train.allocates(more, 20 * US, more * MIB);
                train.cold_launches(u64::from(window % 50 == 0), 2 * MS);
            }
        }
    });
    assert!(cached > 1_000);
    host.is_silent();
}

#[test]
fn pages_read_in_once_at_the_start() {
    let mut host = Host::training();
    host.run(2, |train| {
        train.on(100).launches(500, 5 * US);
        train.calls("cudaLaunchKernel", 20, 5 * US, &[(Reason::PageFault, 50 * MS)]);
        train.waits(Reason::PageFault, KERNEL, 900 * MS, 0);
    });
    host.run(WINDOWS, steady);
    host.is_silent();
}

#[test]
fn a_server_that_idles() {
    let mut host = Host::training();
    let frontend = Task("frontend", 100, Relation::Thread);
    host.run_all(WINDOWS, |processes, window| {
        let server = &mut processes[0];
        // Requests come and go: from none to many.
        let requests = u64::from(window * 7 % 40);
        server.on(100).rests(Phase::Host, State::Off(Reason::Poll));
        server.launches(20 * requests, 6 * US);
        server.calls("cudaStreamSynchronize", requests, 30 * US, &[(Reason::GpuDriver, 3 * MS)]);
        // The frontend is woken by a client, works for 100 us and hands the request over.
        server.waits(Reason::Futex, frontend, 1_000 * MS, requests * 100 * US);
        server.blame(Phase::Host, Reason::Poll, frontend, 500 * MS, 0);
    });
    host.is_silent();
}

#[test]
fn a_server_without_requests_after_many() {
    let mut host = trained();
    host.run(WINDOWS, |server| {
        server.on(100).rests(Phase::Host, State::Off(Reason::Futex));
    });
    host.is_silent();
}

#[test]
fn a_program_whose_helper_threads_sleep_and_wake() {
    let mut host = trained();
    host.run(WINDOWS, |train| {
        steady(train);
        train.helpers_switch(50_000);
    });
    host.is_silent();
}

#[test]
fn a_program_that_waits_for_the_gpu_nearly_all_the_time() {
    let mut host = Host::training();
    host.run(WINDOWS, |train| {
        train.on(100).launches(500, 5 * US);
        train.calls("cudaStreamSynchronize", 500, 20 * US, &[(Reason::GpuDriver, 3_700 * US)]);
    });
    host.is_silent();
}

#[test]
fn a_trainer_whose_workers_keep_up() {
    let mut host = Host::training();
    host.start_worker(0, 200);
    host.run_all(WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 15 * MS, 0);
        let futex = State::Off(Reason::Futex);
        processes[1].works(&[(State::Running, 1_100 * MS), (futex, 900 * MS)]);
    });
    host.is_silent();
}
