//! Disk and memory use of processes.

use std::collections::BTreeMap;

use gpucause_abi::Nanos;
use gpucause_abi::record::{BlockKey, BlockRecord, FAULTS, ProcRecord};
use gpucause_abi::snapshot::{BlockIo, DeviceName, ProcessSnapshot};
use gpucause_abi::state::BlockOperation;

use super::{ReadError, Reader};

impl Reader {
    /// Fills in block I/O; returns the entries of the map.
    pub(super) fn read_block_io(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let entries = self.block_io.each(|key: BlockKey, record: BlockRecord| {
            let operation = u8::try_from(key.operation).ok().and_then(BlockOperation::from_raw);
            if let (Some(process), Some(operation)) = (processes.get_mut(&key.proc_id), operation) {
                process.host.block_io.push(BlockIo {
                    device: DeviceName(key.device),
                    operation,
                    time: Nanos(record.ns),
                    bytes: record.bytes,
                    requests: record.requests,
                });
            }
        })?;
        for process in processes.values_mut() {
            process.host.block_io.sort_unstable_by_key(|io| (io.device, io.operation));
        }
        Ok(entries)
    }
}

/// Page faults of the process when this image ended; for a live one, as reported by its threads.
pub(super) fn ended_faults(record: &ProcRecord) -> Option<[u64; FAULTS]> {
    (record.ended_ns != 0).then_some(record.faults_ended)
}

/// The kernel counts page faults over all images of a process: subtracts those of earlier images.
pub(super) fn split_faults(processes: &mut BTreeMap<u32, ProcessSnapshot>) {
    let mut images: Vec<&mut ProcessSnapshot> = processes.values_mut().collect();
    images.sort_unstable_by_key(|image| (image.tgid, image.started_boottime, image.first_seen));
    let mut before = (None, [0; FAULTS]);
    for image in images {
        let process = Some((image.tgid, image.started_boottime));
        if before.0 != process {
            before = (process, [0; FAULTS]);
        }
        let Some(faults) = &mut image.host.page_faults else { continue };
        for (own, before) in faults.iter_mut().zip(&mut before.1) {
            let until_now = (*own).max(*before);
            *own = until_now - *before;
            *before = until_now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::{ProcId, Tgid};

    fn image(id: u32, tgid: u32, started: u64, faults: u64) -> (u32, ProcessSnapshot) {
        let mut image = ProcessSnapshot::new(ProcId(id), Tgid(tgid), Comm([0; 16]));
        image.started_boottime = Nanos(started);
        image.first_seen = Nanos(u64::from(id));
        image.host.page_faults = Some([faults, 0]);
        (id, image)
    }

    #[test]
    fn faults_of_a_process_are_split_among_its_images_and_a_reused_pid_inherits_none() {
        let mut processes =
            BTreeMap::from([image(1, 7, 100, 40), image(2, 7, 100, 65), image(3, 7, 900, 50)]);
        split_faults(&mut processes);
        let faults: Vec<_> = processes.values().map(|image| image.host.page_faults).collect();
        assert_eq!(faults, [Some([40, 0]), Some([25, 0]), Some([50, 0])]);
    }
}
