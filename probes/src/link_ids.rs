//! Allocates the small ids of probe links.

use std::collections::VecDeque;

use gpucause_abi::record::MAX_LINKS;

const _: () = assert!(MAX_LINKS <= u16::MAX as usize);

/// The probes of one file. Below [`MAX_LINKS`]; reused only after all others, so that a late hit is not attributed to
/// another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u16);

#[derive(Debug)]
pub(crate) struct LinkIds {
    /// Longest free first.
    free: VecDeque<LinkId>,
}

impl LinkIds {
    /// The ids below `end`.
    pub(crate) fn below(end: usize) -> Self {
        Self { free: (0..).take(end).map(LinkId).collect() }
    }

    /// The ids from `first` on.
    pub(crate) fn starting_at(first: usize) -> Self {
        Self { free: (0..).take(MAX_LINKS).skip(first).map(LinkId).collect() }
    }

    pub(crate) fn take(&mut self) -> Option<LinkId> {
        self.free.pop_front()
    }

    pub(crate) fn give_back(&mut self, id: LinkId) {
        self.free.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_only_after_all_others() {
        let mut ids = LinkIds::below(MAX_LINKS);
        let first = ids.take().unwrap();
        ids.give_back(first);
        for _ in 1..MAX_LINKS {
            let id = ids.take().unwrap();
            assert!(id != first && usize::from(id.0) < MAX_LINKS);
        }
        assert_eq!(ids.take(), Some(first));
        assert_eq!(ids.take(), None);
    }
}
