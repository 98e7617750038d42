//! The `gpucause` command.

use clap::Parser as _;
use gpucause::check::Report;
use gpucause::cli::{CheckArgs, Cli, Command, ExporterArgs};
use gpucause::daemon::Daemon;
use gpucause::logging::{Format, Level, LogArgs};
use gpucause::server::{BindError, Limits, Server};
use gpucause::{demo, explain, logging, serve, top};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

/// Something failed while running.
const RUN_TIME: u8 = 1;
/// The command line is wrong; `EX_USAGE` of sysexits.
const USAGE: u8 = 64;
/// The configuration is wrong; `EX_CONFIG` of sysexits.
const CONFIG: u8 = 78;

/// What somebody who looks at a view wants to know.
const TOP_LOG: LogArgs = LogArgs { level: Level::Warn, format: Format::Logfmt };

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // With standard output gone there is nobody to tell.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let result = match cli.command {
        Command::Exporter(args) => {
            logging::init(args.log);
            exporter(&args)
        }
        Command::Check(args) => return check(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Demo(args) => {
            let result = demo::run(&args);
            // While it shows a live view it keeps the log off the screen.
            logging::init(args.log);
            result
        }
        Command::Top(args) => {
            if !args.show().is_live() {
                logging::init(TOP_LOG);
            }
            let result = top::run(&args);
            logging::init(TOP_LOG);
            result
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    let configuration = error.downcast_ref::<BindError>().is_some_and(BindError::is_configuration);
    ExitCode::from(if configuration { CONFIG } else { RUN_TIME })
}

fn exporter(args: &ExporterArgs) -> anyhow::Result<()> {
    // Bound first: a port in use must be told before anything is loaded into the kernel.
    let server = Server::bind(&args.web.listen_addresses, Limits::default())?;
    let daemon = Arc::new(Daemon::start(args.probe.options(), args.retention_policy())?);
    serve::until_signal(server, &daemon, args.web.telemetry_path.clone())
}

fn check(args: &CheckArgs) -> ExitCode {
    let report = Report::of_this_host(&args.listen_addresses);
    // With standard output gone there is nobody to tell; the exit code tells all the same.
    let _ = write!(std::io::stdout(), "{report}");
    if report.can_run() { ExitCode::SUCCESS } else { ExitCode::from(RUN_TIME) }
}
