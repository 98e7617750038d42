//! The messages: a row for each field of the accounts. Tags are never used for another thing; what is new gets a new one.

use gpucause_abi::hist::Histogram;
use gpucause_abi::op::CopyKind;
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, DispatcherSnapshot, HostUse, LaunchSampling, MapUsage, ProcessSnapshot,
    Snapshot, StallSnapshot, Wait,
};
use gpucause_abi::state::{Fault, Phase, Reason, Role, State, Switch};

use super::Result;
use super::cells::{Cells, KnownCells, Table};
use super::value::{Codec, Message, Plain};
use super::wire::{Reader, Writer};

/// How a field is written, if not as its type is.
macro_rules! codec {
    () => {
        Plain
    };
    ($codec:ty) => {
        $codec
    };
}

/// Declares how structs are messages: the tag of each field. A field without a tag does not compile.
macro_rules! columns {
    ($($name:ident { $($tag:literal $field:ident $(as $codec:ty)?),+ $(,)? })+) => {$(
        impl Message for $name {
            fn write(&self, to: &mut Writer) {
                let Self { $($field),+ } = self;
                $(<codec!($($codec)?) as Codec<_>>::write($field, $tag, to);)+
            }

            fn read(from: Reader<'_>) -> Result<Option<Self>> {
                $(let Some($field) = <codec!($($codec)?) as Codec<_>>::read(from, $tag)? else {
                    return Ok(None);
                };)+
                Ok(Some(Self { $($field),+ }))
            }
        }
    )+};
}

columns! {
    // The labels that explain the numbers of enums are at 1, what is known of GPUs and cgroups at 7 and 8.
    Snapshot { 2 taken_at, 4 processes, 5 counters, 6 maps }

    MapUsage { 1 map, 2 entries, 3 capacity, 4 refused }

    // Some have a tag or two of their own beyond that given here: `memory`, `rank`, and what is under `measures`.
    ProcessSnapshot {
        1 id,
        2 tgid,
        3 comm,
        4 parent,
        5 started_boottime,
        6 first_seen,
        7 dispatches,
        8 ended,
        9 execed,
        11 calls,
        12 stalls,
        13 errors,
        14 kernels,
        16 launch_times,
        17 copied as Cells<CopyKind>,
        18 copies,
        19 memory,
        21 collectives,
        22 rank,
        24 dispatcher_time as Table<Phase, State>,
        25 dispatchers,
        26 worker,
        27 launch_gap,
        29 waits,
        30 offcpu,
        31 runqueue,
        32 switches as Table<Role, Switch>,
        33 host,
        33 measures,
        34 launches,
        35 untimed_calls,
    }

    // The kind of step has tags 1 to 3, the rate 8 and 9; 5 were estimates of launches that were not seen.
    LaunchSampling {
        1 step,
        4 untimed,
        6 unobserved,
        7 observed,
        8 rate,
        10 without_queries,
        11 async_one_in,
    }

    // The slots have tags 3 and 4.
    Histogram { 1 sum, 2 max, 3 slots }

    CallSnapshot { 1 op, 2 cold, 3 durations, 4 stalled, 5 nested }

    StallSnapshot { 1 op, 2 cold, 3 calls, 4 offcpu as Cells<Reason>, 5 nested }

    // The op in flight has tags 4 and 5.
    DispatcherSnapshot { 1 tid, 2 wall, 3 time as Table<Phase, State>, 4 inflight }

    Wait { 1 tid, 2 reason, 3 on, 4 phase, 5 total, 6 held, 7 tgid, 8 relation, 9 holder, 10 behind, 11 lock, 12 syscall }

    // Tags from 4 on are of the measures; page faults have 2 and 3.
    HostUse { 1 block_io, 2 page_faults as KnownCells<Fault> }

    BlockIo { 1 device, 2 operation, 3 time, 4 bytes, 5 requests }
}
