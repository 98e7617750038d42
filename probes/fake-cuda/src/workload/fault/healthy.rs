//! Healthy programs that resemble faulty ones.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use gpucause_fake_cuda::script::Way;
use gpucause_fake_cuda::{block, clock};

use super::Fault;
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// Pages of a file that is not in memory, read in once when the program starts.
const PAGE_IN_NS: u64 = 20_000_000;
/// Between two requests to the server, and what its front end computes for each.
const REQUEST_EVERY_NS: u64 = 60_000_000;
const PARSE_NS: u64 = 2_000_000;

/// A training loop at its pace.
pub(super) struct Steady;

impl Fault for Steady {
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        Ok(block::block(Way::PageFault, PAGE_IN_NS)?)
    }
}

/// A server that waits for requests more than it works.
pub(super) struct Server {
    requests: Arc<(Mutex<u32>, Condvar)>,
}

impl Server {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { requests: Arc::default() })
    }
}

impl Fault for Server {
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        let requests = Arc::clone(&self.requests);
        thread::Builder::new().name("http-front-end".into()).spawn(move || {
            // Uneven, as requests are.
            for pause in [7, 13, 4, 11, 9, 16].into_iter().cycle() {
                clock::sleep(REQUEST_EVERY_NS * pause / 10);
                clock::spin(PARSE_NS);
                *requests.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                requests.1.notify_one();
            }
        })?;
        Ok(())
    }

    fn step(&mut self, gpu: &mut Gpu, _loss: Option<&Loss>) -> Result<()> {
        let (waiting, arrival) = &*self.requests;
        let arrived = arrival
            .wait_while(waiting.lock().unwrap_or_else(PoisonError::into_inner), |waiting| {
                *waiting == 0
            });
        *arrived.unwrap_or_else(PoisonError::into_inner) -= 1;
        (0..4).try_for_each(|_| gpu.step(&self.pace()))
    }
}

/// A loop whose time is the GPU's.
pub(super) struct Bound;

impl Fault for Bound {
    fn pace(&self) -> Pace {
        Pace { launches: 32, gpu_ns: 20_000_000, ..Pace::STEADY }
    }
}
