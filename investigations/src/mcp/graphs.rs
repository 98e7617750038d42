//! CUDA graphs: counts and times of captures, instantiations, updates, launches and destructions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answer::{self, object};
use super::arguments::Rows;
use super::statistics::{Found, Row};

/// A step in the life of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Capture,
    Instantiate,
    Update,
    Launch,
    Destroy,
}

impl Step {
    /// Its name in answers.
    pub(super) const fn label(self) -> &'static str {
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

/// Counts and times by step.
pub(super) type Steps = BTreeMap<Step, (u64, u64)>;
/// Node, PID and name.
pub(super) type Key = (String, u32, String);

/// Counts and times by process and step. Runtime calls are also seen at driver level, so this takes the maximum of both, not the
/// sum.
pub(super) fn steps(rows: &[Row]) -> BTreeMap<Key, Steps> {
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

/// The row of a process.
pub(super) fn process(key: &Key, several: bool) -> Map<String, Value> {
    let (node, pid, comm) = key;
    let mut row = object(json!({"pid": pid, "comm": answer::name(comm)}));
    if several {
        row.insert("node".into(), answer::name(node));
    }
    row
}

/// The head of an answer: failures and observation.
pub(super) fn head(found: &Found, asked: &Rows, is_empty: bool) -> Map<String, Value> {
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
}
