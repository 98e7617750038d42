//! Single events, for when somebody asks: the kernel programs keep the newest in a ring that user space looks at through a
//! mapping, all the time or only once something is wrong.
//!
//! Nothing waits for the reader: what it does not take in time is written over, and counted. Without a recorder that was told
//! to record, the programs pass by with one look at a flag; without [`Options::recorder`](crate::Options::recorder) they are
//! loaded without even that, and the ring has no room.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpucause_abi::event::{Detail, RawEvent, RecordingRecord, RingState};
use gpucause_abi::{Nanos, Tgid};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object};

use crate::reader::monotonic_now;

mod python;
mod slots;

use python::PythonMaps;
use slots::{Look, Slots};

/// Room for events and stacks in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Events, 64 bytes each; made a power of two, from 64 to 4,194,304.
    pub events: u32,
    /// Stacks, 1 KiB each.
    pub stacks: u32,
}

impl Default for RingSize {
    /// 8 MiB of events and 4 MiB of stacks.
    fn default() -> Self {
        Self { events: 1 << 17, stacks: 4096 }
    }
}

impl RingSize {
    /// Slots of the ring.
    pub(crate) fn slots(self) -> u32 {
        self.events.clamp(64, 1 << 22).next_power_of_two()
    }
}

/// Whether the loaded programs can record.
#[derive(Debug, Clone)]
pub(crate) enum Room {
    /// Nobody asked for it.
    None,
    /// So many slots.
    Slots(u32),
    /// The kernel takes the programs only without what records.
    Unsupported(String),
    /// There was no room, or something else failed.
    Broken(String),
}

/// Events cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// No room was asked for.
    #[error("events are not recorded: no room for them was asked for")]
    Disabled,
    /// There is a recorder already.
    #[error("events are being recorded already")]
    InUse,
    /// This kernel has no means for it.
    #[error("this kernel cannot record events: {0}")]
    Unsupported(String),
    /// Something failed.
    #[error("events cannot be recorded: {0}")]
    Broken(String),
}

impl RecorderError {
    fn broken(what: &str, error: &libbpf_rs::Error) -> Self {
        Self::Broken(format!("{what}: {error:#}"))
    }
}

/// What is recorded beside the birth and end of processes, requests to disks, reclaim, retransmissions and kills, which all are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderSettings {
    /// Traced calls that take at least this long.
    pub calls_from: Nanos,
    /// Of the others one in so many, drawn at random; 0 for none, 1 for all.
    pub sample_rest: u32,
    /// All outermost calls that take or give back device memory.
    pub allocations: bool,
    /// Intervals off the CPU that take at least this long. Waits for a CPU are cut where another task got it.
    pub off_cpu_from: Nanos,
    /// Those of threads, too, that make no traced calls, of processes that do.
    pub helper_threads: bool,
    /// Stacks of the calls of `calls_from`.
    pub stacks: bool,
    /// Only these processes; empty for all.
    pub only: BTreeSet<Tgid>,
}

impl Default for RecorderSettings {
    /// What takes longer than 100 us, with stacks.
    fn default() -> Self {
        Self {
            calls_from: Nanos(100_000),
            sample_rest: 0,
            allocations: true,
            off_cpu_from: Nanos(100_000),
            helper_threads: false,
            stacks: true,
            only: BTreeSet::new(),
        }
    }
}

impl RecorderSettings {
    fn record(&self) -> RecordingRecord {
        RecordingRecord {
            on: 1,
            sample: self.sample_rest,
            call_ns: self.calls_from.0,
            offcpu_ns: self.off_cpu_from.0,
            filtered: (!self.only.is_empty()).into(),
            stacks: self.stacks.into(),
            allocations: self.allocations.into(),
            helpers: self.helper_threads.into(),
        }
    }
}

/// What a look at the ring has found. Every event is counted once, in one of these, in this look or a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Handed over.
    pub events: u64,
    /// Written over before they could be read, or given up by the program because its slot was taken.
    pub lost: u64,
    /// Of a kind that this version does not know.
    pub unknown: u64,
}

