//! Flags that several commands have.

mod flight;

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpucause_abi::Nanos;
use gpucause_http::client::TrustError;
use gpucause_http::server::{Limits, ListenAddress, Server};
use gpucause_http::token_file::TokenFile;
use gpucause_http::web_config::LiveWebConfig;
use gpucause_input::duration;
use gpucause_observe::dcgm::{PageUrl, Upstream};
use gpucause_observe::gpus::Gpus;
use gpucause_observe::nvml::Nvml;
use gpucause_page::exposition::classic_buckets;
use gpucause_page::metric::Level;
use gpucause_probes::Options;
use gpucause_probes::feature::AttachMode;
use gpucause_probes::nvml::LIBRARY;

use crate::budget::Budget;
use crate::config::source::{ConfigSource, Overrides};
use crate::logging;
use crate::otlp::OtlpArgs;
use crate::peers::PeersArgs;
use crate::routes::TelemetryPath;

pub use flight::FlightArgs;

/// Flags of `gpucause exporter`.
#[derive(Debug, Clone, Args)]
pub struct ExporterArgs {
    /// Flags of the HTTP server.
    #[command(flatten)]
    pub web: WebArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
    /// Flags of the probes.
    #[command(flatten)]
    pub probe: ProbeArgs,
    /// Flags of the metrics of the GPUs themselves.
    #[command(flatten)]
    pub gpus: GpuArgs,
    /// Flags of the flight recorder.
    #[command(flatten)]
    pub flight: FlightArgs,
    /// Flags of chains as log records.
    #[command(flatten)]
    pub otlp: OtlpArgs,
    /// Flags of the Prometheus that compares ranks on other hosts.
    #[command(flatten)]
    pub peers: PeersArgs,
    /// Flags of the configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// How long the series of an exited process stay, such as 90s, 5m or 1h; wins over the configuration file [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub retention: Option<Duration>,
    /// Share of a thread's time that probes on its calls may take, such as 2% or 0.02, or off for no limit; calls of a process that is over it are sampled; wins over the configuration file [default: 2%]
    #[arg(long = "probe.budget", value_name = "SHARE")]
    pub budget: Option<Budget>,
    /// Share of a thread's time that probes may take while they only count its calls, or off for no limit; a process that is over it is partly observed; wins over the configuration file [default: 3%]
    #[arg(long = "probe.counting-limit", value_name = "SHARE")]
    pub counting_limit: Option<Budget>,
    /// On arm64, probe also functions in which the kernel must single-step an instruction, as in few of CUDA: programs on real processors can crash
    #[arg(long = "probe.risky-single-steps")]
    pub risky_single_steps: bool,
    /// Flags of the page of metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Reload the configuration on POST to /-/reload
    #[arg(long = "web.enable-lifecycle")]
    pub lifecycle: bool,
}

/// Flags of the page of metrics.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct MetricsArgs {
    /// How much the page has of each process: fleet, standard or full; a scrape may ask for another with ?level=; wins over the configuration file [default: standard]
    #[arg(long = "metrics.level", id = "metrics.level", value_name = "LEVEL")]
    pub level: Option<Level>,
    /// Who gets classic histogram buckets: auto (clients that do not accept native histograms) or always, where the level has them; wins over the configuration file [default: auto]
    #[arg(long = "metrics.classic-buckets", value_name = "WHO")]
    pub classic_buckets: Option<classic_buckets::Policy>,
}

/// Flags of the metrics of the GPUs themselves.
#[derive(Debug, Clone, Args)]
pub struct GpuArgs {
    /// Add the metrics of the dcgm-exporter at this address, such as http://localhost:9401/metrics
    #[arg(long = "dcgm.url", value_name = "URL")]
    pub dcgm_url: Option<PageUrl>,
    /// File of the authorities that dcgm-exporter's certificate may come from, in PEM [default: those that this host trusts]
    #[arg(long = "dcgm.ca-file", value_name = "PATH", requires = "dcgm_url")]
    pub dcgm_ca_file: Option<PathBuf>,
    /// Fetch them this often; they are dropped when they are three times as old
    #[arg(long = "dcgm.interval", value_name = "DURATION", default_value = "10s", value_parser = dcgm_interval)]
    pub dcgm_interval: Duration,
    /// Do not load libnvidia-ml: add no metrics of the GPUs themselves, nor which process uses which
    #[arg(long = "nvml.off")]
    pub nvml_off: bool,
    /// The library that queries the NVIDIA driver
    #[arg(long = "nvml.library", value_name = "PATH", default_value = LIBRARY, conflicts_with = "nvml_off")]
    pub nvml_library: OsString,
}

impl GpuArgs {
    /// The page of dcgm-exporter, if it is configured.
    ///
    /// # Errors
    /// When the file of authorities cannot be used.
    pub fn upstream(&self) -> Result<Option<Arc<Upstream>>, TrustError> {
        let Some(url) = self.dcgm_url.clone() else { return Ok(None) };
        let upstream = Upstream::new(url, self.dcgm_ca_file.as_deref(), self.dcgm_interval)?;
        Ok(Some(Arc::new(upstream)))
    }

    /// The sources of GPU metrics; the driver is queried from now on.
    #[must_use]
    pub fn sources(&self, upstream: Option<Arc<Upstream>>) -> Gpus {
        let nvml = (!self.nvml_off).then(|| Nvml::start(&self.nvml_library));
        Gpus::new(upstream, nvml)
    }
}

/// Between two fetches of dcgm-exporter's page, at least and at most.
const DCGM_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(3600));

fn dcgm_interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    let (least, most) = DCGM_INTERVALS;
    if (least..=most).contains(&interval) {
        return Ok(interval);
    }
    Err(format!("invalid interval {text:?}; expected {least:?} to {most:?}"))
}

