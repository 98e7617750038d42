//! Causal chains: culprit, mechanism, victim thread, effect. Computed from successive snapshots alone: no clock, file or kernel
//! access.
//!
//! A cause is reported only for the share of an effect that was measured on the victim's own thread: off-CPU time inside the slow
//! calls or between launches, by the one reason that the kernel accounts it to. An effect is divided among its causes: each that
//! costs at least severity `low` is reported with its own share and seconds, and time that several causes claim is charged once.
//! What no rule explains is reported as unexplained.

pub mod activity;
pub mod chain;
pub mod cpu_list;
mod effect;
pub mod observation;
pub mod peers;
pub mod quantity;
pub mod settings;
pub mod utc;

mod attribution;
mod baseline;
mod chain_store;
mod chain_totals;
mod charged;
mod claim;
mod commands;
mod computing;
mod context;
mod delta;
mod detection;
mod divide;
mod engine;
mod evidence;
mod findings;
mod graph_builds;
mod history;
mod input;
mod long_calls;
mod losses;
mod phases;
mod preparers;
mod recent_losses;
mod rules;
mod shell;
mod template;
mod times;
mod worker_time;

pub use engine::{ChainCount, Engine, OTHER_PROCESS, Stall};
pub use findings::Findings;
pub use input::EngineInput;
pub use rules::{Rule, markdown, rules};
pub use template::render as render_template;
