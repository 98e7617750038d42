//! Accounts of one process: its images, and the members of a group, that go by one name are one series.

use std::collections::HashMap;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, Tgid};

/// A process by PID, start and name.
pub(crate) type ProcessKey = (Tgid, Nanos, String);

/// Accounts by process, each behind the process or group that it is part of.
pub(crate) fn by_process<'a>(
    accounts: impl IntoIterator<Item = (&'a ProcessSnapshot, &'a ProcessSnapshot)>,
) -> HashMap<ProcessKey, Vec<(&'a ProcessSnapshot, &'a ProcessSnapshot)>> {
    let mut images: HashMap<_, Vec<_>> = HashMap::new();
    for (image, account) in accounts {
        let process = (image.tgid, image.started_boottime, image.comm.to_text());
        images.entry(process).or_default().push((image, account));
    }
    images
}
