//! Ranks that stand off their job, by a Prometheus that evaluates `rules/`: launches, their p99 and lost time, compared with the
//! median of the job's ranks by the median absolute deviation (MAD).

use std::collections::{BTreeMap, BTreeSet};

use gpucause_http::client::GetError;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object, rounded};
use crate::mcp::source::{failure, failures};
use crate::mcp::{Shared, ToolError, arguments};
use crate::prometheus::{Prometheus, PrometheusError, Sample, string_literal};

/// Deviations from which a rank is an outlier, as in the rules.
const THRESHOLD: f64 = 5.0;
/// Fewest ranks that are compared.
const QUORUM: usize = 3;
/// Nodes named in the head.
const MAX_NODES: usize = 20;
/// Standard deviations in a MAD, where values are normally distributed.
const NORMAL: f64 = 1.4826;
const NOTE: &str = "Of the last minute. deviations: distance on the worse side of the median of the job's ranks, in standard deviations by MAD, where small differences do not count; 5 makes an outlier. lost_share: seconds lost by proven delays of the host, per second. Where all ranks wait for one, their launches are equal, and only lost_share shows which one it is.";
const PEERS: &str = "process:gpucause_peers:info";

/// Metric by which ranks are compared.
#[derive(Debug)]
struct Measure {
    name: &'static str,
    series: &'static str,
    /// True if less is worse.
    less: bool,
    /// Least deviation that counts, as a share of the median and absolute.
    floor: [f64; 2],
}

const MEASURES: [Measure; 3] = [
    Measure {
        name: "launches_per_s",
        series: "process:gpucause_launches:rate1m",
        less: true,
        floor: [0.02, 0.0],
    },
    Measure {
        name: "launch_p99_s",
        series: "process:gpucause_launch_duration_seconds:p99_1m",
        less: false,
        floor: [0.1, 1e-5],
    },
    Measure {
        name: "lost_share",
        series: "process:gpucause_host_delay:ratio_rate1m",
        less: false,
        floor: [0.0, 0.02],
    },
];

/// A rank, with a value of each measure.
#[derive(Debug, Clone, Default)]
struct Rank {
    instance: String,
    pid: String,
    comm: String,
    rank: String,
    values: [Option<f64>; MEASURES.len()],
}

/// Labels that the ranks of a job share.
const JOB: [&str; 5] = ["job", "comm", "slurm_job", "namespace", "world_size"];
/// Labels that identify a process.
const PROCESS: [&str; 4] = ["job", "instance", "pid", "comm"];

fn labels<const N: usize>(sample: &Sample, names: [&str; N]) -> [String; N] {
    names.map(|name| sample.labels.get(name).cloned().unwrap_or_default())
}

/// Returns the median; for an even number of values, the lower of the two middle ones.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// A rank's distance from its peers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Distance {
    value: f64,
    median: f64,
    deviations: f64,
}

impl Measure {
    /// The distance of each rank on the worse side. `None` without a value, or without a quorum of those that have one.
    fn distances(&self, values: &[Option<f64>]) -> Vec<Option<Distance>> {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let enough = known.len() >= QUORUM;
        let Some(middle) = median(known.clone()).filter(|_| enough) else {
            return vec![None; values.len()];
        };
        let mad = median(known.iter().map(|own| (own - middle).abs()).collect());
        let [share, absolute] = self.floor;
        let unit = (NORMAL * mad.unwrap_or_default()).max(share * middle.abs()).max(absolute);
        let distance = |value: f64| {
            let worse = if self.less { middle - value } else { value - middle };
            let deviations = if unit > 0.0 { (worse / unit).max(0.0) } else { 0.0 };
            Distance { value, median: middle, deviations }
        };
        values.iter().map(|value| value.map(distance)).collect()
    }
}

/// The job's part of a row, and the ranks.
type Jobs = BTreeMap<[String; JOB.len()], Vec<Rank>>;

/// A rank twice belongs to two jobs, which are then not compared.
fn is_comparable(ranks: &[Rank]) -> bool {
    let numbers: BTreeSet<_> = ranks.iter().map(|own| &own.rank).collect();
    ranks.len() >= QUORUM && numbers.len() == ranks.len()
}

/// The outliers of a job, each with its largest deviation.
fn of_job<'a>(ranks: &'a [Rank]) -> Vec<(f64, &'a Rank, [Option<Distance>; MEASURES.len()])> {
    let mut columns = MEASURES.iter().enumerate().map(|(index, measure)| {
        measure.distances(&ranks.iter().map(|own| own.values[index]).collect::<Vec<_>>())
    });
    let columns: [Vec<_>; MEASURES.len()] =
        std::array::from_fn(|_| columns.next().unwrap_or_default());
    let outlier = |(index, rank): (usize, &'a Rank)| {
        let own: [_; MEASURES.len()] =
            std::array::from_fn(|measure| columns[measure].get(index).copied().flatten());
        let most = own.iter().flatten().map(|own| own.deviations).fold(0.0, f64::max);
        (most >= THRESHOLD).then_some((most, rank, own))
    };
    ranks.iter().enumerate().filter_map(outlier).collect()
}

