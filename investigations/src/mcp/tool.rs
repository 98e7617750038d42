//! The tools, a file each: name, description, arguments and answer.

mod event_history;
mod find_outlier_nodes;
mod get_causal_chains;
mod get_check;
mod get_cost;
mod get_data_quality;
mod get_stacks;
mod get_trace_stats;
mod graph_frequency;
mod graph_lifecycle;
mod query_fleet;
mod run_demo;
mod run_sql;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::{ErrorData, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Problem, Shared, ToolError, arguments};

pub use event_history::history_rows;
pub(super) use run_demo::MAX_DEMO;

/// Every tool, in the order of the list.
pub(super) const ALL: &[AnyTool] = &[
    AnyTool::of::<get_check::GetCheck>(),
    AnyTool::of::<get_trace_stats::GetTraceStats>(),
    AnyTool::of::<get_causal_chains::GetCausalChains>(),
    AnyTool::of::<get_stacks::GetStacks>(),
    AnyTool::of::<graph_lifecycle::GraphLifecycle>(),
    AnyTool::of::<graph_frequency::GraphFrequency>(),
    AnyTool::of::<run_demo::RunDemo>(),
    AnyTool::of::<get_data_quality::GetDataQuality>(),
    AnyTool::of::<run_sql::RunSql>(),
    AnyTool::of::<query_fleet::QueryFleet>(),
    AnyTool::of::<get_cost::GetCost>(),
    AnyTool::of::<find_outlier_nodes::FindOutlierNodes>(),
    AnyTool::of::<event_history::EventHistory>(),
];

/// A tool of MCP.
trait Tool: 'static {
    /// Its name.
    const NAME: &'static str;
    /// Its description, for the assistant.
    const DESCRIPTION: &'static str;
    /// True if it puts a load on the host, for a while and without a trace.
    const IS_DEMONSTRATION: bool = false;
    /// Its arguments.
    type Arguments: DeserializeOwned + JsonSchema + Any + Send;

    /// Returns true if it can answer here.
    fn is_listed(_: &Shared) -> bool {
        true
    }

    /// Refuses arguments that are of their types, and wrong.
    fn check(_: &Self::Arguments) -> Result<(), String> {
        Ok(())
    }

    /// The answer.
    fn answer(
        server: &Shared,
        asked: Self::Arguments,
    ) -> impl Future<Output = Result<Value, ToolError>> + Send;
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<Value, Problem>> + Send + 'a>>;

/// A tool, whatever its arguments are.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnyTool {
    pub(super) name: &'static str,
    pub(super) is_demonstration: bool,
    pub(super) is_listed: fn(&Shared) -> bool,
    pub(super) described: fn() -> rmcp::model::Tool,
    pub(super) answer: for<'a> fn(&'a Shared, Value) -> Answering<'a>,
}

impl AnyTool {
    const fn of<T: Tool>() -> Self {
        Self {
            name: T::NAME,
            is_demonstration: T::IS_DEMONSTRATION,
            is_listed: T::is_listed,
            described: described::<T>,
            answer: answer::<T>,
        }
    }

    /// The tool of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|tool| tool.name == name)
    }
}

fn described<T: Tool>() -> rmcp::model::Tool {
    let tool = rmcp::model::Tool::new(T::NAME, T::DESCRIPTION, schema_for_type::<T::Arguments>());
    let annotations = ToolAnnotations::new().open_world(false).destructive(false);
    let reads = !T::IS_DEMONSTRATION;
    tool.with_annotations(annotations.read_only(reads).idempotent(reads))
}

fn answer<T: Tool>(server: &Shared, arguments: Value) -> Answering<'_> {
    Box::pin(async move {
        let asked: T::Arguments = arguments::parse(arguments)?;
        T::check(&asked).map_err(|text| ErrorData::invalid_params(text, None))?;
        Ok(T::answer(server, asked).await?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_refuses_fields_that_it_does_not_know_and_only_the_demo_does_something() {
        for own in ALL {
            let tool = (own.described)();
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            let reads = tool.annotations.and_then(|hints| hints.read_only_hint);
            assert_eq!(reads, Some(tool.name != "run_demo"), "{}", tool.name);
            assert_eq!(AnyTool::named(&tool.name).map(|own| own.name), Some(&*tool.name));
        }
    }
}
