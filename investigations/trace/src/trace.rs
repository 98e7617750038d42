//! gpucause's own trace file: one SQLite database that [`Writer`] writes and [`Trace`] reads.
//!
//! The page `investigations/trace-file.md` describes each table and column.

mod dictionaries;
mod dictionary;
mod event_row;
mod frames;
mod lists;
pub(crate) mod output_file;
mod reader;
mod schema;
mod snapshot_codec;
mod store;
mod store_end;
mod totals;
mod write_error;
mod writer;

pub use event_row::{NewCall, NewEvent, NewKind, NewOffCpu, NewTask};
pub use output_file::check;
pub use reader::Trace;
pub use store::{ProcessRef, Store};
pub use write_error::WriteError;
pub use writer::{CLOCK_ERROR, Finished, Start, Writer};

pub use event_row::Columns;
pub use frames::fnv1a;
pub(crate) use lists::PRUNED;
pub use reader::recognise;
pub(crate) use store::{NodeRef, SessionRef};
pub use totals::{calls_of, waits_of};
