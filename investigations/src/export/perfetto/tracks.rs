//! Tracks of nodes, processes and threads, and their child tracks.

use std::collections::{HashMap, HashSet};
use std::io;

use super::packets::Packets;
use super::proto::{
    CounterDescriptor, ProcessDescriptor, SIZE_BYTES, ThreadDescriptor, TrackDescriptor,
};
use crate::export::nesting::{Lane, Lanes};
use gpucause_trace::recording::{Process, ProcessIndex, Recording};

/// The kinds of slices of a thread. Each has its own track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Row {
    /// The thread's track; overlapping calls get child tracks.
    Calls,
    OffCpu,
    BlockIo,
    Other,
}

impl Row {
    const fn name(self) -> &'static str {
        match self {
            Self::Calls => "overlapping calls",
            Self::OffCpu => "off CPU",
            Self::BlockIo => "block I/O",
            Self::Other => "other",
        }
    }
}

/// Above Linux's largest PID.
const FIRST_UNUSED: i32 = (1 << 22) + 1;

/// PIDs and TIDs are unique in a trace. The first task with a number keeps it; others get one above Linux's largest.
struct Numbers {
    taken: HashSet<i32>,
    next: i32,
}

impl Numbers {
    fn give(&mut self, number: u32) -> i32 {
        let number = i32::try_from(number).unwrap_or(self.next);
        if self.taken.insert(number) {
            return number;
        }
        // Only a damaged file has numbers beyond Linux's largest.
        while !self.taken.insert(self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.next
    }
}

/// Tracks of one kind below another track.
#[derive(Default)]
struct Group {
    lanes: Lanes,
    uuids: Vec<u64>,
}

struct ProcessTrack {
    uuid: u64,
    number: i32,
    chains: Group,
    memory: Option<u64>,
}

struct ThreadTrack {
    uuid: u64,
    rows: HashMap<Row, Group>,
}

/// The tracks written so far.
pub(super) struct Tracks<'a> {
    recording: &'a dyn Recording,
    last_uuid: u64,
    /// By process. Assigned before those of threads.
    process_numbers: Vec<i32>,
    numbers: Numbers,
    nodes: HashMap<usize, (u64, Group)>,
    processes: HashMap<ProcessIndex, ProcessTrack>,
    threads: HashMap<(ProcessIndex, u32), ThreadTrack>,
}

