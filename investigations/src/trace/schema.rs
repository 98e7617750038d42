//! Which files are traces, and of which version.

use rusqlite::Connection;

/// Marks a trace in the header of the file: `gpcz`.
pub(super) const APPLICATION_ID: i32 = 0x6770_637a;
/// The version that is written; kept in the header as `user_version`. Counts up when a reader of the version before would be
/// wrong about a file, not when tables or columns are added that it need not know.
pub(super) const VERSION: i64 = 1;

/// Tables that are read. In a foreign file another thing of that name, such as a view, would run what its author wrote.
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

/// Bits of an event's key that count on its node; those above are the node.
pub(super) const SEQUENCE_BITS: u32 = 40;
/// The largest sequence of a node.
pub(super) const MAX_SEQUENCE: i64 = (1 << SEQUENCE_BITS) - 1;

/// Lays out an empty file, and leaves it in WAL mode.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // All that is referred to is written by the same hand just before; looking each up again would double the cost.
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(include_str!("schema.sql"))?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.execute_batch("COMMIT")
}

/// Lets events be found by time. Made when all are written: kept up meanwhile it would cost more.
pub(super) const INDEX_EVENTS: &str = "CREATE INDEX event_by_start ON event (start_ns)";
/// What an entry of that index takes, in bytes.
pub(super) const INDEX_BYTES: u64 = 18;
