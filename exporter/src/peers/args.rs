//! Flags of the Prometheus that compares ranks on other hosts.

use std::path::PathBuf;

use clap::Args;

use crate::peers::{PeersSettings, PeersUrl};

/// Flags of the Prometheus that compares ranks on other hosts.
#[derive(Debug, Clone, Default, Args)]
pub struct PeersArgs {
    /// Ask this Prometheus, such as http://prometheus:9090 or https://USER@prometheus, how long ranks on other hosts wait, to find the late one of a job; wins over the configuration file
    #[arg(long = "peers.url", id = "peers_url", value_name = "URL")]
    pub url: Option<PeersUrl>,
    /// File whose first line is the password of the user in that address; wins over the configuration file
    #[arg(long = "peers.password-file", id = "peers_password_file", value_name = "PATH")]
    pub password_file: Option<PathBuf>,
    /// File of the authorities that its certificate may come from, in PEM; wins over the configuration file [default: those that this host trusts]
    #[arg(long = "peers.ca-file", id = "peers_ca_file", value_name = "PATH")]
    pub ca_file: Option<PathBuf>,
}

impl PeersArgs {
    /// Replaces the settings that flags have. The file's password is for the file's address alone.
    pub(crate) fn apply(&self, settings: &mut PeersSettings) {
        let own = self.clone();
        if own.url.is_some() {
            *settings = PeersSettings { url: own.url, ..PeersSettings::default() };
        }
        settings.password_file = own.password_file.or(settings.password_file.take());
        settings.ca_file = own.ca_file.or(settings.ca_file.take());
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::exporter;

    #[test]
    fn flags_of_the_prometheus_win_over_the_configuration_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "peers: {url: 'http://a:9090', password_file: p}\n";
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let args = exporter(&["--config.file", path, "--peers.url=https://me@b"]).unwrap();
        let peers = args.config_source().load().unwrap().peers;
        assert_eq!(peers.url.unwrap().to_string(), "https://b:443");
        assert_eq!((peers.password_file, peers.ca_file), (None, None), "of another address");
        let flags = ["--config.file", path, "--peers.password-file=q"];
        let peers = exporter(&flags).unwrap().config_source().load().unwrap().peers;
        assert_eq!(peers.url.unwrap().to_string(), "http://a:9090");
        assert_eq!(peers.password_file, Some("q".into()));
    }

    #[test]
    fn a_password_in_the_address_is_refused_with_where_it_belongs() {
        let error = exporter(&["--peers.url=https://me:secret@b"]).unwrap_err().to_string();
        assert!(error.contains("--peers.password-file"), "{error}");
    }
}
