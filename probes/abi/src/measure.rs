//! Measures of a process: the kernel keeps one number for each. A row here is all that the kernel's record, reading, adding
//! up, deltas and the trace file need. If host-wide programs count it, a row of the exporter's metrics that names it puts
//! it on the page.

use crate::Nanos;
use crate::c_record::{CRecord, records};

/// Facts about a number besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// The field of [`Measures`].
    pub name: &'static str,
    /// Its place in trace files.
    pub tag: WireTag,
    /// The host-wide kernel programs that count it: unless all run, it is unknown rather than zero. None for what the call
    /// programs count.
    pub programs: &'static [&'static str],
}

/// A field number of the trace file's messages; never used for another thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireTag {
    /// In the message of a process.
    Process(u32),
    /// In its message about the host.
    Host(u32),
}

/// Declares the rows. Nanoseconds are [`Nanos`], all else is `u64`; every measure only grows while its process lives.
macro_rules! measures {
    ($($(#[$meta:meta])* $name:ident: $ty:ident, $tag:ident($number:literal), [$($program:literal),*];)+) => {
        records! {
            /// One number for each row of [`MEASURES`].
            #[derive(Default)]
            Measures as "measures" { $($(#[$meta])* $name: $ty),+ }
        }

        /// Every row, in the order of the fields of [`Measures`].
        pub const MEASURES: [Measure; size_of::<Measures>() / size_of::<u64>()] = [$(Measure {
            name: stringify!($name),
            tag: WireTag::$tag($number),
            programs: &[$($program),*],
        }),+];
    };
}

measures! {
    /// Calls that were open when their thread exited, exec'ed, or unwound past them.
    abandoned_calls: u64, Process(10), [];
    /// Launches of kernel functions without a record, beyond the limit.
    other_launches: u64, Process(15), [];
    /// How long threads of its parent waited until this process woke them.
    ended_waits: Nanos, Process(28), ["sched_switch", "sched_waking"];
    /// Pages that its threads took from the kernel, in bytes, given back or not.
    page_alloc_bytes: u64, Host(4), ["page_alloc"];
    /// Time that its threads spent freeing memory before they got theirs.
    direct_reclaim: Nanos, Host(5), ["reclaim_begin", "reclaim_end", "memcg_begin", "memcg_end"];
    /// Segments that its TCP sockets sent again.
    tcp_retransmits: u64, Host(6), ["tcp_state", "tcp_receive", "tcp_retransmit"];
    /// Times that the kernel chose it to be killed for lack of memory.
    oom_kills: u64, Host(7), ["oom_victim"];
    /// Times that a dispatcher thread got a CPU of another NUMA node than the one before.
    numa_migrations: u64, Host(8), ["sched_switch"];
}

impl Measures {
    /// The numbers, in the order of [`MEASURES`].
    pub fn amounts(&self) -> &[u64; MEASURES.len()] {
        zerocopy::transmute_ref!(self)
    }

    /// The numbers to be changed.
    pub fn amounts_mut(&mut self) -> &mut [u64; MEASURES.len()] {
        zerocopy::transmute_mut!(self)
    }

    /// Adds those of another image of the process.
    pub fn merge(&mut self, other: &Self) {
        for (own, added) in self.amounts_mut().iter_mut().zip(other.amounts()) {
            *own = own.saturating_add(*added);
        }
    }

    /// Returns the amounts added since an earlier copy.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (own, before) in self.amounts_mut().iter_mut().zip(earlier.amounts()) {
            *own = own.saturating_sub(*before);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_measure_has_a_name_and_a_tag_of_its_own() {
        let names: HashSet<_> = MEASURES.iter().map(|measure| measure.name).collect();
        let tags: HashSet<_> =
            MEASURES.iter().map(|measure| format!("{:?}", measure.tag)).collect();
        assert_eq!((names.len(), tags.len()), (MEASURES.len(), MEASURES.len()));
    }

    #[test]
    fn numbers_are_in_the_order_of_their_rows() {
        let at = |name| MEASURES.iter().position(|measure| measure.name == name).unwrap();
        let measures = Measures { ended_waits: Nanos(7), oom_kills: 1, ..Measures::default() };
        let amounts = measures.amounts();
        assert_eq!((amounts[at("ended_waits")], amounts[at("oom_kills")]), (7, 1));
        assert_eq!(amounts.iter().sum::<u64>(), 8);
    }

    #[test]
    fn every_measure_adds_up_and_its_delta_is_what_was_added() {
        let mut sum = Measures::default();
        let mut image = Measures::default();
        for (amount, value) in image.amounts_mut().iter_mut().zip(1..) {
            *amount = value;
        }
        sum.merge(&image);
        let before = sum;
        sum.merge(&image);
        assert_eq!((sum.since(&before), before), (image, image));
        assert_eq!(before.since(&sum), Measures::default());
    }
}