/// The series of the ranks that are asked about.
fn peers(asked: &Outliers) -> String {
    let comm = asked.comm.as_ref().map(|comm| format!("comm={}", string_literal(comm)));
    let comm = comm.unwrap_or_default();
    match &asked.job {
        None => format!("{PEERS}{{{comm}}}"),
        Some(job) => {
            let job = string_literal(job);
            format!("({PEERS}{{slurm_job={job},{comm}}} or {PEERS}{{namespace={job},{comm}}})")
        }
    }
}

async fn jobs(prometheus: &Prometheus, asked: &Outliers) -> Result<Jobs, ToolError> {
    let peers = peers(asked);
    let samples = async |query: &str| {
        let too_many = |error| match error {
            PrometheusError::Broken(_, GetError::Huge(_)) => {
                ToolError(format!("{error}; ask for one job or comm"))
            }
            other => ToolError::new(other),
        };
        prometheus.query(query).await.map_err(too_many)
    };
    let mut values: BTreeMap<[String; PROCESS.len()], [Option<f64>; MEASURES.len()]> =
        BTreeMap::new();
    for (index, Measure { series, .. }) in MEASURES.iter().enumerate() {
        let by = PROCESS.join(", ");
        let query = format!("max by ({by}) ({series}) and on ({by}) {peers}");
        for sample in samples(&query).await? {
            let value = Some(sample.value).filter(|value| value.is_finite());
            values.entry(labels(&sample, PROCESS)).or_default()[index] = value;
        }
    }
    let mut jobs = Jobs::new();
    // No other labels, which would make the answer larger.
    let query = format!("max by (instance, pid, rank, {}) ({peers})", JOB.join(", "));
    for sample in samples(&query).await? {
        let [_, instance, pid, comm] = labels(&sample, PROCESS);
        let [rank] = labels(&sample, ["rank"]);
        let values = values.get(&labels(&sample, PROCESS)).copied().unwrap_or_default();
        let rank = Rank { instance, pid, comm, rank, values };
        jobs.entry(labels(&sample, JOB)).or_default().push(rank);
    }
    Ok(jobs)
}

fn row(
    job: &[String; JOB.len()],
    (most, rank, distances): (f64, &Rank, [Option<Distance>; MEASURES.len()]),
    alerting: &BTreeSet<[String; 3]>,
    page: Page,
) -> Value {
    let [_, _, slurm_job, namespace, world_size] = job;
    let key = [&rank.instance, &rank.pid, &rank.comm].map(Clone::clone);
    let mut row = object(json!({
        "node": answer::name(&rank.instance),
        "rank": answer::name(&rank.rank),
        "world_size": answer::name(world_size),
        "pid": answer::name(&rank.pid),
        "comm": answer::name(&rank.comm),
        "deviations": rounded(most),
        "is_straggler_by_rules": alerting.contains(&key),
    }));
    for (name, value) in [("slurm_job", slurm_job), ("namespace", namespace)] {
        if !value.is_empty() {
            row.insert(name.to_owned(), answer::name(value));
        }
    }
    let shown = MEASURES.iter().zip(distances).filter_map(|(measure, distance)| {
        let distance = distance.filter(|own| page.detail || own.deviations >= THRESHOLD)?;
        let shown = json!({
            "value": rounded(distance.value),
            "median_of_job": rounded(distance.median),
            "deviations": rounded(distance.deviations),
        });
        Some((measure.name.to_owned(), shown))
    });
    row.insert("by".to_owned(), shown.collect::<Map<_, _>>().into());
    row.into()
}

/// Which ranks are compared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Outliers {
    /// Only of the Slurm job with this number, or of this Kubernetes namespace.
    job: Option<String>,
    /// Only of processes with this name, such as train.py.
    comm: Option<String>,
    /// All measures of each outlier, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Outliers {
    fn page(&self) -> Page {
        arguments::page(self.detail, self.limit, self.offset)
    }
}

/// The tool.
pub(super) struct FindOutlierNodes;

impl Tool for FindOutlierNodes {
    const NAME: &str = "find_outlier_nodes";
    const DESCRIPTION: &str = "Nodes and ranks that stand off their job now: by launches, launch p99 and lost time, compared with the median of the job's ranks by MAD, as a Prometheus has it; says which, how old its values are, and which nodes it cannot scrape.";
    type Arguments = Outliers;

    fn is_listed(server: &Shared) -> bool {
        server.stores.prometheus.is_some()
    }

