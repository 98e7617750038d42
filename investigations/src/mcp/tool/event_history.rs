//! Chains of many nodes over days, from a ClickHouse that has the tables of `clickhouse.sql`.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::Tool;
use crate::clickhouse::{MAX_ROWS, rows};
use crate::mcp::answer::{self, Page, list, object, rounded};
use crate::mcp::{Shared, ToolError, arguments};

/// Selects the last record of each chain. The columns that select records are equal in all records of a chain, except the time, which
/// is the latest in the last record. Few columns are read, because there may be millions of records.
macro_rules! newest {
    () => {
        "\
WITH newest AS (
    WITH if({until:Float64} > 0, toDateTime64({until:Float64}, 3), now64(3)) AS range_end
    SELECT Node, ChainId, max(Revision) AS LastRevision, max(Seen) AS LastSeen, argMax(LostSeconds, Revision) AS Lost
    FROM gpucause_chain_records
    WHERE FirstSeen <= range_end AND Seen >= range_end - toIntervalHour({hours:UInt32})
        AND ({node:String} = '' OR Node = {node:String})
        AND ({comm:String} = '' OR Victim = {comm:String})
        AND ({cause:String} = '' OR Cause = {cause:String})
        AND ({job:String} = '' OR {job:String} IN (SlurmJob, Namespace, Owner))
    GROUP BY Node, ChainId
)
"
    };
}

/// No chain lost more than 31 years: what one node makes up does not hide the sum of the others.
const SUMMARY: &str = concat!(
    newest!(),
    "\
SELECT
    toFloat64((SELECT count() FROM gpucause_chain_records)) AS records,
    (SELECT toUnixTimestamp64Milli(now64(3)) - toUnixTimestamp64Milli(max(Seen)) FROM gpucause_chain_records) / 1000 AS age,
    toFloat64(count()) AS chains, sum(if(Lost BETWEEN 0 AND 1e9, Lost, 0)) AS lost
FROM newest"
);
/// The first characters of columns.
macro_rules! cut {
    ($most:literal of $($column:ident as $name:ident),+) => {
        concat!($("substringUTF8(toValidUTF8(", stringify!($column), "), 1, ", $most, ") AS ", stringify!($name), ", ",)+)
    };
}

/// A record that came twice is there until ClickHouse merges it. What nodes sent is cut, so that [`MAX_ROWS`] rows are never too large
/// an answer, even with six bytes of JSON for each of theirs; no cause has as much evidence as is left out.
const CHAINS: &str = concat!(
    newest!(),
    "SELECT ",
    cut!(121 of Node as node, ChainId as id, State as state, Severity as severity, Cause as cause, Effect as effect, Victim as victim),
    cut!(121 of Culprit as culprit, CulpritOwner as culprit_owner, SlurmJob as slurm_job, Namespace as namespace, Pod as pod, Owner as owner),
    cut!(801 of Sentence as sentence, Fix as fix),
    "\
    mapFilter((name, value) -> length(toString(Evidence)) <= 3000, Evidence) AS evidence,
    toUnixTimestamp64Milli(FirstSeen) / 1000 AS first_seen, toUnixTimestamp64Milli(Seen) / 1000 AS last_seen,
    toUnixTimestamp64Milli(now64(3)) / 1000 AS now, LostSeconds AS lost_seconds, Explained AS explained,
    VictimPid AS victim_pid, CulpritPid AS culprit_pid, Rank AS rank
FROM gpucause_chain_records
WHERE (Node, ChainId, Revision) IN (
    SELECT Node, ChainId, LastRevision FROM newest ORDER BY LastSeen DESC, Node, ChainId LIMIT 100
)
ORDER BY Seen DESC, Node, ChainId
LIMIT 1 BY Node, ChainId"
);
const NOTE: &str = "The newest first, each as last seen. Ongoing: seen within three minutes; silent: neither seen since nor ended, because its node, the exporter or the way to this store is gone. Only nodes with --otlp.endpoint are here, and only causes that were found: no chain does not mean that a node was observed.";
/// Seconds after which an ongoing chain, which is recorded every minute, is silent.
const SILENT: f64 = 180.0;
/// Numbers of evidence listed.
const MAX_EVIDENCE: usize = 40;

/// JSON has no infinity and no NaN, which a node may have sent and a sum may become: they are null, or strings.
fn finite(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.filter(|number| number.is_finite())
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Value::deserialize(deserializer).map(|value| finite(&value).unwrap_or_default())
}

#[derive(Debug, Deserialize)]
struct Row {
    node: String,
    id: String,
    state: String,
    severity: String,
    cause: String,
    effect: String,
    first_seen: f64,
    last_seen: f64,
    now: f64,
    #[serde(deserialize_with = "number")]
    lost_seconds: f64,
    #[serde(deserialize_with = "number")]
    explained: f64,
    victim: String,
    victim_pid: u32,
    culprit: String,
    culprit_pid: Option<u32>,
    culprit_owner: String,
    rank: Option<u32>,
    slurm_job: String,
    namespace: String,
    pod: String,
    owner: String,
    sentence: String,
    fix: String,
    evidence: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Summary {
    /// In the table, of any time.
    records: f64,
    age: f64,
    chains: f64,
    lost: Value,
}

fn shown(value: &Value) -> Value {
    finite(value).map_or(Value::Null, rounded)
}

impl Row {
    fn state(&self) -> &'static str {
        match &*self.state {
            "ended" => "ended",
            _ if self.now - self.last_seen <= SILENT => "ongoing",
            _ => "silent",
        }
    }

