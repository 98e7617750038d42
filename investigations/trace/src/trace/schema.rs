//! The schema of trace files and how they are identified.

use rusqlite::Connection;

/// Marks a trace in the header of the file: `gpcz`.
pub(super) const APPLICATION_ID: i32 = 0x6770_637a;
/// The written version, `user_version` in the header. Increases when older readers would misread a file, not when tables or
/// columns are added that they may ignore.
pub(super) const VERSION: i64 = 1;

/// Tables that are read. A view of that name in an untrusted file would run its author's SQL.
pub(super) const TABLES: &[&str] = &[
    "nodes",
    "sessions",
    "session_details",
    "processes",
    "process_details",
    "threads",
    "kernels",
    "names",
    "ops",
    "parties",
    "stacks",
    "event",
    "chains",
    "looks",
    "call_totals",
    "wait_totals",
    "waited_for",
    "dispatcher_time",
];

/// Low bits of an event's key: the sequence. The bits above are the node.
pub(super) const SEQUENCE_BITS: u32 = 40;
/// The largest sequence of a node.
pub(super) const MAX_SEQUENCE: i64 = (1 << SEQUENCE_BITS) - 1;

/// Creates the tables of an empty file and leaves it in WAL mode.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // The writer inserts referenced rows first; checking each again would double the cost.
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(include_str!("schema.sql"))?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.execute_batch("COMMIT")
}

/// Created after the last event, which is cheaper than maintaining it.
pub(super) const INDEX_EVENTS: &str = "CREATE INDEX event_by_start ON event (start_ns)";
/// Size of an entry of that index, in bytes.
pub(super) const INDEX_BYTES: u64 = 18;
