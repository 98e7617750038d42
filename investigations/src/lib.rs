//! The hour after the alert: what a node found, told so that somebody can act on it.

pub mod explain;
pub mod http;
pub mod ingero;
pub mod node;
pub mod query;
pub mod recording;

mod database;
mod moment;
