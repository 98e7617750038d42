//! CUDA graphs: how often each process launches and captures them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::Tool;
use crate::mcp::answer::{list, rounded};
use crate::mcp::arguments::Rows;
use crate::mcp::graphs::{Step, Steps, head, process, steps};
use crate::mcp::source::Source;
use crate::mcp::{Shared, ToolError, statistics};

/// Time between two readings of a live node's counters.
const BETWEEN: Duration = Duration::from_secs(2);

/// The tool.
pub(super) struct GraphFrequency;

impl Tool for GraphFrequency {
    const NAME: &str = "graph_frequency";
    const DESCRIPTION: &str = "CUDA graphs per process and second: launches, instantiations, re-captures, and launches per instantiation.";
    type Arguments = Rows;

    async fn answer(server: &Shared, asked: Rows) -> Result<Value, ToolError> {
        let source = &server.source;
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
            Source::File(_) => {
                "the recording; re-captures are all captures of a process but its first"
            }
            Source::Nodes(_) => {
                "the last two seconds; any capture after a process's first is a re-capture"
            }
        };
        head.insert("rates_are_over".into(), over.into());
        list(head, "processes", &rows, asked.page())
    }
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
fn recorded(recording: &dyn gpucause_trace::recording::Recording) -> BTreeMap<String, f64> {
    let mut spans = BTreeMap::new();
    for session in recording.sessions() {
        let Some(ended) = session.ended_ns else { continue };
        let span = spans.entry(recording.node_name(session.node).to_owned()).or_insert(0.0);
        *span += (ended - session.started_ns) as f64 / 1e9;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

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
