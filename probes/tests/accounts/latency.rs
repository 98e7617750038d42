//! Durations are true: the kernel's histograms against the workload's own clock around the same calls.

use anyhow::{Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, SLOTS, slot_lower, slot_of, slot_upper};
use gpucause_abi::record::CHUNK_SLOTS;
use gpucause_probes::Options;
use hdrhistogram::Histogram as Hdr;
use serde_json::Value;

use crate::guest::is_emulated;
use crate::observe::Observed;
use crate::workload::{StandIns, op};

/// Scripted delays, and how many calls take each.
const DELAYS: [(&str, usize); 6] =
    [("20us", 2000), ("200us", 1000), ("2ms", 300), ("20ms", 50), ("200ms", 10), ("2s", 2)];
/// Where the processor is emulated, by whose clock nothing is as short as the first.
const EMULATED_DELAYS: [(&str, usize); 4] =
    [("200us", 200), ("2ms", 100), ("20ms", 30), ("200ms", 5)];
/// One HDR slot.
const SLOT: f64 = 0.0625;
const SUM: f64 = 0.01;
/// How often one delay is measured: what interrupts a call between the workload's clock and the probe is in the truth
/// only, and may move its sum and its median.
const ROUNDS: usize = 6;
/// How often it is checked whether the machine is calm before it is taken as it is.
const CHECKS: usize = 100;

/// Calls as the kernel and as the workload saw them.
struct Measured {
    kernel: Histogram,
    /// Each call's duration by the caller's clock in nanoseconds, ascending.
    truth: Vec<u64>,
    /// Least nanoseconds of each call, ascending: it waits for so long, as the script says.
    scripted: Vec<u64>,
}

fn is_within(value: f64, truth: f64, tolerance: f64) -> bool {
    (value - truth).abs() <= truth * tolerance
}

/// Loads the slots into the histogram that they are the layout of.
fn to_hdr(kernel: &Histogram) -> Hdr<u64> {
    let mut hdr = Hdr::new_with_bounds(1, slot_upper(SLOTS - 1).0, 1).unwrap();
    for (slot, count) in &kernel.slots {
        hdr.record_n(slot_lower(slot.into()).0, count).unwrap();
    }
    hdr
}

impl Measured {
    /// Launches after the first, whose duration is not of the script's making.
    fn take(observed: &Observed, stand_ins: &StandIns, delay: &str, calls: usize) -> Result<Self> {
        let arguments = format!("--hold latency --list --delays {delay} --repeat {calls}");
        let mut workload = stand_ins.start_favoured(&arguments)?;
        let result = workload.result()?;
        let process = observed.process(workload.pid())?;
        ensure!(workload.end()?.success(), "the workload failed");
        let launch = op("cudaLaunchKernel");
        let warm = process.calls.iter().find(|call| call.op == launch && !call.cold);
        let kernel = warm.map(|call| call.durations.clone()).unwrap_or_default();
        let list = result["delays"][0]["list_ns"].as_array().unwrap();
        let mut truth: Vec<_> = list.iter().filter_map(Value::as_u64).collect();
        truth.sort_unstable();
        assert_eq!(kernel.count(), calls as u64, "warm launches of {process:?}");
        assert_eq!(truth.len(), calls);
        let scripted = vec![result["delays"][0]["delay_ns"].as_u64().unwrap(); calls];
        Ok(Self { kernel, truth, scripted })
    }

    /// Returns true if few of these empty calls were interrupted.
    fn is_calm(&self) -> bool {
        self.true_quantile(0.99) < 1.5 * self.true_quantile(0.5)
    }

    /// Calls between two calm times, if there are such, with what of a call lies outside the probes.
    fn take_calmly(
        observed: &Observed,
        stand_ins: &StandIns,
        (delay, calls): (&str, usize),
    ) -> Result<(Self, f64)> {
        let empty_calls = || Self::take(observed, stand_ins, "0us", 2000);
        let mut checks = 0;
        loop {
            let before = empty_calls()?;
            checks += 1;
            if !before.is_calm() && checks < CHECKS {
                continue;
            }
            let measured = Self::take(observed, stand_ins, delay, calls)?;
            // An interruption is nothing to the longer delays.
            if checks >= CHECKS || calls < 1000 || empty_calls()?.is_calm() {
                return Ok((measured, before.outside()));
            }
        }
    }

    fn true_quantile(&self, quantile: f64) -> f64 {
        self.truth[self.rank(quantile)] as f64
    }

    fn rank(&self, quantile: f64) -> usize {
        (quantile * self.truth.len() as f64).ceil().max(1.0) as usize - 1
    }

    /// Returns true if the kernel saw this quantile between that of the script and that of the caller's clock. Each call's duration
    /// is between the two, so each quantile is, whatever interrupts the caller outside the call.
    fn is_bounded(&self, quantile: f64, seen: u64) -> bool {
        let rank = self.rank(quantile);
        let slot = |ns| slot_of(Nanos(ns));
        (slot(self.scripted[rank])..=slot(self.truth[rank])).contains(&slot(seen))
    }

    fn true_sum(&self) -> f64 {
        self.truth.iter().sum::<u64>() as f64
    }

