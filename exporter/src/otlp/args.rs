//! Flags of chains as log records.

use std::path::PathBuf;

use clap::Args;

use crate::otlp::{Endpoint, OtlpSettings};

/// Where systemd keeps what a service writes: `StateDirectory=` sets it.
const STATE: &str = "STATE_DIRECTORY";

/// Flags of chains as log records.
#[derive(Debug, Clone, Default, Args)]
pub struct OtlpArgs {
    /// Send causal chains as log records to this receiver of OTLP/HTTP, such as http://localhost:4318; wins over the configuration file
    #[arg(long = "otlp.endpoint", value_name = "URL")]
    pub endpoint: Option<Endpoint>,
    /// File of headers to send with them, a line each, such as Authorization: Bearer TOKEN; wins over the configuration file
    #[arg(long = "otlp.headers-file", value_name = "PATH")]
    pub headers_file: Option<PathBuf>,
    /// File of the authorities that the receiver's certificate may come from, in PEM; wins over the configuration file [default: those that this host trusts]
    #[arg(long = "otlp.ca-file", value_name = "PATH")]
    pub ca_file: Option<PathBuf>,
    /// Folder of the records that wait to be sent [default: otlp in STATE_DIRECTORY; without that, up to 1 MiB waits in memory]
    #[arg(long = "otlp.spool-dir", value_name = "DIR")]
    pub spool_dir: Option<PathBuf>,
}

impl OtlpArgs {
    /// Replaces the settings that flags have. The file's headers, which may have a token, are for the file's endpoint alone.
    pub(crate) fn apply(&self, settings: &mut OtlpSettings) {
        let own = self.clone();
        if own.endpoint.is_some() {
            (settings.endpoint, settings.headers_file, settings.ca_file) =
                (own.endpoint, None, None);
        }
        settings.headers_file = own.headers_file.or(settings.headers_file.take());
        settings.ca_file = own.ca_file.or(settings.ca_file.take());
    }

    /// The folder of the spool, if there is one.
    #[must_use]
    pub fn spool_dir(&self) -> Option<PathBuf> {
        let state = || {
            let dirs = std::env::var_os(STATE)?;
            // There may be several, with colons between.
            let first = std::env::split_paths(&dirs).next()?;
            (!first.as_os_str().is_empty()).then(|| first.join("otlp"))
        };
        self.spool_dir.clone().or_else(state)
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::exporter;

    #[test]
    fn flags_of_the_endpoint_win_over_the_configuration_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "otlp: {endpoint: 'http://a:4318', headers_file: h, spool_bytes: 1048576}\n";
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let flags = ["--config.file", path, "--otlp.endpoint=https://b", "--otlp.spool-dir=/s"];
        let args = exporter(&flags).unwrap();
        let otlp = args.config_source().load().unwrap().otlp;
        assert_eq!(otlp.endpoint.unwrap().to_string(), "https://b:443/v1/logs");
        assert_eq!((otlp.headers_file, otlp.ca_file), (None, None), "of another endpoint");
        assert_eq!(otlp.spool_bytes, 1 << 20);
        assert_eq!(args.otlp.spool_dir(), Some("/s".into()));
        assert!(exporter(&["--otlp.endpoint=b:4318"]).is_err());
    }
}
