//! Which series exist: the processes that are tracked, for how long, how many individually, and what is merged into one
//! series.

pub mod cardinality_limit;
pub mod grouping;
pub mod groups;
pub(crate) mod life_cycle;
pub mod merge;
pub mod op_limit;
pub mod process_filter;
pub mod process_selection;
pub mod retention;
pub mod settings;
pub mod workers;
