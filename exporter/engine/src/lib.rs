//! Causal chains: culprit, mechanism, victim thread, effect. Two successive snapshots in, chains out; no clock, no file, no
//! kernel is asked.
//!
//! A cause is named only for the share of an effect that was measured on the victim's own thread: off-CPU time that lies
//! inside the slow calls, or between launches, by the one reason that the kernel accounts it to. An effect is divided among its
//! causes: each that costs at least severity `low` is named, with its own share and seconds, and time that several claim is
//! charged once. What no rule explains is reported as unexplained.

pub mod chain;
mod effect;
pub mod observation;
pub mod settings;
pub mod utc;

mod attribution;
mod case;
mod charged;
mod commands;
mod delta;
mod divide;
mod engine;
mod finding;
mod history;
mod ledger;
mod long_calls;
mod losses;
mod past;
mod rules;
mod tell;

pub use engine::{ChainCount, Engine, FOLDED, Moment, Stall};
pub use rules::{Declaration, Window, declarations, markdown};
pub use tell::tell;