    async fn answer(server: &Shared, asked: Outliers) -> Result<Value, ToolError> {
        let Some(prometheus) = &server.stores.prometheus else {
            return Err(ToolError::new(
                "this server has no Prometheus; start it with --prometheus URL",
            ));
        };
        let ask = async |query: &str| prometheus.query(query).await.map_err(ToolError::new);
        let jobs = jobs(prometheus, &asked).await?;
        if jobs.is_empty() {
            return Err(ToolError(format!(
                "{} has no such ranks; it needs processes with a rank, and rules/fleet.yaml",
                prometheus.address()
            )));
        }
        let age = ask(&format!("time() - max(timestamp({PEERS}))")).await?;
        let oldest = ask(r#"time() - min(timestamp(gpucause_process_info{rank!=""}))"#).await?;
        let unscraped = ask(r#"max by (instance) (up{job=~"gpucause.*"} == 0)"#).await?;
        let states = "process:gpucause_straggler:state or on (instance, pid, comm) process:gpucause_fleet_straggler:state";
        let alerting = ask(states).await?;
        let alerting =
            alerting.iter().map(|own| labels(own, ["instance", "pid", "comm"])).collect();
        let value = |samples: &[Sample]| samples.first().map(|own| rounded(own.value));

        let (mut found, mut compared, mut others) = (Vec::new(), 0, 0);
        for (job, ranks) in &jobs {
            if is_comparable(ranks) {
                compared += ranks.len();
                found.extend(of_job(ranks).into_iter().map(|outlier| (job, outlier)));
            } else {
                others += ranks.len();
            }
        }
        found.sort_by(|(_, (a, ..)), (_, (b, ..))| b.total_cmp(a));
        let mut nodes: Vec<&str> = Vec::new();
        for (_, (_, rank, _)) in &found {
            if !nodes.contains(&&*rank.instance) && nodes.len() < MAX_NODES {
                nodes.push(&rank.instance);
            }
        }
        let mut head = object(json!({
            "source": answer::name(&prometheus.address().to_string()),
            "newest_value_age_s": value(&age),
            "oldest_scrape_age_s": value(&oldest),
            "jobs": jobs.len(),
            "ranks_compared": compared,
            "ranks_without_enough_peers": others,
            "outlier_ranks": found.len(),
            "outlier_nodes": nodes.iter().map(|node| answer::name(node)).collect::<Vec<_>>(),
            "note": NOTE,
        }));
        if !unscraped.is_empty() {
            let reason = "Prometheus cannot scrape it; its ranks may be missing";
            let failed =
                unscraped.iter().map(|own| failure(&labels(own, ["instance"])[0], &reason));
            head.insert("failures".to_owned(), failures(failed.collect()));
        }
        let page = asked.page();
        let rows: Vec<_> =
            found.into_iter().map(|(job, outlier)| row(job, outlier, &alerting, page)).collect();
        list(head, "ranks", &rows, page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(values: &[[f64; 3]]) -> Vec<Rank> {
        let rank = |(index, values): (usize, &[f64; 3])| Rank {
            instance: format!("gpu-{index}"),
            rank: index.to_string(),
            values: values.map(Some),
            ..Rank::default()
        };
        values.iter().enumerate().map(rank).collect()
    }

    fn outliers(values: &[[f64; 3]]) -> Vec<String> {
        let ranks = ranks(values);
        of_job(&ranks).iter().map(|(_, rank, _)| rank.instance.clone()).collect()
    }

    const USUAL: [f64; 3] = [1000.0, 2e-4, 0.01];

    #[test]
    fn only_what_is_far_on_the_worse_side_is_an_outlier() {
        let with = |odd: [f64; 3]| outliers(&[USUAL, odd, USUAL, USUAL]);
        assert_eq!(with(USUAL), [""; 0]);
        for odd in [[800.0, 2e-4, 0.01], [1000.0, 5e-4, 0.01], [1000.0, 2e-4, 0.2]] {
            assert_eq!(with(odd), ["gpu-1"], "{odd:?}");
        }
        for better in [[2000.0, 1e-5, 0.0], [920.0, 2.5e-4, 0.09], [f64::NAN, 2e-4, 0.0]] {
            assert_eq!(with(better), [""; 0], "{better:?}");
        }
    }

    #[test]
    fn where_ranks_differ_by_nature_more_is_needed() {
        let spread = |last: f64| {
            let rates = [1000.0, 900.0, 1100.0, 950.0, 1050.0, last];
            outliers(&rates.map(|rate| [rate, 2e-4, 0.0]))
        };
        assert_eq!(spread(800.0), [""; 0]);
        assert_eq!(spread(400.0), ["gpu-5"]);
    }

    #[test]
    fn ranks_without_peers_of_their_own_numbers_are_not_compared() {
        assert!(is_comparable(&ranks(&[USUAL; 3])));
        assert!(!is_comparable(&ranks(&[USUAL; 2])));
        let mut twice = ranks(&[USUAL; 4]);
        twice[3].rank = "0".into();
        assert!(!is_comparable(&twice));
    }

    #[test]
    fn a_name_is_no_part_of_an_expression() {
        let asked = |job: Option<&str>, comm: Option<&str>| {
            let text = json!({"job": job, "comm": comm});
            peers(&serde_json::from_value(text).unwrap())
        };
        assert_eq!(asked(None, None), "process:gpucause_peers:info{}");
        assert_eq!(
            asked(Some("7"), Some("a\"} or up{x=\"\n")),
            r#"(process:gpucause_peers:info{slurm_job="7",comm="a\"} or up{x=\"\n"} or process:gpucause_peers:info{namespace="7",comm="a\"} or up{x=\"\n"})"#
        );
        assert!(asked(Some("7"), None).contains(r#"{slurm_job="7",}"#));
    }
}
