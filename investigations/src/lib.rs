//! The hour after the alert: what a node found, told so that somebody can act on it.

pub mod explain;
pub mod export;
pub mod http;
pub mod node;
pub mod recording;

mod moment;
