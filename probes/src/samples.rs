//! Samples of what single threads run: stacks of chosen threads, taken at a fixed rate and counted in the kernel.
//!
//! By perf events on all CPUs, opened at start, as later there is no privilege for it, and enabled only while threads are chosen: until
//! then nothing runs and nothing is counted. CPUs that come online later are not sampled. Where the kernel refuses the events, as those
//! of Debian and Ubuntu do by default, by a program on the expiry of timers that is attached while threads are chosen, half of the time.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use gpucause_abi::sample::{MAX_SAMPLED, SAMPLES_PER_SECOND, Sample, SampleKey, SampledThread};
use libbpf_rs::{ErrorKind, Link, MapCore as _, MapFlags, MapHandle};
use nix::libc;
use parking_lot::Mutex;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::batch;
use crate::online_cpus::online_cpus;
use crate::perf_event::{EventAttr, open_on_cpu};
use crate::program::{Programs, SAMPLES_BY_EVENTS, SAMPLES_BY_TIMERS, SAMPLES_TRACEPOINT};
use crate::verdict::{ProgramStatus, ProgramVerdict};

const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
// Bits of `flags`, in the order of the C bit field.
const DISABLED: u64 = 1;
const EXCLUDE_IDLE: u64 = 1 << 7;
const FREQUENCY: u64 = 1 << 10;
// Requests of ioctl.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
const SET_BPF: libc::Ioctl = 0x4004_2408;