impl<'a> Tracks<'a> {
    pub(super) fn new(recording: &'a dyn Recording) -> Self {
        let mut numbers = Numbers { taken: HashSet::new(), next: FIRST_UNUSED };
        let process_numbers =
            recording.processes().iter().map(|process| numbers.give(process.pid)).collect();
        Self {
            recording,
            last_uuid: 0,
            process_numbers,
            numbers,
            nodes: HashMap::new(),
            processes: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    /// The track for a session of a node.
    pub(super) fn node(
        &mut self,
        node: usize,
        (start, end): (u64, u64),
        packets: &mut Packets<'_>,
    ) -> io::Result<u64> {
        let name = self.recording.nodes().get(node).map_or("?", |node| node.name.as_str());
        let name = format!("node {name}");
        let (_, group) = self.nodes.entry(node).or_default();
        shared(group, (start, end), &name, None, &mut self.last_uuid, packets)
    }

    /// The track for a chain of a process.
    pub(super) fn chains(
        &mut self,
        process: ProcessIndex,
        (start, end): (u64, u64),
        packets: &mut Packets<'_>,
    ) -> io::Result<u64> {
        self.process(process, packets)?;
        let Some(track) = self.processes.get_mut(&process) else { return Ok(0) };
        let parent = Some(track.uuid);
        let name = "causal chains";
        shared(&mut track.chains, (start, end), name, parent, &mut self.last_uuid, packets)
    }

    /// The counter track for the device memory of a process.
    pub(super) fn memory(
        &mut self,
        process: ProcessIndex,
        packets: &mut Packets<'_>,
    ) -> io::Result<u64> {
        let parent = self.process(process, packets)?;
        if let Some(known) = self.processes.get(&process).and_then(|track| track.memory) {
            return Ok(known);
        }
        let uuid = next(&mut self.last_uuid);
        packets.track(TrackDescriptor {
            counter: Some(CounterDescriptor { unit: Some(SIZE_BYTES) }),
            ..child(uuid, "device memory allocated since the recording started", Some(parent))
        })?;
        if let Some(track) = self.processes.get_mut(&process) {
            track.memory = Some(uuid);
        }
        Ok(uuid)
    }

    /// The track for a slice of a thread.
    pub(super) fn slice(
        &mut self,
        (process, tid): (ProcessIndex, u32),
        row: Row,
        (start, end): (u64, u64),
        packets: &mut Packets<'_>,
    ) -> io::Result<u64> {
        let thread = self.thread(process, tid, packets)?;
        let Some(track) = self.threads.get_mut(&(process, tid)) else { return Ok(thread) };
        let group = track.rows.entry(row).or_insert_with(|| match row {
            Row::Calls => Group { uuids: vec![thread], ..Group::default() },
            _ => Group::default(),
        });
        shared(group, (start, end), row.name(), Some(thread), &mut self.last_uuid, packets)
    }

    /// The track of a thread.
    pub(super) fn thread(
        &mut self,
        process: ProcessIndex,
        tid: u32,
        packets: &mut Packets<'_>,
    ) -> io::Result<u64> {
        if let Some(track) = self.threads.get(&(process, tid)) {
            return Ok(track.uuid);
        }
        let parent = self.process(process, packets)?;
        let pid = self.processes.get(&process).map_or(0, |track| track.number);
        let of = self.recording.process_at(process);
        let is_main = of.is_some_and(|of| of.pid == tid);
        let number = if is_main { pid } else { self.numbers.give(tid) };
        let known = self.recording.thread_name(process, tid).map(str::to_owned);
        let mut name = known.or_else(|| of.filter(|_| is_main).map(|of| of.comm.clone()));
        if i64::from(number) != i64::from(tid) {
            name = Some(format!("{} (TID {tid})", name.as_deref().unwrap_or("thread")));
        }
        let uuid = next(&mut self.last_uuid);
        packets.track(TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(parent),
            thread: Some(ThreadDescriptor {
                pid: Some(pid),
                tid: Some(number.into()),
                thread_name: name,
            }),
            ..TrackDescriptor::default()
        })?;
        self.threads.insert((process, tid), ThreadTrack { uuid, rows: HashMap::new() });
        Ok(uuid)
    }

    fn process(&mut self, process: ProcessIndex, packets: &mut Packets<'_>) -> io::Result<u64> {
        if let Some(track) = self.processes.get(&process) {
            return Ok(track.uuid);
        }
        let uuid = next(&mut self.last_uuid);
        let index = process.0 as usize;
        let number = self.process_numbers.get(index).copied().unwrap_or_default();
        if let Some(known) = self.recording.processes().get(index) {
            packets.track(TrackDescriptor {
                uuid: Some(uuid),
                process: Some(self.describe(known, number)),
                ..TrackDescriptor::default()
            })?;
        }
        let track = ProcessTrack { uuid, number, chains: Group::default(), memory: None };
        self.processes.insert(process, track);
        Ok(uuid)
    }

    fn describe(&self, process: &Process, number: i32) -> ProcessDescriptor {
        let nodes = self.recording.nodes();
        let node = nodes.get(usize::from(process.node.0)).map_or("?", |node| node.name.as_str());
        let mut name = process.comm.clone();
        if let Some(rank) = process.rank {
            name.push_str(&format!(" rank {rank}"));
        }
        if nodes.len() > 1 {
            name.push_str(&format!(" on {node}"));
        }
        if i64::from(number) != i64::from(process.pid) {
            name.push_str(&format!(" (PID {})", process.pid));
        }
        let mut labels = vec![format!("node {node}")];
        labels.extend(process.rank.map(|rank| format!("rank {rank}")));
        labels.extend(process.details.iter().map(|(name, value)| format!("{name} {value}")));
        ProcessDescriptor { pid: Some(number), process_name: Some(name), process_labels: labels }
    }
}

/// The track of a group for a slice; a new one is written. The viewer merges tracks of the same name.
fn shared(
    group: &mut Group,
    (start, end): (u64, u64),
    name: &str,
    parent: Option<u64>,
    last_uuid: &mut u64,
    packets: &mut Packets<'_>,
) -> io::Result<u64> {
    let lane = group.lanes.assign(start, end);
    if let Lane::Shared(number) = lane
        && let Some(&known) = group.uuids.get(number)
    {
        return Ok(known);
    }
    let uuid = next(last_uuid);
    packets.track(child(uuid, name, parent))?;
    if let Lane::Shared(_) = lane {
        group.uuids.push(uuid);
    }
    Ok(uuid)
}

fn child(uuid: u64, name: &str, parent_uuid: Option<u64>) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        name: Some(name.to_owned()),
        parent_uuid,
        ..TrackDescriptor::default()
    }
}

fn next(last_uuid: &mut u64) -> u64 {
    *last_uuid += 1;
    *last_uuid
}
