//! CUDA graphs: counts and times of captures, instantiations, updates, launches and destructions.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::ToolError;
use super::answer::{self, list, object, rounded, seconds};
use super::arguments::Rows;
use super::source::Source;
use super::statistics::{self, Found, Row};

/// Time between two readings of a live node's counters.
const BETWEEN: Duration = Duration::from_secs(2);

/// A step in the life of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Capture,
    Instantiate,
    Update,
    Launch,
    Destroy,
}

impl Step {
    const fn label(self) -> &'static str {
        match self {
            Self::Capture => "captures",
            Self::Instantiate => "instantiations",
            Self::Update => "updates",
            Self::Launch => "launches",
            Self::Destroy => "destructions",
        }
    }

    /// The step of a function. The end of a capture counts, not its begin.
    fn of(op: &str) -> Option<Self> {
        let op = op.strip_prefix("cuda").or_else(|| op.strip_prefix("cu"))?;
        Some(match op {
            "StreamEndCapture" => Self::Capture,
            "GraphExecUpdate" => Self::Update,
            "GraphLaunch" => Self::Launch,
            "GraphExecDestroy" | "GraphDestroy" => Self::Destroy,
            _ if op.starts_with("GraphInstantiate") => Self::Instantiate,
            _ => return None,
        })
    }
}

type Steps = BTreeMap<Step, (u64, u64)>;
type Key = (String, u32, String);

/// Counts and times by process and step. Runtime calls are also seen at driver level, so this takes the maximum of both, not the
/// sum.
fn steps(rows: &[Row]) -> BTreeMap<Key, Steps> {
    let mut layers: BTreeMap<(Key, bool), Steps> = BTreeMap::new();
    for row in rows {
        let Some(step) = Step::of(&row.what) else { continue };
        let key = (row.node.clone(), row.pid, row.comm.clone());
        let of_runtime = row.what.starts_with("cuda");
        let counted = layers.entry((key, of_runtime)).or_default().entry(step).or_default();
        counted.0 += row.count;
        counted.1 += row.sum_ns;
    }
    let mut all: BTreeMap<Key, Steps> = BTreeMap::new();
    for ((key, _), steps) in layers {
        let known = all.entry(key).or_default();
        for (step, counted) in steps {
            let known = known.entry(step).or_default();
            *known = counted.max(*known);
        }
    }
    all
}

fn process(key: &Key, several: bool) -> Map<String, Value> {
    let (node, pid, comm) = key;
    let mut row = object(json!({"pid": pid, "comm": answer::name(comm)}));
    if several {
        row.insert("node".into(), answer::name(node));
    }
    row
}

/// The answer of `graph_lifecycle`.
pub(super) async fn lifecycle(source: &Source, asked: Rows) -> Result<Value, ToolError> {
    let mut found = statistics::find(source).await?;
    found.calls.retain(|row| asked.includes(&row.node, row.pid, &row.comm));
    let rows: Vec<Value> = steps(&found.calls)
        .iter()
        .map(|(key, steps)| {
            let mut row = process(key, found.nodes > 1);
            for (step, (count, sum)) in steps {
                let counted = json!({"count": count, "total_s": seconds(*sum)});
                row.insert(step.label().into(), counted);
            }
            row.into()
        })
        .collect();
    list(head(&found, &asked, rows.is_empty()), "processes", &rows, asked.page())
}

/// The answer of `graph_frequency`.
pub(super) async fn frequency(source: &Source, asked: Rows) -> Result<Value, ToolError> {
    let (first, spans, mut second) = match source {
        Source::File(file) => {
            let spans = file.read(|recording| Ok(recorded(recording))).await?;
            (BTreeMap::new(), spans, statistics::find(source).await?)
        }
        Source::Nodes(_) => {
            let before = statistics::find(source).await?;
            let begin = Instant::now();
            sleep(BETWEEN).await;
            let after = statistics::find(source).await?;
            let span = begin.elapsed().as_secs_f64();
            // Without the counters of before there are no rates, nor where a name is another node's by now.
            let same = before.answered.into_iter().filter(|own| after.answered.contains(own));
            let nodes = same.map(|(node, _)| (node, span));
            (steps(&before.calls), nodes.collect(), after)
        }
    };
    let several = second.nodes > 1;
    second.calls.retain(|row| asked.includes(&row.node, row.pid, &row.comm));
    let rows: Vec<Value> = steps(&second.calls)
        .iter()
        .map(|(key, now)| {
            let span = spans.get(&key.0).copied().filter(|span| *span > 0.0);
            let before = first.get(key);
            frequencies(process(key, several), now, before, span)
        })
        .collect();
    let mut head = head(&second, &asked, rows.is_empty());
    let over = match source {
        Source::File(_) => "the recording; re-captures are all captures of a process but its first",
        Source::Nodes(_) => {
            "the last two seconds; any capture after a process's first is a re-capture"
        }
    };
    head.insert("rates_are_over".into(), over.into());
    list(head, "processes", &rows, asked.page())
}

