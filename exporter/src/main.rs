//! The `gpucause` command.

use anyhow::Context as _;
use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use gpucause::cli::{Cli, Command};
use gpucause::commands::check::{CheckArgs, Report};
use gpucause::commands::mcp::McpError;
use gpucause::commands::{demo, explain, export, flight, mcp, merge, query, record, replay, top};
use gpucause::config::source::ConfigSource;
use gpucause::daemon::Daemon;
use gpucause::failure::UsageError;
use gpucause::flags::{ExporterArgs, WebArgs};
use gpucause::flight_recorder::FlightRecorder;
use gpucause::flights;
use gpucause::nodes::NodesError;
use gpucause::other_exporters::warn_of_other_exporters;
use gpucause::otlp::SettingsError;
use gpucause::peers::PeersError;
use gpucause::serve::{self, Reloads};
use gpucause::service_manager::{SocketError, sockets};
use gpucause::{failure, file_limits, logging, manual, privileges};
use gpucause_http::client::{LoginError, TrustError};
use gpucause_http::server::{BindError, Limits};
use gpucause_input::complaint::ConfigError;
use gpucause_input::password::without_password;
use gpucause_probes::Options;
use gpucause_probes::allocator::limit_retained_memory;
use gpucause_probes::recorder::RingSize;
use std::borrow::Cow;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Something failed while running.
const RUN_TIME: u8 = 1;
/// The command line is wrong; `EX_USAGE` of sysexits.
const USAGE: u8 = 64;
/// The configuration is wrong; `EX_CONFIG` of sysexits.
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let error = without_passwords(with_tip(error));
            // Ignored: standard output is gone.
            let _ = error.print();
            return if error.use_stderr() { refused(&error) } else { ExitCode::SUCCESS };
        }
    };
    limit_retained_memory();
    // Before anything is opened, and before there is another thread.
    file_limits::lift();
    let daemon = cli.command.is_daemon();
    let result = match cli.command {
        Command::Exporter(args) => {
            if args.config.check {
                return check_config(&args.config_source());
            }
            logging::init(args.log);
            exporter(&args)
        }
        Command::Check(args) => return check(&args),
        Command::Explain(args) => {
            logging::init_messages();
            return match explain::run(&args) {
                Ok(status) => ExitCode::from(status),
                Err(error) => failed(&error, daemon),
            };
        }
        Command::Record(args) => {
            logging::init_recorder(args.log);
            record::run(&args)
        }
        Command::Replay(args) => {
            logging::init(args.log);
            replay::run(&args)
        }
        Command::View(args) => {
            logging::init_messages();
            replay::view(&args)
        }
        Command::Merge(args) => {
            logging::init_messages();
            merge::run(&args)
        }
        Command::Flight(args) => {
            logging::init_messages();
            flight::run(&args)
        }
        Command::Query(args) => {
            logging::init_messages();
            query::run(&args)
        }
        Command::Export(args) => {
            logging::init_messages();
            export::run(&args)
        }
        Command::Mcp(args) => {
            logging::init(args.log);
            mcp::run(&args)
        }
        Command::Completions { shell } => printed(&manual::completions(shell)),
        Command::Man { dir } => manual_pages(dir.as_deref()),
        Command::Demo(args) => {
            let result = demo::run(&args);
            // A live view keeps the log off the screen.
            logging::init(args.log);
            result
        }
        Command::Top(args) => {
            if !args.view_options().is_live() {
                logging::init_messages();
            }
            let result = top::run(&args);
            logging::init_messages();
            result
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, daemon),
    }
}

/// An argument that is a file is often a trace, which has a flag; of `view` it is the argument.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let words: Vec<_> = std::env::args().skip(1).collect();
    let is = |command: &str| words.first().is_some_and(|own| own == command);
    let file = words.iter().skip(1).find(|own| std::path::Path::new(own).is_file());
    let tip = match file {
        _ if error.kind() != ErrorKind::UnknownArgument => return error,
        _ if is("view") && argument == "--db" => {
            "view has no flag for the trace file: gpucause view FILE".to_owned()
        }
        Some(file) if argument == file || (is("query") && !words.contains(&"--db".to_owned())) => {
            format!("a trace file is given with --db {file}")
        }
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Removes passwords from an error: it may quote an address with one from the command line, and the message may be logged.
fn without_passwords(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand, ContextKind::InvalidValue]
    {
        if let Some(ContextValue::String(quoted)) = error.get(kind) {
            let whole = (kind == ContextKind::InvalidValue).then(|| list_with(quoted)).flatten();
            let quoted = whole.as_ref().unwrap_or(quoted);
            let shown = without_password(quoted).into_owned();
            error.insert(kind, ContextValue::String(shown));
        }
    }
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested)
        && tips.iter().any(|tip| has_password(&tip.to_string()))
    {
        error.remove(ContextKind::Suggested);
    }
    error
}

fn has_password(text: &str) -> bool {
    matches!(without_password(text), Cow::Owned(_))
}

