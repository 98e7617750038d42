//! Texts that follow the flags in the help of commands.

/// Examples of `gpucause record`.
pub(super) const RECORD: &str = "\
Needs root, and ends on Ctrl-C. Record 15 s or more: causes are found once a process has warmed up.

Examples:
  sudo gpucause record --db trace.db --duration 60s
      All processes of this host that use CUDA
  sudo gpucause record --db trace.db --pid 4242
      Single events of this process only, to which reports of the file are then limited
  gpucause explain --db trace.db
      The report of the file; gpucause view trace.db shows it in a browser

Exit status:
  0   The file is complete
  1   Nothing was recorded, or the file could not be completed
  64  Invalid command line";

/// Tables and examples of `gpucause query`.
pub(super) const QUERY: &str = "\
Tables of a file of gpucause record:
  events           One row per event, with names: query this first (start_ns, duration_ns, pid, comm, kind, op, reason, by_comm)
  chains           Causal chains (cause, effect, severity, victim_comm, culprit_comm, lost_seconds, sentence, fix)
  call_totals      All calls by process and op, also those without an event; wait_totals and dispatcher_time: all waits and states
  processes        Processes of all nodes; nodes, sessions, threads, stacks and more are in investigations/trace-file.md

Tables of nodes: chains, processes, process_gpus, samples (the page of metrics), nodes, failures

Examples:
  gpucause query --db trace.db \"SELECT cause, sentence FROM chains ORDER BY lost_seconds DESC\"
  gpucause query --db trace.db \"SELECT by_comm, sum(duration_ns) / 1e9 AS seconds FROM events WHERE kind = 'off_cpu' GROUP BY by_comm ORDER BY seconds DESC\"
  gpucause query --db trace.db \"SELECT name, sql FROM sqlite_schema\"
      All tables and their columns; also of a file of Ingero, which has others
  sudo gpucause query --nodes localhost:9400 \"SELECT comm, rank FROM processes\"

Exit status:
  0   The rows were printed
  1   Invalid statement, a limit was exceeded, or a file or node could not be read
  64  Invalid command line
  78  Invalid list of nodes, certificate or password";

/// Signals, files and exit status of the exporter.
pub(super) const SIGNALS_AND_STATUS: &str = "\
Signals:
  SIGTERM, SIGINT  Detach all probes and exit
  SIGHUP           Reload the configuration file
  SIGUSR1          Detach all probes at once; the next SIGUSR1 attaches them again
  SIGUSR2          Write the flight recorder's events to a trace file

Files:
  /run/gpucause/PORT.token
      Created at start and removed at the end, in the directory RUNTIME_DIRECTORY where that is set: the token with which
      programs of this host read causal chains (Authorization: Bearer TOKEN). explain, query, export, flight, check and mcp read it.

Exit status:
  0   Ended by a signal, or --config.check found the configuration valid
  1   Runtime error
  64  Invalid command line
  78  Invalid configuration, or invalid value of a --metrics flag";