    fn json(&self, page: Page) -> Value {
        let has_culprit = !self.culprit.is_empty();
        let culprit = has_culprit.then(|| {
            json!({
                "pid": self.culprit_pid,
                "comm": answer::name(&self.culprit),
                "owner": answer::name(&self.culprit_owner),
            })
        });
        let mut row = object(json!({
            "node": answer::name(&self.node),
            "id": answer::name(&self.id),
            "state": self.state(),
            "first_seen": rounded(self.first_seen),
            "last_seen": rounded(self.last_seen),
            "cause": answer::name(&self.cause),
            "effect": answer::name(&self.effect),
            "severity": answer::name(&self.severity),
            "victim": {"pid": self.victim_pid, "comm": answer::name(&self.victim)},
            "culprit": culprit,
            "rank": self.rank,
            "explained": rounded(self.explained),
            "lost_seconds": rounded(self.lost_seconds),
            "sentence": answer::text(&self.sentence, 800),
        }));
        for (name, value) in [
            ("slurm_job", &self.slurm_job),
            ("namespace", &self.namespace),
            ("pod", &self.pod),
            ("owner", &self.owner),
        ] {
            if !value.is_empty() {
                row.insert(name.to_owned(), answer::name(value));
            }
        }
        if page.detail {
            row.insert("fix".to_owned(), answer::text(&self.fix, 800).into());
            let evidence = self.evidence.iter().take(MAX_EVIDENCE);
            let evidence: Map<String, Value> =
                evidence.map(|(name, value)| (answer::text(name, 80), shown(value))).collect();
            row.insert("evidence".to_owned(), evidence.into());
        }
        row.into()
    }
}

/// The number of chains in an answer of a ClickHouse.
///
/// # Errors
/// When it is not one.
pub fn history_rows(body: &[u8]) -> Result<usize, serde_json::Error> {
    const WHOLE: Page = Page { offset: 0, limit: usize::MAX, detail: true };
    rows::<Row>(body).map(|rows| rows.iter().map(|row| row.json(WHOLE)).collect::<Vec<_>>().len())
}

/// Which chains of the past.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct History {
    /// Only what lasted within so many hours before until, 1 to 744; 24 unless given.
    #[serde(default = "arguments::a_day")]
    hours: u64,
    /// Seconds since the Unix epoch; now unless given.
    until: Option<f64>,
    /// Only of the node with this name.
    node: Option<String>,
    /// Only of the Slurm job with this number, or of this Kubernetes namespace or user.
    job: Option<String>,
    /// Only of victims with this name, such as train.py.
    comm: Option<String>,
    /// Only of this cause, such as cpu_preemption.
    cause: Option<String>,
    /// The fix and the evidence of each chain, and more bytes in all.
    #[serde(default)]
    detail: bool,
    /// Rows at most; 10 unless given, 200 at most.
    limit: Option<usize>,
    /// Rows to skip.
    #[serde(default)]
    offset: usize,
}

impl History {
    fn page(&self) -> Page {
        arguments::page(self.detail, self.limit, self.offset)
    }
}

/// The tool.
pub(super) struct EventHistory;

impl Tool for EventHistory {
    const NAME: &str = "event_history";
    const DESCRIPTION: &str = "Causal chains of the last hours or of a time in the past, of all nodes, one node or one job, the newest first, as a ClickHouse stores them; says which, and how old its newest record is.";
    type Arguments = History;

    fn is_listed(server: &Shared) -> bool {
        server.stores.clickhouse.is_some()
    }

    fn check(asked: &History) -> Result<(), String> {
        arguments::check_hours(asked.hours)?;
        match asked.until {
            // Until the year 2100.
            Some(until) if !(1.0..4_102_444_800.0).contains(&until) => {
                Err(format!("until is {until}; expected seconds since the Unix epoch"))
            }
            _ => Ok(()),
        }
    }

    async fn answer(server: &Shared, asked: History) -> Result<Value, ToolError> {
        let Some(clickhouse) = &server.stores.clickhouse else {
            return Err(ToolError::new(
                "this server has no ClickHouse; start it with --clickhouse URL",
            ));
        };
        let (until, hours) = (asked.until.unwrap_or(0.0).to_string(), asked.hours.to_string());
        let [node, job, comm, cause] = [&asked.node, &asked.job, &asked.comm, &asked.cause]
            .map(|text| text.as_deref().unwrap_or_default());
        let parameters = [
            ("until", &*until),
            ("hours", &*hours),
            ("node", node),
            ("job", job),
            ("comm", comm),
            ("cause", cause),
        ];
        let summary: Vec<Summary> =
            clickhouse.rows(SUMMARY, &parameters).await.map_err(ToolError::new)?;
        let Some(summary) = summary.first().filter(|own| own.records > 0.0) else {
            return Err(ToolError(format!(
                "{} has no chains; exporters send them with --otlp.endpoint",
                clickhouse.address()
            )));
        };
        let chains: Vec<Row> =
            clickhouse.rows(CHAINS, &parameters).await.map_err(ToolError::new)?;
        let mut head = object(json!({
            "source": answer::name(&clickhouse.address().to_string()),
            "newest_record_age_s": rounded(summary.age),
            "hours": asked.hours,
            "until": asked.until,
            "chains_in_all": summary.chains,
            "lost_seconds_in_all": shown(&summary.lost),
            "note": NOTE,
        }));
        if summary.chains > MAX_ROWS as f64 {
            let text = format!(
                "only the newest {MAX_ROWS} are here; ask for less time, one node or one job"
            );
            head.insert("more".to_owned(), text.into());
        }
        let page = asked.page();
        let rows: Vec<Value> = chains.iter().take(MAX_ROWS).map(|row| row.json(page)).collect();
        list(head, "chains", &rows, page)
    }
}