/// The list with this item in which there is a password, which has the comma that separates items of the list.
fn list_with(item: &str) -> Option<String> {
    let arguments = std::env::args_os().map(|own| own.to_string_lossy().into_owned());
    let mut lists = arguments.map(|own| match own.split_once('=') {
        Some((flag, list)) if flag.starts_with("--") => list.to_owned(),
        _ => own,
    });
    lists.find(|list| has_password(list) && list.split(',').any(|own| own == item))
}

/// Returns the exit code for an invalid command line. Flags of the page of metrics stand for keys of the configuration: a wrong value is an
/// error in the configuration.
fn refused(error: &clap::Error) -> ExitCode {
    let argument = error.get(ContextKind::InvalidArg);
    let is_configuration = error.kind() == ErrorKind::ValueValidation
        && matches!(argument, Some(ContextValue::String(own)) if own.starts_with("--metrics."));
    ExitCode::from(if is_configuration { CONFIG } else { USAGE })
}

/// The only place where the error of a command is reported.
fn failed(error: &anyhow::Error, daemon: bool) -> ExitCode {
    if !daemon && failure::is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if daemon {
        tracing::error!("{}", failure::line(error));
    } else {
        failure::print(error);
    }
    exit_code(error)
}

fn printed(text: &[u8]) -> anyhow::Result<()> {
    std::io::stdout().write_all(text).context("cannot write to standard output")
}

fn manual_pages(dir: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = dir else { return printed(&manual::page()?) };
    let written = manual::write_pages(dir);
    written.with_context(|| format!("cannot write manual pages to {}", dir.display()))
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<UsageError>() {
        return ExitCode::from(USAGE);
    }
    let configuration = error.downcast_ref::<BindError>().is_some_and(BindError::is_configuration)
        || error.is::<SocketError>()
        || error.is::<Arc<ConfigError>>()
        || error.is::<ConfigError>()
        || error.is::<TrustError>()
        || error.is::<LoginError>()
        || error.is::<SettingsError>()
        || error.is::<PeersError>()
        || error.is::<NodesError>()
        || error.is::<McpError>();
    ExitCode::from(if configuration { CONFIG } else { RUN_TIME })
}

fn exporter(args: &ExporterArgs) -> anyhow::Result<()> {
    let passed = sockets()?;
    let source = args.config_source();
    let config = source.load()?;
    let flights = args.flight.settings();
    if let Some(settings) = &flights {
        flights::check(&settings.dir)?;
    }
    config.otlp.check()?;
    config.peers.check()?;
    // Read before privileges are dropped.
    let upstream = args.gpus.upstream().context("--dcgm.url")?;
    let limits = Limits::default();
    let limits =
        Limits { permits: config.limits.scrapes, connections: config.limits.connections, ..limits };
    // Bound first: a port in use must be reported before anything is loaded into the kernel.
    let server = args.web.listen(passed, limits)?;
    privileges::require()?;
    warn_of_other_exporters();
    let server = WebArgs::with_token_file(server);
    // Confined before there is another thread.
    let recorder = flights.as_ref().map(|_| RingSize::default());
    let options = Options { loaded: Some(privileges::confine), recorder, ..args.probe.options() };
    let daemon = Daemon::start(options, Arc::new(config))?;
    let daemon = Arc::new(daemon.with_gpus(args.gpus.sources(upstream)));
    // After privileges are dropped: what cannot be written then is known at the start.
    daemon.log_chains(args.otlp.spool_dir());
    let reloads = Reloads { source, over_http: args.lifecycle };
    let flights = flights.and_then(|settings| match FlightRecorder::start(settings, &daemon) {
        Ok(recorder) => Some(recorder),
        Err(error) => {
            tracing::error!(%error, "cannot start the flight recorder");
            None
        }
    });
    serve::until_signal(server, &daemon, args.web.telemetry_path.clone(), Some(reloads), flights)
}

/// Prints the errors in the configuration and in the files that it names, or `ok`.
fn check_config(source: &ConfigSource) -> ExitCode {
    let (text, code) = match source.load().map(|config| config.file_errors()) {
        Ok(errors) if errors.is_empty() => ("ok\n".to_owned(), ExitCode::SUCCESS),
        Ok(errors) => (errors.join("\n") + "\n", ExitCode::from(CONFIG)),
        Err(error) => (format!("{error}\n"), ExitCode::from(CONFIG)),
    };
    // Ignored: the exit code has the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

fn check(args: &CheckArgs) -> ExitCode {
    logging::init_messages();
    let report = Report::of(args);
    let text = if args.json {
        report.json().map(|json| format!("{json}\n")).unwrap_or_default()
    } else {
        report.text()
    };
    // Ignored: the exit code has the result.
    let _ = anstream::stdout().write_all(text.as_bytes());
    match (report.has_failed(), report.misconfigured) {
        (false, _) => ExitCode::SUCCESS,
        (true, true) => ExitCode::from(CONFIG),
        (true, false) => ExitCode::from(RUN_TIME),
    }
}
