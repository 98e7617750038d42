//! What the help of the exporter says behind its flags.

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
      programs of this host read causal chains (Authorization: Bearer TOKEN). explain, query, export, check and mcp read it.

Exit status:
  0   Ended by a signal, or --config.check found the configuration valid
  1   Runtime error
  64  Invalid command line
  78  Invalid configuration, or invalid value of a --metrics flag";
