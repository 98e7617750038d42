-- Described for users in investigations/trace-file.md; a test compares the two.

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    clock_ahead_ns INTEGER
);

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL REFERENCES nodes (id),
    started_ns INTEGER NOT NULL,
    ended_ns INTEGER,
    recorder TEXT NOT NULL,
    lost_events INTEGER,
    pruned_events INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE session_details (
    session INTEGER NOT NULL REFERENCES sessions (id),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;

CREATE TABLE processes (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL REFERENCES nodes (id),
    session INTEGER REFERENCES sessions (id),
    proc_id INTEGER,
    pid INTEGER NOT NULL,
    comm TEXT NOT NULL,
    rank INTEGER
);

CREATE TABLE process_details (
    process INTEGER NOT NULL REFERENCES processes (id),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (process, position)
) WITHOUT ROWID;

CREATE TABLE threads (
    id INTEGER PRIMARY KEY,
    process INTEGER NOT NULL REFERENCES processes (id),
    tid INTEGER NOT NULL,
    name TEXT
);

CREATE TABLE kernels (
    process INTEGER NOT NULL REFERENCES processes (id),
    handle INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (process, handle)
) WITHOUT ROWID;

CREATE TABLE names (
    id INTEGER PRIMARY KEY,
    text TEXT NOT NULL
);

CREATE TABLE ops (
    id INTEGER PRIMARY KEY,
    api TEXT NOT NULL,
    name TEXT NOT NULL
);

CREATE TABLE parties (
    id INTEGER PRIMARY KEY,
    pid INTEGER,
    comm TEXT NOT NULL
);

CREATE TABLE stacks (
    id INTEGER PRIMARY KEY,
    hash INTEGER NOT NULL,
    frames TEXT NOT NULL
);

CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    start_ns INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    thread INTEGER NOT NULL REFERENCES threads (id),
    kind INTEGER NOT NULL REFERENCES names (id),
    op INTEGER REFERENCES ops (id),
    outermost INTEGER,
    cold INTEGER,
    code INTEGER,
    off_cpu_ns INTEGER,
    bytes INTEGER,
    direction INTEGER REFERENCES names (id),
    object INTEGER REFERENCES names (id),
    reason INTEGER REFERENCES names (id),
    party INTEGER REFERENCES parties (id),
    stack INTEGER REFERENCES stacks (id)
);

CREATE TABLE chains (
    node INTEGER NOT NULL REFERENCES nodes (id),
    session INTEGER REFERENCES sessions (id),
    id TEXT NOT NULL,
    cause TEXT NOT NULL,
    effect TEXT NOT NULL,
    severity TEXT NOT NULL,
    victim_pid INTEGER NOT NULL,
    victim_tid INTEGER NOT NULL,
    victim_comm TEXT NOT NULL,
    culprit_pid INTEGER,
    culprit_comm TEXT,
    explained REAL NOT NULL,
    lost_seconds REAL NOT NULL,
    first_seen REAL NOT NULL,
    last_seen REAL NOT NULL,
    sentence TEXT NOT NULL,
    fix TEXT NOT NULL,
    json TEXT NOT NULL,
    taken_seconds REAL,
    PRIMARY KEY (session, id)
);

CREATE TABLE looks (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (id),
    unix_seconds REAL NOT NULL,
    accounts BLOB NOT NULL
);

CREATE TABLE call_totals (
    process INTEGER NOT NULL REFERENCES processes (id),
    op INTEGER NOT NULL REFERENCES ops (id),
    cold INTEGER,
    count INTEGER NOT NULL,
    sum_ns INTEGER NOT NULL,
    p50_ns INTEGER,
    p99_ns INTEGER,
    max_ns INTEGER NOT NULL,
    stored INTEGER,
    stalled INTEGER,
    off_cpu_ns INTEGER
);
CREATE INDEX call_totals_by_process ON call_totals (process);

CREATE TABLE wait_totals (
    process INTEGER NOT NULL REFERENCES processes (id),
    tid INTEGER,
    role TEXT,
    reason TEXT,
    count INTEGER NOT NULL,
    sum_ns INTEGER NOT NULL,
    p50_ns INTEGER,
    p99_ns INTEGER,
    max_ns INTEGER NOT NULL,
    stored INTEGER
);
CREATE INDEX wait_totals_by_process ON wait_totals (process);

CREATE TABLE waited_for (
    process INTEGER NOT NULL REFERENCES processes (id),
    tid INTEGER,
    phase TEXT NOT NULL,
    reason TEXT NOT NULL,
    comm TEXT NOT NULL,
    pid INTEGER,
    relation TEXT NOT NULL,
    total_ns INTEGER NOT NULL,
    held_ns INTEGER NOT NULL
);
CREATE INDEX waited_for_by_process ON waited_for (process);

CREATE TABLE dispatcher_time (
    process INTEGER NOT NULL REFERENCES processes (id),
    phase TEXT NOT NULL,
    state TEXT NOT NULL,
    time_ns INTEGER NOT NULL
);
CREATE INDEX dispatcher_time_by_process ON dispatcher_time (process);

CREATE VIEW events AS
SELECT
    nodes.name || ':' || (event.id & 1099511627775) AS id,
    nodes.name AS node,
    processes.pid AS pid,
    threads.tid AS tid,
    processes.comm AS comm,
    threads.name AS thread_name,
    kinds.text AS kind,
    ops.api AS api,
    ops.name AS op,
    event.start_ns AS start_ns,
    event.duration_ns AS duration_ns,
    event.start_ns + event.duration_ns AS end_ns,
    event.outermost AS outermost,
    event.cold AS cold,
    event.code AS code,
    event.off_cpu_ns AS off_cpu_ns,
    event.bytes AS bytes,
    directions.text AS direction,
    objects.text AS object,
    reasons.text AS reason,
    parties.comm AS by_comm,
    parties.pid AS by_pid,
    event.stack AS stack,
    event.id AS event_id,
    threads.process AS process
FROM event
JOIN threads ON threads.id = event.thread
JOIN processes ON processes.id = threads.process
JOIN nodes ON nodes.id = event.id >> 40
JOIN names AS kinds ON kinds.id = event.kind
LEFT JOIN ops ON ops.id = event.op
LEFT JOIN names AS directions ON directions.id = event.direction
LEFT JOIN names AS objects ON objects.id = event.object
LEFT JOIN names AS reasons ON reasons.id = event.reason
LEFT JOIN parties ON parties.id = event.party;