/// What the ring holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dump {
    /// Events that ended within the time that was asked for, in the order in which they were recorded.
    pub events: Vec<RawEvent>,
    /// Events that were being written, or written over, at that moment.
    pub missed: u64,
    /// When the ring has been gone round: the end of the oldest event that it still holds. What happened earlier is
    /// incomplete.
    pub complete_since: Option<Nanos>,
}

/// Switches recording on and off, and reads what was recorded. There is one at a time; dropped, it switches recording off.
#[derive(Debug)]
pub struct Recorder {
    slots: Slots,
    state: MapHandle,
    recording: MapHandle,
    recorded: MapHandle,
    stacks: MapHandle,
    python: PythonMaps,
    /// Next to be read.
    next: u64,
    /// Before that, but not to be read yet.
    unfinished: VecDeque<u64>,
    taken: Arc<AtomicBool>,
}

/// The one value of a section.
const WHOLE: [u8; 4] = 0u32.to_ne_bytes();

impl Recorder {
    pub(crate) fn new(
        object: &Object,
        room: &Room,
        taken: &Arc<AtomicBool>,
    ) -> Result<Self, RecorderError> {
        let slots = match room {
            Room::None => return Err(RecorderError::Disabled),
            Room::Unsupported(reason) => return Err(RecorderError::Unsupported(reason.clone())),
            Room::Broken(reason) => return Err(RecorderError::Broken(reason.clone())),
            Room::Slots(slots) => *slots,
        };
        let map = |name: &str| {
            let mut maps = object.maps();
            // Sections have the name of the object before their own.
            let is_it =
                |found: &str| found == name || name.starts_with('.') && found.ends_with(name);
            let found = maps.find(|map| is_it(&map.name().to_string_lossy()));
            let found = found
                .ok_or_else(|| RecorderError::Broken(format!("the programs have no map {name}")))?;
            MapHandle::try_from(&found).map_err(|error| RecorderError::broken(name, &error))
        };
        let (state, recording, recorded) =
            (map(".data.ring")?, map(".data.record")?, map("recorded")?);
        let (ring, stacks) = (map("ring")?, map("stacks")?);
        let (layouts, python_stacks) = (map("pythons")?, map("python_stacks")?);
        let python = PythonMaps { layouts, stacks: python_stacks, seen: HashSet::new() };
        if taken.swap(true, Ordering::AcqRel) {
            return Err(RecorderError::InUse);
        }
        let mut recorder = Self {
            slots: Slots::new(ring, slots),
            state,
            recording,
            recorded,
            stacks,
            python,
            next: 0,
            unfinished: VecDeque::new(),
            taken: Arc::clone(taken),
        };
        recorder.next = recorder.state()?.head;
        Ok(recorder)
    }

    /// Records this from now on.
    ///
    /// # Errors
    /// When the kernel does not take the settings; then nothing is recorded.
    pub fn set(&self, settings: &RecorderSettings) -> Result<(), RecorderError> {
        self.stop()?;
        let failed = |error| RecorderError::broken("recorded", &error);
        let wanted: HashSet<_> = settings.only.iter().map(|tgid| tgid.0.to_ne_bytes()).collect();
        let known: Vec<_> = self.recorded.keys().collect();
        for key in known.iter().filter(|key| !wanted.contains(key.as_slice())) {
            self.recorded.delete(key).map_err(failed)?;
        }
        for key in &wanted {
            self.recorded.update(key, &1u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        }
        self.tell(settings.record())
    }

    /// Records nothing from now on. What was recorded can still be read.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn stop(&self) -> Result<(), RecorderError> {
        self.tell(RecordingRecord::OFF)
    }

    fn tell(&self, record: RecordingRecord) -> Result<(), RecorderError> {
        self.recording
            .update(&WHOLE, &record.to_bytes(), MapFlags::ANY)
            .map_err(|error| RecorderError::broken("recording", &error))
    }

