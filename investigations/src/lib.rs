//! Tools for the investigation after an alert: reports, queries, exports and answers for assistants.

pub mod accounts;
pub mod any_format;
pub mod chain_filter;
pub mod clickhouse;
pub mod collectives;
pub mod explain;
pub mod export;
pub mod fleet;
pub mod html;
pub mod json;
pub mod mcp;
pub mod node;
pub mod observation;
pub mod prometheus;
pub mod query;
pub mod untrusted_text;

mod amounts;
mod stack_costs;
