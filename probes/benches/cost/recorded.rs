//! This measures a probed call while single events are recorded, and while they could be.

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::Nanos;
use gpucause_probes::recorder::{Recorder, RecorderSettings, RingSize};
use gpucause_probes::{Options, Probes};

use crate::caller::Child;
use crate::{CALLS, ROUNDS, Series, await_attached};

/// A name, and the recorder settings; none without an event ring.
type Way = (&'static str, Option<fn(&Recorder) -> Result<()>>);

const WAYS: [Way; 5] = [
    ("no ring", None),
    ("off", Some(|_| Ok(()))),
    ("too short", Some(|recorder| record(recorder, Nanos(u64::MAX), false))),
    ("every call", Some(|recorder| record(recorder, Nanos(0), false))),
    ("with stack", Some(|recorder| record(recorder, Nanos(0), true))),
];

fn record(recorder: &Recorder, calls_from: Nanos, stacks: bool) -> Result<()> {
    let settings = RecorderSettings { calls_from, stacks, ..RecorderSettings::default() };
    Ok(recorder.set(&settings)?)
}

/// Interleaved runs in each of the ways; nobody reads the ring, as when a flight recorder waits.
pub(crate) fn run() -> Result<()> {
    println!("one probed call and the recorder: {ROUNDS} interleaved rounds of {CALLS} calls");
    let mut all = WAYS.map(|(name, _)| Series::new(name));
    for _ in 0..ROUNDS {
        for ((name, begin), series) in WAYS.iter().zip(&mut all) {
            let recorder = begin.is_some().then(RingSize::default);
            let probes = Probes::start(Options { recorder, ..Options::default() })?;
            let recorder = recorder.map(|_| probes.recorder()).transpose()?;
            let child = Child::start("call", CALLS)?;
            await_attached(&probes).context("gpucause did not attach to this program")?;
            if let (Some(begin), Some(recorder)) = (begin, &recorder) {
                begin(recorder)?;
            }
            series.runs.push(child.go()?);
            let Some(mut recorder) = recorder else { continue };
            let found = recorder.drain(|_| ())?;
            let (recorded, all) =
                (found.events + found.lost, name.contains("call") || name.contains("stack"));
            ensure!(all == (recorded >= CALLS), "{name}: {recorded} events");
        }
    }
    for series in &all {
        series.report("call");
    }
    let [none, off, short, every, stack] = all.each_ref().map(Series::median);
    println!("  off - no ring          {:.1} ns", off - none);
    println!("  too short - no ring    {:.1} ns", short - none);
    println!("  every call - no ring   {:.1} ns", every - none);
    println!("  with stack - no ring   {:.1} ns", stack - none);
    Ok(())
}
