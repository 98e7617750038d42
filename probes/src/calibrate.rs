//! Measures the cost of a call probe hit: trap, program and return, as seen by a thread.
//!
//! Attaches the real programs to a function with the prologue of NVIDIA's libraries, and to one that the kernel single-steps,
//! and counts the daemon's own calls as warm launches meanwhile. Before each call, memory as large as a second-level cache is
//! read: a program's own work between its launches leaves little of the kernel's code and data there, so that a hit takes about
//! twice what it takes in a tight loop. Calls with and without probe alternate in bursts, until two bursts are alike or there
//! were a few; the result is the difference of the medians in the fastest burst, since other load only makes calls slower.

use std::arch::naked_asm;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_abi::op::op_of_symbol;
use gpucause_abi::record::HIT_BATCH;
use gpucause_abi::{Nanos, Tgid};
use libbpf_rs::Link;

use crate::attach::{AttachError, CallProbes, CallSite};
use crate::hit_cost::{HitCost, HitCosts, TYPICAL};
use crate::launch_control::modes::{Calibrate, LaunchModes};
use crate::mapped::executable_mappings;
use crate::reader::{ReadError, Reader};

/// Bursts at most, and pairs of calls per burst.
const BURSTS: usize = 3;
const CALLS: usize = 64;
/// Where calls are slower, as in an emulator, a burst ends after this time, but not before this many pairs of calls.
const BURST: Duration = Duration::from_millis(8);
const LEAST_CALLS: usize = 15;
/// Memory that is read between calls, in bytes.
const WORKING_SET: usize = 2 << 20;
/// Pause between bursts.
const PAUSE: Duration = Duration::from_millis(8);
/// Two bursts that differ by at most so much need no third.
const ALIKE: f64 = 0.03;
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
    #[error(transparent)]
    Read(#[from] ReadError),
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
        naked_asm!("b 2f", "2:", "mov w0, #0", "ret")
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
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn stepped(_kernel: usize) -> i32 {
    naked_asm!("mov w0, #0", "b 2f", "2:", "ret")
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

/// Duration of a call after other work, in nanoseconds.
fn call_after_work(function: extern "C" fn(usize) -> i32, working_set: &[u8]) -> f64 {
    let function = black_box(function);
    // The searched byte is not there: the whole set is read.
    black_box(working_set.contains(&0));
    let began = Instant::now();
    black_box(function(black_box(KERNEL)));
    began.elapsed().as_nanos() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
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

/// Returns how much more a call of a function costs than one without a probe.
fn cost(
    function: extern "C" fn(usize) -> i32,
    working_set: &[u8],
) -> Result<Nanos, CalibrationError> {
    let burst = || {
        let began = Instant::now();
        call_after_work(function, working_set);
        let wanted = |done: &usize| *done < LEAST_CALLS || began.elapsed() < BURST;
        let pair =
            |_| (call_after_work(function, working_set), call_after_work(plain, working_set));
        let (with, without) = (0..CALLS).take_while(wanted).map(pair).unzip();
        median(with) - median(without)
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "above zero, and far less than the type holds"
    )]
    fastest(burst, || std::thread::sleep(PAUSE))
        .map(|ns| Nanos(ns as u64))
        .ok_or(CalibrationError::Disturbed)
}

/// How long the kernel's program takes to find the thread's record, in nanoseconds; `None` where it does not say.
fn lookup_time(reader: &Reader, working_set: &[u8]) -> Result<Option<f64>, ReadError> {
    let taken = || -> Result<(u32, u32), ReadError> {
        let loads = reader.loads()?;
        let own = loads.iter().find(|load| load.tgid.0 == std::process::id());
        Ok(own.map_or((0, 0), |load| (load.hits.lookup_ns, load.hits.lookups)))
    };
    // The load is known once in so many hits.
    for _ in 0..HIT_BATCH {
        call_after_work(probed, &[]);
    }
    let before = taken()?;
    for _ in 0..2 * HIT_BATCH {
        call_after_work(probed, working_set);
    }
    let after = taken()?;
    let hits = after.1.saturating_sub(before.1);
    Ok((hits > 0).then(|| f64::from(after.0.saturating_sub(before.0)) / f64::from(hits)))
}

/// Measures the costs; that of a step only where `single_steps` are allowed. The caller removes this process from the accounts and closes the links, which takes time.
pub(crate) fn hit_costs(
    (call_probes, single_steps): (&CallProbes, bool),
    modes: &mut LaunchModes,
    reader: &Reader,
) -> Result<(HitCosts, Vec<Link>), CalibrationError> {
    let cookie = op_of_symbol(OP).map_or(0, |op| u64::from(op.0));
    let mut links = Vec::new();
    let site = |function| {
        Ok::<_, CalibrationError>(CallSite {
            offset: file_offset(function)?,
            cookie,
            returns: Vec::new(),
        })
    };
    let mut sites = vec![site(probed)?];
    if single_steps {
        sites.push(site(stepped)?);
    }
    call_probes.attach_group(Path::new("/proc/self/exe"), &sites, &mut links)?;
    // Not of zeros, which would all be one page.
    let working_set = vec![1; WORKING_SET];
    modes.calibrate(Calibrate::Timed)?;
    let timed = [cost(probed, &[]), cost(probed, &working_set)];
    modes.calibrate(Calibrate::Counted)?;
    let counted = [cost(probed, &[]), cost(probed, &working_set)];
    let with_step = if single_steps { cost(stepped, &working_set) } else { Ok(Nanos(0)) };
    modes.calibrate(Calibrate::Lookup)?;
    let lookups = [lookup_time(reader, &[]), lookup_time(reader, &working_set)];
    modes.calibrate(Calibrate::Off)?;
    let [warm_lookup, cold_lookup] = lookups;
    let lookups = warm_lookup?.zip(cold_lookup?);
    let [warm_timed, cold_timed] = timed;
    let [warm_counted, cold_counted] = counted;
    let timed = cold_timed?;
    let counted = cold_counted?.min(timed);
    // One that other load spoiled takes none of the others along.
    let stepped = with_step.map_or(TYPICAL.stepped, |step| step.less(counted));
    let cold = both_ends(HitCost { timed, counted, stepped });
    let timed = warm_timed.map_or(timed, |own| own.min(timed));
    let counted = warm_counted.map_or(counted, |own| own.min(counted)).min(timed);
    let warm = both_ends(HitCost { timed, counted, stepped });
    Ok((HitCosts { warm, cold, lookups }, links))
}

/// On arm64 most calls have a probe where they end, also those that are only counted.
const fn both_ends(own: HitCost) -> HitCost {
    let counted = if cfg!(target_arch = "aarch64") { own.timed } else { own.counted };
    HitCost { counted, ..own }
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
