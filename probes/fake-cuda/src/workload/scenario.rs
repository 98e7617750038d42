//! Scenarios of the workload, one file a subcommand.

pub(crate) mod block;
pub(crate) mod calls;
pub(crate) mod churn;
pub(crate) mod contend;
pub(crate) mod crowd;
pub(crate) mod fault;
pub(crate) mod host;
pub(crate) mod idle;
pub(crate) mod latency;
pub(crate) mod lockstep;
pub(crate) mod rate;
pub(crate) mod spawn;
pub(crate) mod split;
pub(crate) mod unwind;
pub(crate) mod workers;

use anyhow::Result;
use gpucause_fake_cuda::clock;
use serde_json::{Value, json};

use crate::caller::{Caller, Launchable};
use crate::cli::Common;
use crate::libraries::Libraries;
use crate::operation::Pattern;

/// The pieces that every scenario starts from.
pub(crate) struct Setup {
    pub(crate) libraries: Libraries,
    pub(crate) pattern: Pattern,
    pub(crate) launchable: Launchable,
}

impl Setup {
    pub(crate) fn new(common: &Common, mix: &str) -> Result<Self> {
        let libraries = Libraries::open(common)?;
        let pattern = Pattern::new(mix, &libraries, common)?;
        let launchable = Launchable::new(&pattern, &libraries, common)?;
        Ok(Self { libraries, pattern, launchable })
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::new(&self.pattern, &self.launchable)
    }
}

/// Calls once and returns how long it took, in nanoseconds.
#[inline]
fn timed(caller: &mut Caller) -> u64 {
    let start = clock::monotonic_ns();
    caller.step();
    clock::monotonic_ns() - start
}

/// Nanoseconds of a number of seconds.
fn ns(seconds: f64) -> u64 {
    std::time::Duration::try_from_secs_f64(seconds)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The head of every result.
fn result(scenario: &str, libraries: &Libraries) -> Value {
    json!({
        "scenario": scenario,
        "pid": std::process::id(),
        "library": libraries.runtime_path(),
    })
}

/// Adds the members of one object to another.
fn join(mut head: Value, more: Value) -> Value {
    if let (Value::Object(head), Value::Object(more)) = (&mut head, more) {
        head.extend(more);
    }
    head
}
