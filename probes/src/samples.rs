//! Samples of what single threads run: stacks of chosen threads, taken at a fixed rate and counted in the kernel.
//!
//! The events are opened at start, as later there is no privilege for it, and are enabled only while threads are chosen: until then
//! nothing runs and nothing is counted. CPUs that come online later are not sampled.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

use gpucause_abi::sample::{MAX_SAMPLED, Sample, SampleKey, SampledThread};
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, Object};
use nix::libc;
use parking_lot::Mutex;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::batch;
use crate::online_cpus::online_cpus;
use crate::perf_event::{EventAttr, open_on_cpu};
use crate::verdict::{ProgramStatus, Verdict};

/// The program.
pub(crate) const PROGRAM: &str = "sample_code";

/// Samples per second and CPU. A prime, so that it is in step with nothing.
pub const SAMPLES_PER_SECOND: u32 = 49;

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

/// Why the program is not attached.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the kernel rejected the program")]
    Program,
    #[error("the programs have no map {0}")]
    NoMap(&'static str),
    #[error("the online CPUs cannot be read: {0}")]
    Cpus(#[source] io::Error),
    #[error("the kernel has no clock event on CPU {0}: {1}")]
    Event(u32, #[source] io::Error),
    #[error("the program cannot be attached on CPU {0}: {1}")]
    Attach(u32, #[source] io::Error),
    #[error("no CPU is online")]
    NoCpu,
}

/// The sampler.
#[derive(Debug)]
pub struct Sampler {
    verdict: Verdict,
    parts: Option<Parts>,
    /// The threads that are sampled.
    chosen: Mutex<Vec<SampledThread>>,
}

#[derive(Debug)]
struct Parts {
    /// One per CPU, with the program.
    events: Vec<OwnedFd>,
    threads: MapHandle,
    samples: MapHandle,
}

impl Sampler {
    /// Opens the events, disabled. Needs CAP_PERFMON.
    pub(crate) fn open(object: &Object) -> Self {
        let (verdict, parts) = match Parts::open(object) {
            Ok(parts) => (Verdict::Attached, Some(parts)),
            Err(error) => {
                tracing::warn!(%error, "stacks are not sampled: code has no functions");
                (verdict_of(&error), None)
            }
        };
        Self { verdict, parts, chosen: Mutex::default() }
    }

    /// What became of the program.
    pub(crate) fn status(&self) -> ProgramStatus {
        ProgramStatus { program: PROGRAM, verdict: self.verdict.clone() }
    }

    /// Samples these threads from now on and no others; nothing runs while there are none.
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

    /// Whether any thread is sampled.
    pub fn is_on(&self) -> bool {
        !self.chosen.lock().is_empty()
    }

    /// The samples since the last call.
    ///
    /// # Errors
    /// When the map cannot be read or changed.
    pub fn take(&self) -> Result<Vec<Sample>, SampleError> {
        self.parts.as_ref().map_or_else(|| Ok(Vec::new()), Parts::take)
    }
}

impl Parts {
    fn open(object: &Object) -> Result<Self, OpenError> {
        let map = |name: &'static str| {
            let found = object.maps().find(|map| map.name() == name);
            found.and_then(|map| MapHandle::try_from(&map).ok()).ok_or(OpenError::NoMap(name))
        };
        let program = object.progs().find(|program| program.name() == PROGRAM);
        let program = program.map(|program| program.as_fd().as_raw_fd()).filter(|&fd| fd >= 0);
        let program = program.ok_or(OpenError::Program)?;
        let attr = EventAttr {
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: SAMPLES_PER_SECOND.into(),
            flags: DISABLED | EXCLUDE_IDLE | FREQUENCY,
            ..EventAttr::software()
        };
        let mut events = Vec::new();
        for cpu in online_cpus().map_err(OpenError::Cpus)? {
            let event = match open_on_cpu(&attr, cpu) {
                // It went offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                opened => opened.map_err(|source| OpenError::Event(cpu, source))?,
            };
            control(&event, SET_BPF, program).map_err(|source| OpenError::Attach(cpu, source))?;
            events.push(event);
        }
        if events.is_empty() {
            return Err(OpenError::NoCpu);
        }
        Ok(Self { events, threads: map("sampled_threads")?, samples: map("samples")? })
    }

    fn switch(&self, request: libc::Ioctl) -> Result<(), SampleError> {
        let each = |event| control(event, request, 0).map_err(SampleError::Switch);
        self.events.iter().try_for_each(each)
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
            (true, false) => self.switch(ENABLE)?,
            (false, true) => self.switch(DISABLE)?,
            _ => {}
        }
        wanted.clone_into(chosen);
        Ok(())
    }

    /// Disables the events and forgets all threads.
    fn stop(&self) -> Result<(), SampleError> {
        self.switch(DISABLE)?;
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

/// A kernel that has no such event, or refuses the program for it, lacks the feature.
fn verdict_of(error: &OpenError) -> Verdict {
    let unsupported = [libc::ENOENT, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS];
    match error {
        OpenError::Event(_, source) | OpenError::Attach(_, source)
            if source.raw_os_error().is_some_and(|code| unsupported.contains(&code)) =>
        {
            Verdict::Unsupported(error.to_string())
        }
        _ => Verdict::Broken(error.to_string()),
    }
}

fn control(event: &OwnedFd, request: libc::Ioctl, argument: RawFd) -> io::Result<()> {
    // SAFETY: these requests take a number and touch no memory of ours.
    let failed = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
    if failed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn delete(map: &MapHandle, name: &'static str, key: &[u8]) -> Result<(), SampleError> {
    match map.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(SampleError::Change(name, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_event_lacks_the_feature_and_other_failures_are_broken() {
        let event = |code| OpenError::Event(0, io::Error::from_raw_os_error(code));
        assert_eq!(verdict_of(&event(libc::ENOENT)).label(), "unsupported");
        assert_eq!(verdict_of(&event(libc::EACCES)).label(), "broken");
        assert_eq!(verdict_of(&OpenError::Program).label(), "broken");
    }
}