    fn state(&self) -> Result<RingState, RecorderError> {
        let failed = |error| RecorderError::broken("ring_state", &error);
        let bytes = self.state.lookup(&WHOLE, MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        let mut words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
        let mut next = || words.next().map(u64::from_ne_bytes);
        match (next(), next(), next()) {
            (Some(head), Some(stackless), Some(pythonless)) => {
                Ok(RingState { head, stackless, pythonless })
            }
            _ => Err(RecorderError::Broken("ring_state has an unexpected size".to_owned())),
        }
    }

    /// Hands over what was recorded since the last look. One that is being written comes with a later look, so the order
    /// is not exactly that of time.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn drain(&mut self, mut each: impl FnMut(&RawEvent)) -> Result<Drained, RecorderError> {
        let head = self.state()?.head;
        let mut drained = Drained::default();
        for index in std::mem::take(&mut self.unfinished) {
            self.take(index, &mut drained, &mut each)?;
        }
        let oldest = head.saturating_sub(self.slots.count());
        drained.lost += oldest.saturating_sub(self.next);
        self.next = self.next.max(oldest);
        for index in self.next..head {
            self.take(index, &mut drained, &mut each)?;
            self.next = index + 1;
        }
        Ok(drained)
    }

    fn take(
        &mut self,
        index: u64,
        drained: &mut Drained,
        each: &mut impl FnMut(&RawEvent),
    ) -> Result<(), RecorderError> {
        match self.slots.look(index)? {
            Look::Event(record) => match RawEvent::decode(&record) {
                Some(event) => {
                    drained.events += 1;
                    each(&event);
                }
                None => drained.unknown += 1,
            },
            Look::Unfinished => self.unfinished.push_back(index),
            Look::Gone => drained.lost += 1,
        }
        Ok(())
    }

    /// Events that have been handed to no look yet because they were being written when they were due.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// What the ring holds of the last so much time. Takes nothing from it: what [`drain`](Self::drain) will hand over stays the
    /// same.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn last(&self, time: Duration) -> Result<Dump, RecorderError> {
        let since =
            monotonic_now().0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let head = self.state()?.head;
        let first = head.saturating_sub(self.slots.count());
        let mut dump = Dump::default();
        for index in first..head {
            let Look::Event(record) = self.slots.look(index)? else {
                dump.missed += 1;
                continue;
            };
            let Some(event) = RawEvent::decode(&record) else { continue };
            if first > 0 {
                dump.complete_since.get_or_insert(event.end());
            }
            if event.end().0 >= since {
                dump.events.push(event);
            }
        }
        Ok(dump)
    }

    /// The addresses of a stack, innermost first; empty when it has been forgotten.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn stack(&self, id: u32) -> Result<Vec<u64>, RecorderError> {
        let failed = |error| RecorderError::broken("stacks", &error);
        let found = self.stacks.lookup(&id.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        let bytes = found.unwrap_or_default();
        let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
        Ok(words.map(u64::from_ne_bytes).take_while(|&address| address != 0).collect())
    }

    /// Calls whose stack found no room, or could not be had, since the programs were loaded.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn stackless(&self) -> Result<u64, RecorderError> {
        Ok(self.state()?.stackless)
    }

    /// Makes room for new stacks: forgets those that no event in the ring has. To be called now and then, as a stack stays
    /// otherwise. An event that is recorded at the same moment may be left without.
    ///
    /// # Errors
    /// When a map cannot be read or changed.
    pub fn forget_stacks(&self) -> Result<(), RecorderError> {
        let known: Vec<_> = self.stacks.keys().collect();
        let in_use: HashSet<[u8; 4]> = self
            .last(Duration::MAX)?
            .events
            .iter()
            .filter_map(|event| match event.detail {
                Detail::Call(call) => call.stack.map(u32::to_ne_bytes),
                _ => None,
            })
            .collect();
        for key in known.iter().filter(|key| !in_use.contains(key.as_slice())) {
            match self.stacks.delete(key) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(RecorderError::broken("stacks", &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "events go on being recorded");
        }
        self.taken.store(false, Ordering::Release);
    }
}