/// Flags of the configuration file.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// Configuration file, in YAML; reloaded when it changes and on SIGHUP
    #[arg(long = "config.file", alias = "config", value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Start with the defaults while the configuration file does not exist
    #[arg(long = "config.optional", requires = "file")]
    pub optional: bool,
    /// Check the configuration file and the files of headers, passwords and authorities that it names, and exit: 0 when they can be used, 78 when not
    #[arg(long = "config.check", requires = "file")]
    pub check: bool,
}

impl ExporterArgs {
    /// Where the configuration comes from.
    #[must_use]
    pub fn config_source(&self) -> ConfigSource {
        ConfigSource {
            file: self.config.file.clone(),
            optional: self.config.optional,
            overrides: Overrides {
                retention: self.retention,
                budget: self.budget,
                counting_limit: self.counting_limit,
                risky_single_steps: self.risky_single_steps,
                level: self.metrics.level,
                classic_buckets: self.metrics.classic_buckets,
                otlp: self.otlp.clone(),
                peers: self.peers.clone(),
            },
        }
    }
}

/// Flags of the probes.
#[derive(Debug, Clone, Copy, Args)]
pub struct ProbeArgs {
    /// How to attach to libraries [default: the best that the kernel supports]
    #[arg(long = "probe.mode", value_name = "MODE", value_enum)]
    pub mode: Option<ProbeMode>,
    /// Time launches within other calls too, such as the driver's part of a launch by the runtime; costs a second probe hit a launch
    #[arg(long = "probe.nested-launches")]
    pub nested_launches: bool,
    /// Start on kernels older than 6.1 too, which programs can lock up
    #[arg(long = "probe.allow-untested-kernel")]
    pub allow_untested_kernel: bool,
    /// Nanoseconds that a timed hit and one that is only counted cost, instead of a measurement: for tests
    #[arg(long = "probe.hit-costs", value_name = "TIMED,COUNTED", value_parser = hit_costs, hide = true)]
    pub hit_costs: Option<(Nanos, Nanos)>,
}

fn hit_costs(text: &str) -> Result<(Nanos, Nanos), String> {
    let costs = text.split_once(',').and_then(|(timed, counted)| {
        Some((Nanos(timed.parse().ok()?), Nanos(counted.parse().ok()?)))
    });
    costs.ok_or_else(|| "write two numbers of nanoseconds, such as 1300,800".to_owned())
}

/// How entry and return of a library's functions are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProbeMode {
    /// One uprobe.session link; kernel 6.13 or newer
    Session,
    /// A uprobe.multi and a uretprobe.multi link; kernel 6.6 or newer
    Multi,
    /// Two perf events a function; needs CAP_SYS_ADMIN
    Perf,
}

impl From<ProbeMode> for AttachMode {
    fn from(mode: ProbeMode) -> Self {
        match mode {
            ProbeMode::Session => Self::Session,
            ProbeMode::Multi => Self::Multi,
            ProbeMode::Perf => Self::Perf,
        }
    }
}

impl ProbeArgs {
    /// Options of the probes.
    #[must_use]
    pub fn options(self) -> Options {
        let Self { mode, nested_launches, allow_untested_kernel, hit_costs } = self;
        let mode = mode.map(AttachMode::from);
        Options {
            mode,
            nested_launches,
            allow_untested_kernel,
            hit_cost: hit_costs,
            ..Options::default()
        }
    }
}

/// Flags of the HTTP server.
#[derive(Debug, Clone, Args)]
pub struct WebArgs {
    /// Address to listen on, such as `:9400`, `127.0.0.1:9400` or `[::1]:9400`; may be repeated
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = ":9400")]
    pub listen_addresses: Vec<ListenAddress>,
    /// Path under which metrics are served
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics")]
    pub telemetry_path: TelemetryPath,
    /// File with TLS, client certificates and users, in the format of Prometheus's exporter-toolkit; reloaded when it, or a file that it names, changes
    #[arg(long = "web.config.file", value_name = "PATH")]
    pub config: Option<PathBuf>,
}

impl WebArgs {
    /// A server on these addresses, with a token file.
    ///
    /// # Errors
    /// When the web configuration cannot be used, or a port cannot be bound.
    pub fn server(&self) -> anyhow::Result<Server> {
        self.listen(Vec::new(), Limits::default()).map(Self::with_token_file)
    }

    /// A server on these addresses, or on the passed sockets if there are any.
    ///
    /// # Errors
    /// When the web configuration cannot be used, or a port cannot be bound.
    pub fn listen(&self, passed: Vec<TcpListener>, limits: Limits) -> anyhow::Result<Server> {
        // In exporter-toolkit, an empty path means none.
        let file = self.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        let access = file.map(LiveWebConfig::load).transpose()?.unwrap_or_default();
        let server = if passed.is_empty() {
            Server::bind(&self.listen_addresses, limits)?
        } else {
            Server::on(passed, limits)
        };
        Ok(server.with_access(Arc::new(access)))
    }

    /// Creates the server's token file; without one, the log says what to do.
    #[must_use]
    pub fn with_token_file(server: Server) -> Server {
        match TokenFile::create(&server.addresses().into_iter().collect()) {
            Ok(file) => server.with_token_file(file),
            Err(error) => {
                let folder = error.folder().unwrap_or_else(|| "/run/gpucause".as_ref()).display();
                tracing::warn!(
                    %error,
                    "gpucause explain and other programs of this host need a password or a client certificate \
                     (--web.config.file) to read causal chains; for access by token, make {folder} writable for \
                     this user only (systemd: RuntimeDirectory=gpucause)"
                );
                server
            }
        }
    }
}
