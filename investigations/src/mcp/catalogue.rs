//! The tools: names, descriptions, arguments and hints.

use std::any::Any;

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::{Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;

use super::arguments::{Costs, Demo, History, Nothing, Outliers, Rows, Sql, StackRows};

/// Declares the tools.
macro_rules! named {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// A tool.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Name { $($variant),+ }

        impl Name {
            const ALL: &[Self] = &[$(Self::$variant),+];

            const fn text(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

named! {
    GetCheck = "get_check",
    GetTraceStats = "get_trace_stats",
    GetCausalChains = "get_causal_chains",
    GetStacks = "get_stacks",
    GraphLifecycle = "graph_lifecycle",
    GraphFrequency = "graph_frequency",
    RunDemo = "run_demo",
    GetDataQuality = "get_data_quality",
    RunSql = "run_sql",
    QueryFleet = "query_fleet",
    GetCost = "get_cost",
    FindOutlierNodes = "find_outlier_nodes",
    EventHistory = "event_history",
}

impl Name {
    /// By its name.
    pub(super) fn of(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|name| name.text() == text)
    }

    const fn what(self) -> &'static str {
        match self {
            Self::GetCheck => {
                "Whether the exporter can observe the host where this server runs, as `gpucause check` reports: kernel, privileges, eBPF programs, CUDA libraries, and what to do where something is missing; without what depends on flags of the exporter. It loads the programs and detaches them again, which needs root."
            }
            Self::GetTraceStats => {
                "Per process and function: calls, time, p50, p99, longest, time off the CPU; per process and reason: waits. Says where percentiles are of a sample or of buckets. Waits of workers, such as those of data loaders, are in rows (worker): of a file their own, of live nodes those of the process that feeds the GPU."
            }
            Self::GetCausalChains => {
                "Causes of GPU starvation, the worst first: cause, effect, victim, culprit, share of the effect explained, seconds that the cause took, lost seconds, a sentence and a fix. With pid or comm: the chains whose victim it is, and in delays_others those of other processes whose culprit it is. detail adds evidence and path."
            }
            Self::GetStacks => {
                "The stacks under which slow calls cost most time, innermost frame first. Needs a trace file."
            }
            Self::GraphLifecycle => {
                "CUDA graphs per process: captures, instantiations, updates, launches, destructions, with counts and times."
            }
            Self::GraphFrequency => {
                "CUDA graphs per process and second: launches, instantiations, re-captures, and launches per instantiation."
            }
            Self::RunDemo => {
                "Starts a stand-in workload with a real fault on the host where this server runs, observes it, and reports the chains found beside the workload's own account. Off unless the server was started with --allow-demo."
            }
            Self::GetDataQuality => {
                "How complete the data is: what was observed and since when, which probes are attached, what was lost, which percentiles are of a sample, and the cost of observing."
            }
            Self::RunSql => {
                "One read-only SELECT within limits of time and rows: on the trace file (sqlite_schema names the tables), or on what live nodes have now, in the tables nodes, failures, chains, processes, process_gpus and samples (metrics by name, with labels as JSON). Nodes are asked only for the tables that the statement reads; of samples that is the most."
            }
            Self::GetCost => {
                "What lost GPU time and idle GPUs cost over the last hours, the dearest first, by cause, namespace, user, Slurm job or process, as a Prometheus has it; says which, and how old its values are."
            }
            Self::FindOutlierNodes => {
                "Nodes and ranks that stand off their job now: by launches, launch p99 and lost time, compared with the median of the job's ranks by MAD, as a Prometheus has it; says which, how old its values are, and which nodes it cannot scrape."
            }
            Self::EventHistory => {
                "Causal chains of the last hours or of a time in the past, of all nodes, one node or one job, the newest first, as a ClickHouse stores them; says which, and how old its newest record is."
            }
            Self::QueryFleet => {
                "The chains of all nodes of this server, the worst first, with the nodes that did not answer and why, and clocks that differ."
            }
        }
    }

    fn tool(self) -> Tool {
        match self {
            Self::GetCheck | Self::GetDataQuality => self.taking::<Nothing>(),
            Self::GetTraceStats
            | Self::GetCausalChains
            | Self::GraphLifecycle
            | Self::GraphFrequency
            | Self::QueryFleet => self.taking::<Rows>(),
            Self::GetStacks => self.taking::<StackRows>(),
            Self::RunSql => self.taking::<Sql>(),
            Self::RunDemo => self.taking::<Demo>(),
            Self::GetCost => self.taking::<Costs>(),
            Self::FindOutlierNodes => self.taking::<Outliers>(),
            Self::EventHistory => self.taking::<History>(),
        }
    }

    fn taking<T: JsonSchema + Any>(self) -> Tool {
        let tool = Tool::new(self.text(), self.what(), schema_for_type::<T>());
        let annotations = ToolAnnotations::new().open_world(false);
        tool.with_annotations(match self {
            // It puts a load on the host for a while, and nothing stays.
            Self::RunDemo => annotations.read_only(false).destructive(false).idempotent(false),
            _ => annotations.read_only(true).destructive(false).idempotent(true),
        })
    }
}

/// Returns the tools that are listed.
pub(super) fn tools(is_listed: impl Fn(Name) -> bool) -> Vec<Tool> {
    Name::ALL.iter().filter(|name| is_listed(**name)).map(|name| name.tool()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_refuses_fields_that_it_does_not_know_and_only_the_demo_does_something() {
        for tool in tools(|_| true) {
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            let reads = tool.annotations.and_then(|hints| hints.read_only_hint);
            assert_eq!(reads, Some(tool.name != "run_demo"), "{}", tool.name);
            assert_eq!(Name::of(&tool.name).map(Name::text), Some(&*tool.name));
        }
    }
}
