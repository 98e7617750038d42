//! A Prometheus that evaluates `rules/cost.yaml` reports the cost of lost GPU time and idle GPUs.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object, rounded};
use crate::mcp::{Shared, ToolError, arguments};

/// The age of what the rules recorded last; none where no process was observed for five minutes.
const AGE: &str = "time() - max(timestamp(process:gpucause_accounting:info))";
const NOTE: &str = "Lost: time of dispatcher threads (the threads that call CUDA to feed the GPU), by proven causes; the counters of the exporters add up to it. Idle: GPUs that are held, and on which nothing was launched for 15 minutes. A call that hangs can be both: do not add them. Without prices there is no cost.";
/// Characters of a label.
const MAX_LABEL: usize = 120;
const MAX_CURRENCY: usize = 20;

/// Sums of one row.
#[derive(Debug, Default)]
struct Row {
    lost_hours: f64,
    idle_hours: f64,
    /// By currency.
    lost_cost: BTreeMap<String, f64>,
    idle_cost: BTreeMap<String, f64>,
}

impl Row {
    fn json(&self, by: &str, of: &str) -> Value {
        let costs = |own: &BTreeMap<String, f64>| -> Map<String, Value> {
            let cost = |(currency, amount): (&String, &f64)| {
                (answer::text(currency, MAX_CURRENCY), rounded(*amount))
            };
            own.iter().map(cost).collect()
        };
        let mut row = Map::new();
        let name = (!of.is_empty()).then(|| answer::text(of, MAX_LABEL));
        row.insert(by.to_owned(), name.map_or(Value::Null, Value::from));
        row.insert("lost_gpu_hours".to_owned(), rounded(self.lost_hours));
        row.insert("lost_cost".to_owned(), costs(&self.lost_cost).into());
        row.insert("idle_gpu_hours".to_owned(), rounded(self.idle_hours));
        row.insert("idle_cost".to_owned(), costs(&self.idle_cost).into());
        Value::Object(row)
    }

    /// The dearest rows come first, and without prices the longest.
    fn weight(&self) -> (f64, f64) {
        let cost = self.lost_cost.values().chain(self.idle_cost.values()).sum();
        (cost, self.lost_hours + self.idle_hours)
    }
}

/// Period and grouping of the costs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Costs {
    /// Over so many last hours, 1 to 744; 24 unless given.
    #[serde(default = "arguments::a_day")]
    hours: u64,
    /// A row for each: cause, namespace, user, slurm_job or comm, the name of the process; cause unless given.
    #[serde(default)]
    by: By,
    /// More bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl Costs {
    fn page(&self) -> Page {
        arguments::page(self.detail, self.limit, self.offset)
    }
}

/// Label by which costs are added up.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum By {
    #[default]
    Cause,
    Namespace,
    User,
    SlurmJob,
    Comm,
}

impl By {
    /// The label.
    const fn label(self) -> &'static str {
        match self {
            Self::Cause => "cause",
            Self::Namespace => "namespace",
            Self::User => "user",
            Self::SlurmJob => "slurm_job",
            Self::Comm => "comm",
        }
    }
}

/// The tool.
pub(super) struct GetCost;

impl Tool for GetCost {
    const NAME: &str = "get_cost";
    const DESCRIPTION: &str = "What lost GPU time and idle GPUs cost over the last hours, the dearest first, by cause, namespace, user, Slurm job or process, as a Prometheus has it; says which, and how old its values are.";
    type Arguments = Costs;

    fn is_listed(server: &Shared) -> bool {
        server.stores.prometheus.is_some()
    }

    fn check(asked: &Costs) -> Result<(), String> {
        arguments::check_hours(asked.hours)
    }

    async fn answer(server: &Shared, asked: Costs) -> Result<Value, ToolError> {
        let Some(prometheus) = &server.stores.prometheus else {
            return Err(ToolError::new(
                "this server has no Prometheus; start it with --prometheus URL",
            ));
        };
        let age = prometheus.query(AGE).await.map_err(ToolError::new)?;
        let age = age.first().map(|sample| sample.value);
        let (by, hours) = (asked.by.label(), asked.hours);
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for (series, is_lost, is_cost) in [
            ("owner:gpucause_lost_seconds:increase1m", true, false),
            ("owner:gpucause_idle_seconds:increase1m", false, false),
            ("owner:gpucause_lost_cost:increase1m", true, true),
            ("owner:gpucause_idle_cost:increase1m", false, true),
        ] {
            let currency = if is_cost { ", currency" } else { "" };
            let query = format!("sum by ({by}{currency}) (sum_over_time({series}[{hours}h]))");
            for sample in prometheus.query(&query).await.map_err(ToolError::new)? {
                let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
                let row = rows.entry(label(by)).or_default();
                let (hours, costs) = if is_lost {
                    (&mut row.lost_hours, &mut row.lost_cost)
                } else {
                    (&mut row.idle_hours, &mut row.idle_cost)
                };
                if is_cost {
                    *costs.entry(label("currency")).or_default() += sample.value;
                } else {
                    *hours += sample.value / 3600.0;
                }
            }
        }
        if age.is_none() && rows.is_empty() {
            return Err(ToolError(format!(
                "{} has no values of rules/cost.yaml in {hours} h; load the rules, and check that it scrapes exporters",
                prometheus.address()
            )));
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by(|(_, one), (_, other)| {
            let ((a, b), (c, d)) = (other.weight(), one.weight());
            a.total_cmp(&c).then(b.total_cmp(&d))
        });
        let rows: Vec<Value> = rows.iter().map(|(of, row)| row.json(by, of)).collect();
        let head = object(json!({
            "source": answer::name(&prometheus.address().to_string()),
            "newest_value_age_s": age.map(rounded),
            "last_hours": hours,
            "note": NOTE,
        }));
        list(head, "rows", &rows, asked.page())
    }
}
