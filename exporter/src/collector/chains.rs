//! Causal chains as counters: how many, and the time they cost.

use super::{CollectError, Collector, Input, Series};
use crate::chains::Findings;
use crate::family::{Exemplar, Family, Value};
use crate::metric::{CAUSAL_CHAINS, STALL_SECONDS};
use gpucause_abi::Nanos;
use gpucause_engine::Stall;
use gpucause_engine::chain::{Cause, Chain, Effect, Severity};
use std::collections::BTreeMap;

pub(super) struct Chains;

impl Collector for Chains {
    fn name(&self) -> &'static str {
        "chains"
    }

    fn collect(&self, input: &Input<'_>) -> Result<Vec<Family>, CollectError> {
        let findings = &input.observation.findings;
        let mut chains = Family::new(&CAUSAL_CHAINS);
        let mut stalls = Family::new(&STALL_SECONDS);
        for series in input.series.iter().filter(|series| series.process.dispatches) {
            add_counts(&mut chains, findings, series);
            add_stalls(&mut stalls, findings, series);
        }
        Ok(vec![chains, stalls])
    }
}

fn exemplar(findings: &Findings, id: &str, amount: impl Fn(&Chain) -> f64) -> Option<Exemplar> {
    let chain = findings.chains.iter().find(|chain| chain.id == id)?;
    let at = chain.last_seen;
    Some(Exemplar { key: "chain_id", value: id.into(), amount: amount(chain), at })
}

fn add_counts(family: &mut Family, findings: &Findings, series: &Series<'_>) {
    let own = findings.counts.iter().filter(|count| series.images.contains(&count.process));
    let mut totals: BTreeMap<(Cause, Effect, Severity), (u64, &str)> = BTreeMap::new();
    for count in own {
        let total = totals.entry((count.cause, count.effect, count.severity)).or_default();
        *total = (total.0 + count.count, &count.last_id);
    }
    for ((cause, effect, severity), (count, last_id)) in totals {
        let labels = [
            (&series.pid).into(),
            (&series.comm).into(),
            cause.label().into(),
            effect.label().into(),
            severity.label().into(),
        ];
        family.push_created(labels, Value::Integer(count), series.created);
        family.set_exemplar(exemplar(findings, last_id, |_| 1.0));
    }
}

/// Every cause has a series, at zero if need be: rates then see the first increase.
fn add_stalls(family: &mut Family, findings: &Findings, series: &Series<'_>) {
    for &cause in Cause::ALL {
        let is_own =
            |stall: &&Stall| stall.cause == cause && series.images.contains(&stall.process);
        let own: Vec<_> = findings.stalls.iter().filter(is_own).collect();
        let lost = Nanos(own.iter().map(|stall| stall.lost.0).sum());
        family.push_created(
            [(&series.pid).into(), (&series.comm).into(), cause.label().into()],
            Value::Seconds(lost),
            series.created,
        );
        let last = own.last();
        family.set_exemplar(last.and_then(|stall| {
            exemplar(findings, &stall.last_id, |_| stall.last_lost.as_secs_f64())
        }));
    }
}
