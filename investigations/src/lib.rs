//! The hour after the alert: what a node found, told so that somebody can act on it.

pub mod explain;
pub mod fleet;
pub mod http;
pub mod mcp;
pub mod node;
pub mod recording;

mod moment;
