//! Measures the cost of a call probe hit: trap, program and return, as seen by a thread.
//!
//! Attaches the real programs to a function with the prologue of NVIDIA's libraries, and counts the daemon's own calls as
//! warm launches meanwhile. Batches with and without probe alternate in bursts, until two are alike or there were a few; the result is
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
/// Where calls are slower, as in an emulator, a burst is so long, but has so many pairs of batches.
const BURST: Duration = Duration::from_millis(3);
const LEAST_BATCHES: usize = 3;
/// Pause between bursts.
const PAUSE: Duration = Duration::from_millis(8);
/// Two bursts that differ by at most so much had the CPU to themselves.
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

/// Measures the cost. The caller removes this process from the accounts and closes the links, which takes time.
pub(crate) fn hit_cost(
    call_probes: &CallProbes,
    modes: &mut LaunchModes,
) -> Result<(HitCost, Vec<Link>), CalibrationError> {
    let cookie = op_of_symbol(OP).map_or(0, |op| u64::from(op.0));
    let mut links = Vec::new();
    let probes = [(file_offset(probed)?, cookie)];
    call_probes.attach_group(Path::new("/proc/self/exe"), &probes, &mut links)?;
    let burst = || {
        let began = Instant::now();
        batch(probed);
        let wanted = |done: &usize| *done < LEAST_BATCHES || began.elapsed() < BURST;
        let difference = |_| batch(probed) - batch(plain);
        lower_quartile((0..BATCHES).take_while(wanted).map(difference).collect())
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "above zero, and far less than the type holds"
    )]
    let cost = || {
        let mut least = burst();
        for _ in 1..BURSTS {
            std::thread::sleep(PAUSE);
            let next = burst();
            let is_alike = (next - least).abs() <= ALIKE * least;
            least = least.min(next);
            if is_alike {
                break;
            }
        }
        Nanos(least.max(1.0) as u64)
    };
    modes.calibrate(Calibrate::Timed)?;
    let timed = cost();
    modes.calibrate(Calibrate::Counted)?;
    let counted = cost().min(timed);
    modes.calibrate(Calibrate::Off)?;
    Ok((HitCost { timed, counted }, links))
}
