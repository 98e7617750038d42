//! Causal chains: their counts, and the time that they cost.

use gpucause_page::family::{Exemplar, Family, Value};
use gpucause_page::metric::{
    CAUSAL_CHAIN_INFO, CAUSAL_CHAIN_SECONDS, CAUSAL_CHAINS, Level, STALL_SECONDS,
};

use super::{CollectError, Collector, Families, Input, Series, eager};
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::chain::{Cause, Chain, Culprit, Effect, Place, Severity};
use gpucause_engine::{ChainCount, Findings, Stall};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) struct Chains;

impl Collector for Chains {
    fn name(&self) -> &'static str {
        "chains"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let found = ByProcess::of(input.findings);
        let mut chains = Family::new(&CAUSAL_CHAINS);
        let mut ongoing = Family::new(&CAUSAL_CHAIN_INFO);
        let mut attributed = Family::new(&CAUSAL_CHAIN_SECONDS);
        let mut stalls = Family::new(&STALL_SECONDS);
        for series in input.series.iter().filter(|series| series.process.dispatches) {
            add_counts(&mut chains, &found, series);
            add_ongoing(&mut ongoing, &found, series);
            let time = if input.level == Level::Fleet { &ATTRIBUTED_AT_FLEET } else { &ATTRIBUTED };
            add_times(&mut attributed, &found, series, time);
            add_times(&mut stalls, &found, series, &LOST);
        }
        Ok(eager([ongoing, attributed, chains, stalls]))
    }
}

/// The findings by process.
#[derive(Default)]
struct ByProcess<'a> {
    chains: HashMap<&'a str, &'a Chain>,
    counts: HashMap<ProcId, Vec<&'a ChainCount>>,
    stalls: HashMap<ProcId, Vec<&'a Stall>>,
}

impl<'a> ByProcess<'a> {
    fn of(findings: &'a Findings) -> Self {
        let mut found = Self::default();
        found.chains.extend(findings.chains.iter().map(|chain| (&*chain.id, chain)));
        for count in &findings.counts {
            found.counts.entry(count.process).or_default().push(count);
        }
        for stall in &findings.stalls {
            found.stalls.entry(stall.process).or_default().push(stall);
        }
        found
    }

    fn exemplar(&self, id: &str, amount: impl Fn(&Chain) -> f64) -> Option<Exemplar> {
        let chain = self.chains.get(id)?;
        let at = chain.last_seen;
        Some(Exemplar { key: "chain_id", value: id.into(), amount: amount(chain), at })
    }
}

fn add_counts(family: &mut Family, found: &ByProcess<'_>, series: &Series<'_>) {
    let own = series.images.iter().filter_map(|id| found.counts.get(id)).flatten();
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
        family.set_exemplar(found.exemplar(last_id, |_| 1.0));
    }
}

/// Ongoing chains.
fn add_ongoing(family: &mut Family, found: &ByProcess<'_>, series: &Series<'_>) {
    let own = series.images.iter().filter_map(|id| found.counts.get(id)).flatten();
    let ids: BTreeSet<&str> = own.map(|count| &*count.last_id).collect();
    let chains = ids.into_iter().filter_map(|id| found.chains.get(id));
    for chain in chains.filter(|chain| chain.ongoing == Some(true)) {
        let nowhere = Place::default();
        let culprit = chain.culprit.as_ref();
        let place = culprit.map_or(&nowhere, |own| &own.place);
        let label = |text: &str| text.to_owned().into();
        family.push(
            [
                (&series.pid).into(),
                (&series.comm).into(),
                chain.cause.label().into(),
                label(&chain.id),
                culprit.map(Culprit::name).unwrap_or_default().into(),
                label(&place.unit),
                label(&place.pod),
                label(&chain.victim.place.cpus),
                label(&place.cpus),
            ],
            Value::Integer(1),
        );
    }
}

/// One of the times of a cause.
struct Time {
    /// Returns true if a cause can have such time.
    can_have: fn(Cause) -> bool,
    /// The total.
    of: fn(&Stall) -> Nanos,
    /// The increase by the last chain.
    last_of: fn(&Stall) -> Nanos,
}

const ATTRIBUTED: Time = Time {
    can_have: Cause::takes_time,
    of: |stall| stall.attributed,
    last_of: |stall| stall.last_attributed,
};
/// At the level of fewest series, of a cause whose time is lost only [`LOST`] has the zero; data loading is in both, since its time is
/// lost only while workers hold a lock.
const ATTRIBUTED_AT_FLEET: Time =
    Time { can_have: |cause| cause.takes_time() && !cause.loses_time(), ..ATTRIBUTED };
const LOST: Time =
    Time { can_have: Cause::loses_time, of: |stall| stall.lost, last_of: |stall| stall.last_lost };

/// Every cause that `can_have` such time has a series, if only at zero: rates then see the first increase.
fn add_times(family: &mut Family, found: &ByProcess<'_>, series: &Series<'_>, time: &Time) {
    let own: Vec<&Stall> =
        series.images.iter().filter_map(|id| found.stalls.get(id)).flatten().copied().collect();
    for &cause in Cause::ALL {
        let of_cause = || own.iter().filter(|stall| stall.cause == cause);
        let all = Nanos(of_cause().map(|stall| (time.of)(stall).0).sum());
        if all == Nanos(0) && !(time.can_have)(cause) {
            continue;
        }
        family.push_created(
            [(&series.pid).into(), (&series.comm).into(), cause.label().into()],
            Value::Seconds(all),
            series.created,
        );
        let last = of_cause().rfind(|stall| (time.last_of)(stall) > Nanos(0));
        family.set_exemplar(last.and_then(|stall| {
            found.exemplar(&stall.last_id, |_| (time.last_of)(stall).as_secs_f64())
        }));
    }
}
