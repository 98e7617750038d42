//! Records single events: the kernel programs keep the newest in a ring that user space reads through a mapping,
//! continuously or on demand.
//!
//! Nothing waits for the reader: events that it misses are overwritten, and counted. While recording is off the programs
//! check one flag; without [`Options::recorder`](crate::Options::recorder) they are loaded without the recording code and
//! the ring is empty.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpucause_abi::event::{Detail, RawEvent, RecordingRecord, RingState};
use gpucause_abi::{Nanos, Tgid};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::host_clock::monotonic_now;

mod python;
mod slots;

use python::PythonMaps;
use slots::{SlotRead, Slots};

/// Capacity of the event ring and the stack map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Events, 64 bytes each; rounded up to a power of two from 64 to 4,194,304.
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

/// Ability of the loaded programs to record.
#[derive(Debug, Clone)]
pub(crate) enum RecorderSupport {
    /// Not requested.
    None,
    /// The ring has so many slots.
    Slots(u32),
    /// The kernel rejects the programs with recording code.
    Unsupported(String),
    /// Out of memory, or another failure.
    Broken(String),
}

/// Events cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// Not requested at start.
    #[error("event recording is disabled")]
    Disabled,
    /// Another recorder is in use.
    #[error("events are already being recorded")]
    InUse,
    /// Not supported by this kernel.
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

/// Selection of recorded events. Process starts and ends, disk requests, reclaim, retransmissions and OOM kills are always
/// recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderSettings {
    /// Traced calls that take at least this long.
    pub calls_from: Nanos,
    /// Sampling of shorter calls: one in so many at random; 0 for none, 1 for all.
    pub sample_rest: u32,
    /// All outermost calls that allocate or free device memory.
    pub allocations: bool,
    /// Off-CPU intervals that take at least this long. Waits for a CPU are split where another task gets it.
    pub off_cpu_from: Nanos,
    /// Also intervals of threads without traced calls, in processes that have some.
    pub helper_threads: bool,
    /// Stacks of the calls of `calls_from`.
    pub stacks: bool,
    /// Only these processes; empty for all.
    pub only: BTreeSet<Tgid>,
}

impl Default for RecorderSettings {
    /// Calls and intervals over 100 us, with stacks.
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

/// The result of a drain. Every event is counted once, in this drain or a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Events passed on.
    pub events: u64,
    /// Overwritten before they were read, or dropped by the program because their slot was in use.
    pub lost: u64,
    /// Events of an unknown kind.
    pub unknown: u64,
}

/// The contents of the ring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dump {
    /// Events that ended within the requested time, in recording order.
    pub events: Vec<RawEvent>,
    /// Events that were being written or overwritten.
    pub missed: u64,
    /// End of the oldest event in the ring, once it has wrapped. Earlier events are incomplete.
    pub complete_since: Option<Nanos>,
}

/// Switches recording on and off and reads the ring. Only one exists at a time; drop switches recording off.
#[derive(Debug)]
pub struct Recorder {
    slots: Slots,
    state: MapHandle,
    recording: MapHandle,
    recorded: MapHandle,
    stacks: MapHandle,
    python: PythonMaps,
    /// Next index to read.
    next: u64,
    /// Earlier indices whose events were still being written.
    unfinished: VecDeque<u64>,
    taken: Arc<AtomicBool>,
}

/// Key of the single value of a section.
const WHOLE: [u8; 4] = 0u32.to_ne_bytes();

impl Recorder {
    pub(crate) fn new(
        object: &Object,
        support: &RecorderSupport,
        taken: &Arc<AtomicBool>,
    ) -> Result<Self, RecorderError> {
        let slots = match support {
            RecorderSupport::None => return Err(RecorderError::Disabled),
            RecorderSupport::Unsupported(reason) => {
                return Err(RecorderError::Unsupported(reason.clone()));
            }
            RecorderSupport::Broken(reason) => return Err(RecorderError::Broken(reason.clone())),
            RecorderSupport::Slots(slots) => *slots,
        };
        let map = |name: &str| {
            let mut maps = object.maps();
            // Section names are prefixed with the object's name.
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

    /// Starts recording with these settings.
    ///
    /// # Errors
    /// When the kernel rejects the settings; then nothing is recorded.
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
        self.write(settings.record())
    }

    /// Stops recording. Recorded events can still be read.
    ///
    /// # Errors
    /// When the kernel rejects the change.
    pub fn stop(&self) -> Result<(), RecorderError> {
        self.write(RecordingRecord::OFF)
    }

    fn write(&self, record: RecordingRecord) -> Result<(), RecorderError> {
        self.recording
            .update(&WHOLE, record.as_bytes(), MapFlags::ANY)
            .map_err(|error| RecorderError::broken("recording", &error))
    }

    fn state(&self) -> Result<RingState, RecorderError> {
        let failed = |error| RecorderError::broken("ring_state", &error);
        let bytes = self.state.lookup(&WHOLE, MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        RingState::read_from_bytes(&bytes)
            .map_err(|_| RecorderError::Broken("ring_state has an unexpected size".to_owned()))
    }

    /// Passes on the events since the last drain. An event that is still being written comes with a later drain, so the
    /// order is not exactly that of time.
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
        match self.slots.read(index)? {
            SlotRead::Event(record) => match RawEvent::decode(&record) {
                Some(event) => {
                    drained.events += 1;
                    each(&event);
                }
                None => drained.unknown += 1,
            },
            SlotRead::Unfinished => self.unfinished.push_back(index),
            SlotRead::Gone => drained.lost += 1,
        }
        Ok(())
    }

    /// Events that were due in a drain but still being written.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// The events of the last `time` in the ring. Does not affect [`drain`](Self::drain).
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
            let SlotRead::Event(record) = self.slots.read(index)? else {
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

    /// The addresses of a stack, innermost first; empty when it was deleted.
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

    /// Calls without a stack, because the map was full or the stack unavailable.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn events_without_stack(&self) -> Result<u64, RecorderError> {
        Ok(self.state()?.events_without_stack)
    }

    /// Deletes stacks that no event in the ring refers to. Call regularly: nothing else deletes stacks. An event recorded
    /// meanwhile may lose its stack.
    ///
    /// # Errors
    /// When a map cannot be read or changed.
    pub fn clear_stacks(&self) -> Result<(), RecorderError> {
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
            tracing::error!(%error, "cannot stop recording");
        }
        self.taken.store(false, Ordering::Release);
    }
}