/// Threads cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The kernel cannot sample, or refused at start: see [`Status::programs`](crate::Status::programs).
    #[error("stacks cannot be sampled on this kernel")]
    Unavailable,
    /// More threads than [`MAX_SAMPLED`].
    #[error("{0} threads to sample are more than {MAX_SAMPLED}")]
    TooMany(usize),
    /// The kernel refused to switch an event.
    #[error("sampling cannot be switched: {0}")]
    Switch(#[source] io::Error),
    /// The kernel refused to attach the program.
    #[error("{SAMPLES_BY_TIMERS} cannot be attached: {0}")]
    Attach(#[source] libbpf_rs::Error),
    /// A map could not be read.
    #[error("map {0} cannot be read: {1}")]
    Read(&'static str, #[source] io::Error),
    /// A map could not be changed.
    #[error("map {0} cannot be changed: {1}")]
    Change(&'static str, #[source] libbpf_rs::Error),
    /// An entry has another size than its record.
    #[error("map samples holds entries of an unexpected size")]
    Layout,
}

/// Why nothing can be sampled.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the kernel rejected the program")]
    Program,
    #[error("the programs have no map {0}")]
    NoMap(&'static str),
    #[error("the program cannot be attached to an event of CPU {0}: {1}")]
    Attach(u32, #[source] io::Error),
}

/// Clock events, one on each CPU, disabled; none where the kernel refuses any.
#[derive(Debug)]
pub(crate) struct ClockEvents(Vec<(u32, OwnedFd)>);

/// The sampler.
#[derive(Debug)]
pub struct Sampler {
    status: ProgramStatus,
    parts: Option<Parts>,
    /// The threads that are sampled.
    chosen: Mutex<Vec<SampledThread>>,
}

#[derive(Debug)]
struct Parts {
    source: Source,
    threads: MapHandle,
    samples: MapHandle,
}

/// Trigger of the program.
#[derive(Debug)]
enum Source {
    /// One on each CPU, with the program.
    Events(ClockEvents),
    /// The link while threads are chosen.
    Timers(Arc<Programs>, Mutex<Option<Link>>),
}

impl ClockEvents {
    /// Opens them, unless timers shall do. Needs CAP_PERFMON.
    pub(crate) fn open(by_timers: bool) -> Self {
        if by_timers {
            return Self(Vec::new());
        }
        Self::try_open().unwrap_or_else(|error| {
            tracing::debug!(%error, "stacks are sampled when timers expire");
            Self(Vec::new())
        })
    }

    fn try_open() -> io::Result<Self> {
        let attr = EventAttr {
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: SAMPLES_PER_SECOND.into(),
            flags: DISABLED | EXCLUDE_IDLE | FREQUENCY,
            ..EventAttr::software()
        };
        let mut events = Vec::new();
        for cpu in online_cpus()? {
            match open_on_cpu(&attr, cpu) {
                Ok(event) => events.push((cpu, event)),
                // It went offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(events))
    }

    /// The program that samples where there are these.
    pub(crate) fn program(&self) -> &'static str {
        if self.0.is_empty() { SAMPLES_BY_TIMERS } else { SAMPLES_BY_EVENTS }
    }

    fn control(&self, request: libc::Ioctl, argument: RawFd) -> Result<(), (u32, io::Error)> {
        self.0.iter().try_for_each(|(cpu, event)| {
            // SAFETY: these requests take a number and touch no memory of ours.
            let failed = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
            if failed < 0 { Err((*cpu, io::Error::last_os_error())) } else { Ok(()) }
        })
    }
}

impl Sampler {
    /// Samples by these events, or by timers where there are none.
    pub(crate) fn new(programs: &Arc<Programs>, events: ClockEvents) -> Self {
        let program = events.program();
        let (verdict, parts) = match Parts::open(programs, events) {
            Ok(parts) => (ProgramVerdict::Attached, Some(parts)),
            Err(error) => {
                let unsupported =
                    program == SAMPLES_BY_TIMERS && !programs.has_tracepoint(SAMPLES_TRACEPOINT);
                let reason = match unsupported {
                    true => format!("this kernel has no tracepoint {SAMPLES_TRACEPOINT}"),
                    false => error.to_string(),
                };
                tracing::warn!(reason, "stacks are not sampled: chains name no functions");
                let refused =
                    if unsupported { ProgramVerdict::Unsupported } else { ProgramVerdict::Broken };
                (refused(reason), None)
            }
        };
        Self { status: ProgramStatus { program, verdict }, parts, chosen: Mutex::default() }
    }

    /// Returns the status of the program. It counts as attached while it waits for threads to sample.
    pub(crate) fn status(&self) -> ProgramStatus {
        self.status.clone()
    }

    /// Samples these threads from now on and no others; nothing runs while there are none. Where timers sample, every other call while there
    /// are some begins a pause that the next one ends: the timers at which no sample is taken, a thousand in a second, have their cost too.
    ///
    /// # Errors
    /// When this kernel cannot, there are too many, or a map cannot be changed. Then no thread is sampled.
    pub fn choose(&self, threads: &[SampledThread]) -> Result<(), SampleError> {
        let mut chosen = self.chosen.lock();
        if threads.is_empty() && chosen.is_empty() {
            return Ok(());
        }
        let parts = self.parts.as_ref().ok_or(SampleError::Unavailable)?;
        let outcome = parts.choose(&mut chosen, threads);
        if outcome.is_err() {
            chosen.clear();
            parts.stop()?;
        }
        drop(chosen);
        outcome
    }

    /// Returns true while any thread is sampled.
    pub fn is_on(&self) -> bool {
        !self.chosen.lock().is_empty()
    }

    /// Returns the samples since the last call.
    ///
    /// # Errors
    /// When the map cannot be read or changed.
    pub fn take(&self) -> Result<Vec<Sample>, SampleError> {
        self.parts.as_ref().map_or_else(|| Ok(Vec::new()), Parts::take)
    }
}

impl Parts {
    fn open(programs: &Arc<Programs>, events: ClockEvents) -> Result<Self, OpenError> {
        let object = &programs.object;
        let map = |name: &'static str| {
            let found = object.maps().find(|map| map.name() == name);
            found.and_then(|map| MapHandle::try_from(&map).ok()).ok_or(OpenError::NoMap(name))
        };
        let program = object.progs().find(|program| program.name() == events.program());
        let program = program.map(|program| program.as_fd().as_raw_fd()).filter(|&fd| fd >= 0);
        let program = program.ok_or(OpenError::Program)?;
        let (threads, samples) = (map("sampled_threads")?, map("samples")?);
        let source = if events.program() == SAMPLES_BY_EVENTS {
            events.control(SET_BPF, program).map_err(|(cpu, e)| OpenError::Attach(cpu, e))?;
            Source::Events(events)
        } else {
            Source::Timers(Arc::clone(programs), Mutex::default())
        };
        Ok(Self { source, threads, samples })
    }

    fn switch(&self, on: bool) -> Result<(), SampleError> {
        match &self.source {
            Source::Events(events) => {
                let request = if on { ENABLE } else { DISABLE };
                events.control(request, 0).map_err(|(_, source)| SampleError::Switch(source))
            }
            Source::Timers(programs, link) => {
                let attached = on.then(|| {
                    let mut all = programs.object.progs_mut();
                    let program = all.find(|program| program.name() == SAMPLES_BY_TIMERS);
                    program.ok_or(SampleError::Unavailable)?.attach().map_err(SampleError::Attach)
                });
                *link.lock() = attached.transpose()?;
                Ok(())
            }
        }
    }

    /// Begins or ends a pause, where timers sample.
    fn alternate(&self) -> Result<(), SampleError> {
        match &self.source {
            Source::Events(_) => Ok(()),
            Source::Timers(_, link) => {
                let is_on = link.lock().is_some();
                self.switch(!is_on)
            }
        }
    }

    /// `chosen` becomes `wanted`.
    fn choose(
        &self,
        chosen: &mut Vec<SampledThread>,
        wanted: &[SampledThread],
    ) -> Result<(), SampleError> {
        if wanted.len() > MAX_SAMPLED {
            return Err(SampleError::TooMany(wanted.len()));
        }
        for thread in chosen.iter().filter(|own| !wanted.contains(own)) {
            delete(&self.threads, "sampled_threads", &thread.tid.0.to_ne_bytes())?;
        }
        // An entry that stays keeps what the program found of its thread.
        for thread in wanted.iter().filter(|own| !chosen.contains(own)) {
            let (key, record) = (thread.tid.0.to_ne_bytes(), thread.record());
            let written = self.threads.update(&key, record.as_bytes(), MapFlags::ANY);
            written.map_err(|source| SampleError::Change("sampled_threads", source))?;
        }
        match (chosen.is_empty(), wanted.is_empty()) {
            (true, false) => self.switch(true)?,
            (false, true) => self.switch(false)?,
            (false, false) => self.alternate()?,
            (true, true) => {}
        }
        wanted.clone_into(chosen);
        Ok(())
    }

    /// Disables the events and forgets all threads.
    fn stop(&self) -> Result<(), SampleError> {
        self.switch(false)?;
        let threads: Vec<_> = self.threads.keys().collect();
        threads.iter().try_for_each(|key| delete(&self.threads, "sampled_threads", key))
    }

    fn take(&self) -> Result<Vec<Sample>, SampleError> {
        let mut entries = Vec::new();
        batch::for_each(&self.samples, |key, value| {
            let count = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            entries.push((SampleKey::read_from_bytes(key).ok(), count));
        })
        .map_err(|source| SampleError::Read("samples", source))?;
        let mut samples = Vec::with_capacity(entries.len());
        for entry in entries {
            let (Some(key), Some(count)) = entry else { return Err(SampleError::Layout) };
            delete(&self.samples, "samples", key.as_bytes())?;
            samples.push(key.sample(count));
        }
        Ok(samples)
    }
}

fn delete(map: &MapHandle, name: &'static str, key: &[u8]) -> Result<(), SampleError> {
    match map.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(SampleError::Change(name, error)),
        _ => Ok(()),
    }
}