fn frequencies(
    mut row: Map<String, Value>,
    now: &Steps,
    before: Option<&Steps>,
    span: Option<f64>,
) -> Value {
    let count = |steps: &Steps, step| steps.get(&step).map_or(0, |(count, _)| *count);
    let since = |step| {
        let before = before.map_or(0, |before| count(before, step));
        count(now, step).saturating_sub(before)
    };
    let rate = |count: u64| span.map(|span| rounded(count as f64 / span));
    // The first capture is necessary.
    let first = before.is_none_or(|before| count(before, Step::Capture) == 0);
    let again = since(Step::Capture).saturating_sub(u64::from(first));
    row.insert("seconds".into(), json!(span.map(rounded)));
    row.insert("launches_per_s".into(), json!(rate(since(Step::Launch))));
    row.insert("instantiations_per_s".into(), json!(rate(since(Step::Instantiate))));
    row.insert("recaptures_per_s".into(), json!(rate(again)));
    let built = count(now, Step::Instantiate);
    if built > 0 {
        let each = rounded(count(now, Step::Launch) as f64 / built as f64);
        row.insert("launches_per_instantiation".into(), each);
    }
    row.into()
}

/// Seconds recorded of each node, by its sessions that ended properly.
fn recorded(recording: &dyn crate::recording::Recording) -> BTreeMap<String, f64> {
    let mut spans = BTreeMap::new();
    for session in recording.sessions() {
        let Some(ended) = session.ended_ns else { continue };
        let span = spans.entry(recording.node_name(session.node).to_owned()).or_insert(0.0);
        *span += (ended - session.started_ns) as f64 / 1e9;
    }
    spans
}

/// The head of an answer: failures and observation.
fn head(found: &Found, asked: &Rows, is_empty: bool) -> Map<String, Value> {
    let mut head = Map::new();
    if is_empty {
        let note = found.unknown(asked).unwrap_or("no CUDA graph call was seen");
        head.insert("note".into(), note.into());
    }
    for key in ["failures", "observation"] {
        if let Some(value) = found.head.get(key) {
            head.insert(key.into(), value.clone());
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_a_graphs_life_is_a_step() {
        for (op, step) in [
            ("cudaGraphInstantiateWithFlags", Some(Step::Instantiate)),
            ("cuGraphLaunch", Some(Step::Launch)),
            ("cudaStreamEndCapture", Some(Step::Capture)),
            ("cudaStreamBeginCapture", None),
            ("cuGraphExecDestroy", Some(Step::Destroy)),
            ("ncclAllReduce", None),
        ] {
            assert_eq!(Step::of(op), step, "{op}");
        }
    }

    #[test]
    fn only_captures_after_the_first_are_re_captures() {
        let steps =
            |captures: u64| Steps::from([(Step::Capture, (captures, 1)), (Step::Launch, (60, 1))]);
        let whole = frequencies(Map::new(), &steps(11), None, Some(10.0));
        assert_eq!(
            (&whole["recaptures_per_s"], &whole["launches_per_s"]),
            (&json!(1.0), &json!(6.0))
        );
        let between = frequencies(Map::new(), &steps(11), Some(&steps(7)), Some(2.0));
        assert_eq!(
            (&between["recaptures_per_s"], &between["launches_per_s"]),
            (&json!(2.0), &json!(0.0))
        );
        let unknown = frequencies(Map::new(), &steps(11), None, None);
        assert_eq!(unknown["recaptures_per_s"], Value::Null);
    }
}
