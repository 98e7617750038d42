//! Bytes copied, allocated, freed and sent.

use std::collections::BTreeMap;

use gpucause_abi::op::{Class, OpId};
use gpucause_abi::record::{BytesKey, BytesKind};
use gpucause_abi::snapshot::ProcessSnapshot;

use super::{ReadError, Reader};

impl Reader {
    /// Fills in byte counts; returns the entries of the map.
    pub(super) fn read_bytes(
        &self,
        processes: &mut BTreeMap<u32, ProcessSnapshot>,
    ) -> Result<u64, ReadError> {
        let entries = self.bytes.each(|key: BytesKey, count: u64| {
            let Some(process) = processes.get_mut(&key.proc_id) else { return };
            match u8::try_from(key.what).ok().and_then(BytesKind::from_raw) {
                Some(BytesKind::Copied) => {
                    if let Some(total) = process.copied.get_mut(usize::from(key.which)) {
                        *total = count;
                    }
                }
                Some(BytesKind::Allocated) => process.memory.allocated = count,
                Some(BytesKind::Freed) => process.memory.freed = count,
                Some(BytesKind::Collective) => process.collectives.push((OpId(key.which), count)),
                Some(BytesKind::UntimedCalls) => match OpId(key.which).op() {
                    Some(op) if op.class == Class::Launch => process.launches.untimed += count,
                    _ => process.untimed_calls.push((OpId(key.which), count)),
                },
                None => {}
            }
        })?;
        for process in processes.values_mut() {
            process.collectives.sort_unstable();
            process.untimed_calls.sort_unstable();
            process.copies.sort_unstable_by_key(|&(kind, class, _)| (kind, class));
            if process.ended.is_some() {
                process.memory.freed = process.memory.allocated;
            }
        }
        Ok(entries)
    }
}