    /// Time per call between the workload's clock and the probe, in nanoseconds: the traps, in and out.
    fn outside(&self) -> f64 {
        (self.true_sum() - self.kernel.sum.0 as f64) / self.truth.len() as f64
    }

    /// Returns what is wrong with the kernel's numbers; `outside` is no part of a call.
    fn complaints(&self, outside: f64) -> Vec<String> {
        let hdr = to_hdr(&self.kernel);
        let mut complaints = Vec::new();
        for quantile in [0.5, 0.9, 0.99] {
            let seen = hdr.value_at_quantile(quantile);
            let truth = self.true_quantile(quantile) - outside;
            // Interruptions of few calls outside the probes do not move the median.
            let is_near = quantile > 0.5 || is_within(seen as f64, truth, SLOT);
            if !is_near || !self.is_bounded(quantile, seen) {
                complaints.push(format!("quantile {quantile}: {seen} instead of {truth} ns"));
            }
        }
        if !self.max_is_true() {
            let longest = &self.truth[self.truth.len().saturating_sub(5)..];
            complaints.push(format!("max: {} instead of one of {longest:?}", self.kernel.max.0));
        }
        let true_sum = self.true_sum() - outside * self.truth.len() as f64;
        if !is_within(self.kernel.sum.0 as f64, true_sum, SUM) {
            complaints.push(format!("sum: {} instead of {true_sum} ns", self.kernel.sum.0));
        }
        complaints
    }

    /// The return probe makes a chunk of the histogram after it has taken the time, which costs that one call tens of
    /// microseconds: as many truths as there are chunks may be above the maximum.
    fn max_is_true(&self) -> bool {
        let mut chunks: Vec<_> =
            self.kernel.slots.iter().map(|(slot, _)| usize::from(slot) / CHUNK_SLOTS).collect();
        chunks.dedup();
        let max = self.kernel.max.0 as f64;
        let candidates = self.truth.iter().rev().take(1 + chunks.len());
        max <= self.true_quantile(1.0)
            && candidates.into_iter().any(|&truth| is_within(max, truth as f64, SLOT))
    }
}

#[test]
fn slots_load_into_an_hdr_histogram_without_loss() {
    let kernel = Histogram {
        slots: (0..SLOTS as u16).map(|slot| (slot, 1)).collect(),
        ..Default::default()
    };
    let hdr = to_hdr(&kernel);
    assert_eq!(hdr.len(), SLOTS as u64);
    for slot in 1..SLOTS {
        let (lower, upper) = (slot_lower(slot).0, slot_upper(slot).0);
        assert_eq!((hdr.lowest_equivalent(upper), hdr.highest_equivalent(lower)), (lower, upper));
        assert_eq!(hdr.count_at(lower), 1, "slot {slot}");
    }
}

/// Whatever an emulator does to a call, each quantile is in a slot between the script's time and the caller's.
fn check_bounds(observed: &Observed, stand_ins: &StandIns) -> Result<()> {
    for (delay, calls) in EMULATED_DELAYS {
        let measured = Measured::take(observed, stand_ins, delay, calls)?;
        let hdr = to_hdr(&measured.kernel);
        for quantile in [0.5, 0.9, 0.99] {
            let seen = hdr.value_at_quantile(quantile);
            let truth = measured.truth[measured.rank(quantile)];
            ensure!(
                measured.is_bounded(quantile, seen),
                "{delay}, quantile {quantile}: {seen} ns, but {truth} ns by the caller's clock"
            );
        }
        let (sum, most) = (measured.kernel.sum.0, measured.truth.iter().sum());
        let least: u64 = measured.scripted.iter().sum();
        ensure!((least..=most).contains(&sum), "{delay}: {sum} ns, not {least} to {most}");
    }
    Ok(())
}

#[test]
fn quantiles_and_sums_of_scripted_delays_from_20_us_to_2_s_are_true() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    if is_emulated() {
        return check_bounds(&observed, &stand_ins);
    }
    let mut all =
        Measured { kernel: Histogram::default(), truth: Vec::new(), scripted: Vec::new() };
    let mut all_outside = 0.0;
    let mut pending = DELAYS.to_vec();
    let mut complaints = Vec::new();
    // Repeated measurements come after the long delays, when a burst of interruptions may be over.
    for _ in 0..ROUNDS {
        complaints.clear();
        for (delay, calls) in std::mem::take(&mut pending) {
            let (measured, outside) = Measured::take_calmly(&observed, &stand_ins, (delay, calls))?;
            let wrong = measured.complaints(outside);
            if wrong.is_empty() {
                all_outside += outside * measured.truth.len() as f64;
                all.kernel.merge(&measured.kernel);
                all.truth.extend(measured.truth);
                all.scripted.extend(measured.scripted);
            } else {
                complaints.push(format!("{delay}, {outside:.0} ns outside: {}", wrong.join("; ")));
                pending.push((delay, calls));
            }
        }
    }
    assert_eq!(complaints, [""; 0]);
    all.truth.sort_unstable();
    all.scripted.sort_unstable();
    let outside = all_outside / all.truth.len() as f64;
    assert_eq!(all.complaints(outside), [""; 0], "all delays together");
    Ok(())
}
