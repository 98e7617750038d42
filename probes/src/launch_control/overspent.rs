//! Processes that take far more than their budget, as the programs report them: before the window has ended.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use gpucause_abi::ProcId;
use libbpf_rs::{MapCore as _, MapHandle, Object, RingBuffer, RingBufferBuilder};
use parking_lot::Mutex;

use crate::load_error::LoadError;

/// The programs report each process at most once a window.
#[derive(Debug)]
pub(crate) struct Overspent {
    map: MapHandle,
    ring: RingBuffer<'static>,
    reported: Arc<Mutex<Vec<ProcId>>>,
}

impl Overspent {
    pub(crate) fn new(object: &Object) -> Result<Self, LoadError> {
        const NAME: &str = "overspent";
        let map = object.maps().find(|map| map.name() == NAME);
        let map = map.and_then(|map| MapHandle::try_from(&map).ok());
        let map = map.ok_or(LoadError::Incomplete(NAME))?;
        let reported = Arc::new(Mutex::new(Vec::new()));
        let report = Arc::clone(&reported);
        let refused =
            |source| LoadError::Refused { step: "configured", source, detail: String::new() };
        let mut ring = RingBufferBuilder::new();
        ring.add(&map, move |id| {
            report.lock().extend(id.try_into().ok().map(|id| ProcId(u32::from_ne_bytes(id))));
            0
        })
        .map_err(refused)?;
        let ring = ring.build().map_err(refused)?;
        Ok(Self { map, ring, reported })
    }

    /// The processes that were reported since the last call.
    pub(crate) fn take(&self) -> Vec<ProcId> {
        // Fails where a callback does, which none does here.
        self.ring.consume_raw();
        std::mem::take(&mut self.reported.lock())
    }
}

/// Readable once a process is reported.
impl AsFd for Overspent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
