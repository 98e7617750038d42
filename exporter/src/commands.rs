//! The commands, a module each: flags, and what the command does.

pub mod check;
pub mod demo;
pub mod explain;
pub mod export;
pub mod flight;
pub mod mcp;
pub mod merge;
pub mod query;
pub mod record;
pub mod replay;
pub mod top;
