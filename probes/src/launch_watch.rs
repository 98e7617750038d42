//! Whether calls of class launch are watched now, as the programs are told, and for how long they were not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpucause_abi::Nanos;
use gpucause_abi::record::{Busiest, Watch};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object};

use crate::program::LoadError;
use crate::reader::monotonic_now;

/// The time that launches were not watched, shared with whoever copies accounts.
#[derive(Debug, Default)]
pub(crate) struct Unwatched(Mutex<Away>);

#[derive(Debug, Default)]
struct Away {
    so_far: u64,
    since: Option<Nanos>,
}

impl Unwatched {
    /// Up to this moment.
    pub(crate) fn until(&self, now: Nanos) -> Nanos {
        let away = self.away();
        let unfinished = away.since.map_or(0, |since| now.0.saturating_sub(since.0));
        Nanos(away.so_far.saturating_add(unfinished))
    }

    fn begin(&self, now: Nanos) {
        self.away().since.get_or_insert(now);
    }

    fn end(&self, now: Nanos) {
        let mut away = self.away();
        if let Some(since) = away.since.take() {
            away.so_far = away.so_far.saturating_add(now.0.saturating_sub(since.0));
        }
    }

    fn away(&self) -> MutexGuard<'_, Away> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the programs are told. There is one writer.
#[derive(Debug)]
pub(crate) struct LaunchWatch {
    watch: MapHandle,
    busiest: MapHandle,
    told: Watch,
    unwatched: Arc<Unwatched>,
}

fn section(object: &Object, name: &'static str) -> Result<MapHandle, LoadError> {
    object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(name))
        .and_then(|map| MapHandle::try_from(&map).ok())
        .ok_or(LoadError::Incomplete(name))
}

impl LaunchWatch {
    pub(crate) fn new(object: &Object, unwatched: Arc<Unwatched>) -> Result<Self, LoadError> {
        let told = Watch { turn: 0, gone: 0, window: 0, calibrates: 0 };
        let (watch, busiest) = (section(object, ".data.watch")?, section(object, ".data.busy")?);
        Ok(Self { watch, busiest, told, unwatched })
    }

    fn tell(&mut self, change: impl FnOnce(&mut Watch)) -> Result<(), libbpf_rs::Error> {
        let mut next = self.told;
        change(&mut next);
        self.watch.update(&0u32.to_ne_bytes(), &next.to_bytes(), MapFlags::ANY)?;
        self.told = next;
        Ok(())
    }

    /// Whether they count.
    pub(crate) const fn is_on(&self) -> bool {
        self.told.turn.is_multiple_of(2)
    }

    /// Launches that begin from now on do not count; those in flight still do when they return.
    pub(crate) fn end(&mut self) -> Result<(), libbpf_rs::Error> {
        if self.is_on() {
            self.tell(|watch| watch.turn = watch.turn.wrapping_add(1))?;
            self.unwatched.begin(monotonic_now());
        }
        Ok(())
    }

    /// Their probes are gone: those in flight will not be seen to return.
    pub(crate) fn cut(&mut self) -> Result<(), libbpf_rs::Error> {
        self.tell(|watch| watch.gone = watch.turn)
    }

    /// Their probes are in place: launches count from now on.
    pub(crate) fn begin(&mut self) -> Result<(), libbpf_rs::Error> {
        if !self.is_on() {
            self.tell(|watch| watch.turn = watch.turn.wrapping_add(1))?;
            self.unwatched.end(monotonic_now());
        }
        Ok(())
    }

    /// Hits are counted anew.
    pub(crate) fn open_window(&mut self) -> Result<(), libbpf_rs::Error> {
        self.tell(|watch| watch.window = watch.window.wrapping_add(1))
    }

    /// Hits of the busiest thread since then: on launches, and on others. None when no thread launches worth mentioning.
    pub(crate) fn busiest(&self) -> Result<(u64, u64), libbpf_rs::Error> {
        let bytes = self.busiest.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let mut words = bytes
            .chunks_exact(size_of::<u32>())
            .filter_map(|word| word.try_into().ok().map(u32::from_ne_bytes));
        let record = Busiest {
            window: words.next().unwrap_or_default(),
            launches: words.next().unwrap_or_default(),
            others: words.next().unwrap_or_default(),
            pad: 0,
        };
        if record.window != self.told.window {
            return Ok((0, 0));
        }
        Ok((record.launches.into(), record.others.into()))
    }

    /// Whether the calls of the daemon itself are counted.
    pub(crate) fn calibrate(&mut self, on: bool) -> Result<(), libbpf_rs::Error> {
        self.tell(|watch| watch.calibrates = on.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_away_grows_while_away_and_stays_when_back() {
        let unwatched = Unwatched::default();
        assert_eq!(unwatched.until(Nanos(100)), Nanos(0));
        unwatched.begin(Nanos(100));
        unwatched.begin(Nanos(150));
        assert_eq!(unwatched.until(Nanos(250)), Nanos(150));
        unwatched.end(Nanos(300));
        unwatched.end(Nanos(400));
        assert_eq!(unwatched.until(Nanos(1_000)), Nanos(200));
        unwatched.begin(Nanos(1_000));
        assert_eq!(unwatched.until(Nanos(1_001)), Nanos(201));
    }
}
