//! The launch settings of the call programs: the globals of `watch` and the map `launch_modes`.

use std::time::Duration;

use gpucause_abi::record::{LaunchModeRecord, Watch};
use gpucause_abi::{Nanos, ProcId};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::hit_cost::HitCost;
use crate::load_error::LoadError;

/// How the daemon's own calls are counted during calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Calibrate {
    /// Not at all.
    Off = 0,
    /// Timed.
    Timed = gpucause_abi::record::CALIBRATE_TIMED,
    /// Left at entry.
    Counted = gpucause_abi::record::CALIBRATE_COUNTED,
    /// Left at entry, with how long it takes to find the thread's record.
    Lookup = gpucause_abi::record::CALIBRATE_LOOKUP,
}

/// The only writer of these settings.
#[derive(Debug)]
pub(crate) struct LaunchModes {
    watch: MapHandle,
    modes: MapHandle,
    written: Watch,
}

impl LaunchModes {
    pub(crate) fn new(object: &Object) -> Result<Self, LoadError> {
        let map = |name: &'static str| {
            let found = object.maps().find(|map| map.name().to_string_lossy().ends_with(name));
            found.and_then(|map| MapHandle::try_from(&map).ok()).ok_or(LoadError::Incomplete(name))
        };
        let mut modes = Self {
            watch: map(".data.watch")?,
            modes: map("launch_modes")?,
            written: Watch::new_zeroed(),
        };
        // A thread that has copied no mode has seen generation 0.
        let refused =
            |source| LoadError::Refused { step: "configured", source, detail: String::new() };
        modes.change(|_| {}).map_err(refused)?;
        Ok(modes)
    }

    /// Each change makes threads copy their process's mode again.
    fn change(&mut self, change: impl FnOnce(&mut Watch)) -> Result<(), libbpf_rs::Error> {
        let mut next = self.written;
        change(&mut next);
        next.modes = next.modes.wrapping_add(1).max(1);
        self.watch.update(&0u32.to_ne_bytes(), next.as_bytes(), MapFlags::ANY)?;
        self.written = next;
        Ok(())
    }

    /// Stops or resumes counting of calls.
    pub(crate) fn pause(&mut self, paused: bool) -> Result<(), libbpf_rs::Error> {
        self.change(|watch| watch.paused = paused.into())
    }

    /// Resets the hit counts. Returns the number of the new window.
    pub(crate) fn open_window(&mut self) -> Result<u32, libbpf_rs::Error> {
        let mut next = self.written;
        next.window = next.window.wrapping_add(1);
        self.watch.update(&0u32.to_ne_bytes(), next.as_bytes(), MapFlags::ANY)?;
        self.written = next;
        Ok(next.window)
    }

    pub(crate) fn calibrate(&mut self, how: Calibrate) -> Result<(), libbpf_rs::Error> {
        self.change(|watch| watch.calibrates = how as u32)
    }

    /// Sets what hits cost, how much of a thread's time they may take in a window, and at how much its process is reported.
    pub(crate) fn set_quota(
        &mut self,
        cost: HitCost,
        quota: Option<(Duration, Duration)>,
    ) -> Result<(), libbpf_rs::Error> {
        let saturated = |nanos: u128| u32::try_from(nanos).unwrap_or(u32::MAX);
        let nanos = |cost: Nanos| saturated(cost.0.into());
        let mut next = self.written;
        next.counted_ns = nanos(cost.counted);
        next.timed_ns = nanos(cost.timed);
        next.stepped_ns = nanos(cost.stepped);
        let limit = |limit: Duration| saturated(limit.as_nanos()).max(1);
        next.quota_ns = quota.map_or(0, |(quota, _)| limit(quota));
        next.overspent_ns = quota.map_or(0, |(_, most)| limit(most));
        if next == self.written {
            return Ok(());
        }
        self.watch.update(&0u32.to_ne_bytes(), next.as_bytes(), MapFlags::ANY)?;
        self.written = next;
        Ok(())
    }

    /// Sets how the launches of a process are observed; `None` is in full.
    pub(crate) fn set(
        &mut self,
        id: ProcId,
        mode: Option<LaunchModeRecord>,
    ) -> Result<(), libbpf_rs::Error> {
        let key = id.0.to_ne_bytes();
        match mode {
            Some(mode) => self.modes.update(&key, mode.as_bytes(), MapFlags::ANY)?,
            None => match self.modes.delete(&key) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        self.change(|_| {})
    }
}
