//! Measuring again what others on the machine disturbed.

use anyhow::Result;
use gpucause_abi::record::SelfCounter;

use crate::observe::Observed;

/// How often a measurement is made when it fails and the kernel kept switches from the programs meanwhile, which they
/// count. Kernels of sandboxes do so for the threads of their own agent, which run when somebody reads a log.
const TRIES: usize = 3;

/// Retries what failed when switches were not reported.
pub(crate) fn undisturbed(
    observed: &Observed,
    mut measure: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut tries = 0;
    loop {
        let before = observed.counter(SelfCounter::MissedSwitchIn)?;
        let Err(error) = measure() else { return Ok(()) };
        let missed = observed.counter(SelfCounter::MissedSwitchIn)? - before;
        tries += 1;
        if missed == 0 || tries == TRIES {
            return Err(error.context(format!("try {tries}, {missed} switches not reported")));
        }
    }
}
