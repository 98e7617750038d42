//! Measures the cost of a call probe hit: trap, program and return, as seen by a thread.
//!
//! Attaches the real programs to a function with the prologue of NVIDIA's libraries, and to one that the kernel single-steps,
//! and counts the daemon's own calls as warm launches meanwhile. Batches with and without probe alternate in bursts, until two are alike or there were a few; the result is
//! the lower quartile of their differences in the fastest burst, since other load only makes calls slower.

use std::arch::naked_asm;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_abi::op::op_of_symbol;
use gpucause_abi::{Nanos, Tgid};
use libbpf_rs::Link;

use crate::attach::{AttachError, CallProbes};
use crate::launch_control::budget::HitCost;
use crate::launch_control::modes::{Calibrate, LaunchModes};
use crate::mapped::executable_mappings;

/// Bursts at most, pairs of batches per burst, and calls per batch: 3 ms of calls at 1 us each.
const BURSTS: usize = 3;
const BATCHES: usize = 9;
const CALLS: u32 = 110;
/// Where calls are slower, as in an emulator, a burst ends after this time, but not before this many pairs of batches.
const BURST: Duration = Duration::from_millis(3);
const LEAST_BATCHES: usize = 5;
/// Pause between bursts.
const PAUSE: Duration = Duration::from_millis(8);
/// Two bursts that differ by at most so much need no third.
const ALIKE: f64 = 0.02;
/// The op that is simulated.
const OP: &str = "cudaLaunchKernel";
/// The kernel that is launched.
const KERNEL: usize = 0x5eed;

/// The measurement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrationError {
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("cannot update the programs: {0}")]
    Tell(#[from] libbpf_rs::Error),
    #[error("cannot read own mappings: {0}")]
    Mappings(io::Error),
    #[error("the measured function is in no file")]
    NoFile,
    #[error("other load slowed down calls without the probe")]
    Disturbed,
}

#[cfg(target_arch = "x86_64")]
macro_rules! like_a_library_function {
    () => {
        naked_asm!("push rbp", "mov rbp, rsp", "xor eax, eax", "pop rbp", "ret")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! like_a_library_function {
    () => {
        naked_asm!("nop", "mov w0, #0", "ret")
    };
}

#[unsafe(naked)]
extern "C" fn probed(_kernel: usize) -> i32 {
    like_a_library_function!()
}

/// Begins with an instruction that the kernel single-steps.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn stepped(_kernel: usize) -> i32 {
    naked_asm!("xor eax, eax", "push rbp", "mov rbp, rsp", "pop rbp", "ret")
}

#[unsafe(naked)]
extern "C" fn plain(_kernel: usize) -> i32 {
    like_a_library_function!()
}

/// File and offset of a function of this program.
fn file_offset(function: extern "C" fn(usize) -> i32) -> Result<u64, CalibrationError> {
    let address = function as usize as u64;
    let mappings = executable_mappings(Tgid(std::process::id()))
        .map_err(|error| CalibrationError::Mappings(io::Error::other(error)))?;
    let holds = |start: u64, end: u64| (start..end).contains(&address);
    let mapping = mappings.into_iter().find(|mapping| holds(mapping.start, mapping.end));
    mapping.map(|m| address - m.start + m.offset).ok_or(CalibrationError::NoFile)
}

/// Duration of a call, in nanoseconds.
fn batch(function: extern "C" fn(usize) -> i32) -> f64 {
    let function = black_box(function);
    let began = Instant::now();
    for _ in 0..CALLS {
        black_box(function(black_box(KERNEL)));
    }
    began.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 4).copied().unwrap_or(0.0)
}

/// The result of the fastest burst, of at least 1; none where no call took longer with the probe than without.
fn fastest(burst: impl Fn() -> f64, pause: impl Fn()) -> Option<f64> {
    let mut least = None::<f64>;
    for number in 0..BURSTS {
        if number > 0 {
            pause();
        }
        let next = burst();
        // Less where other load slowed calls without the probe down.
        if next < 1.0 {
            continue;
        }
        let is_alike = least.is_some_and(|least| (next - least).abs() <= ALIKE * least);
        least = Some(least.map_or(next, |least| least.min(next)));
        if is_alike {
            break;
        }
    }
    least
}

/// Measures the cost. The caller removes this process from the accounts and closes the links, which takes time.
pub(crate) fn hit_cost(
    call_probes: &CallProbes,
    modes: &mut LaunchModes,
) -> Result<(HitCost, Vec<Link>), CalibrationError> {
    let cookie = op_of_symbol(OP).map_or(0, |op| u64::from(op.0));
    let mut links = Vec::new();
    let probes = [
        (file_offset(probed)?, cookie),
        #[cfg(target_arch = "x86_64")]
        (file_offset(stepped)?, cookie),
    ];
    call_probes.attach_group(Path::new("/proc/self/exe"), &probes, &mut links)?;
    let burst = |function| {
        let began = Instant::now();
        batch(function);
        let wanted = |done: &usize| *done < LEAST_BATCHES || began.elapsed() < BURST;
        let difference = |_| batch(function) - batch(plain);
        lower_quartile((0..BATCHES).take_while(wanted).map(difference).collect())
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "above zero, and far less than the type holds"
    )]
    let cost = |function| {
        let pause = || std::thread::sleep(PAUSE);
        fastest(|| burst(function), pause)
            .map(|ns| Nanos(ns as u64))
            .ok_or(CalibrationError::Disturbed)
    };
    modes.calibrate(Calibrate::Timed)?;
    let timed = cost(probed);
    modes.calibrate(Calibrate::Counted)?;
    let counted = cost(probed);
    #[cfg(target_arch = "x86_64")]
    let with_step = cost(stepped);
    // There no first instruction is known to be single-stepped.
    #[cfg(not(target_arch = "x86_64"))]
    let with_step: Result<Nanos, CalibrationError> = Ok(Nanos(0));
    modes.calibrate(Calibrate::Off)?;
    let timed = timed?;
    let counted = counted?.min(timed);
    Ok((HitCost { timed, counted, stepped: with_step?.less(counted) }, links))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The result for bursts with these results, and how many of them there were.
    fn measured(bursts: [f64; BURSTS]) -> (Option<f64>, usize) {
        let made = Cell::new(0);
        let burst = || bursts[made.replace(made.get() + 1)];
        (fastest(burst, || ()), made.get())
    }

    #[test]
    fn bursts_end_when_two_are_alike_and_the_fastest_counts() {
        assert_eq!(measured([500.0, 495.0, 1.0]), (Some(495.0), 2));
        assert_eq!(measured([900.0, 500.0, 700.0]), (Some(500.0), 3));
    }

    #[test]
    fn a_burst_that_other_load_spoiled_does_not_count() {
        assert_eq!(measured([-300.0, 500.0, 502.0]), (Some(500.0), 3));
        assert_eq!(measured([-300.0, 0.0, -1.0]), (None, 3));
    }
}
