//! The address of a Prometheus, and the password of the user in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use gpucause_investigations::http::{Address, Client, Login};

/// Default ports, without and with TLS.
const PORTS: [u16; 2] = [9090, 443];
/// The environment variable of the password, which other users cannot read.
const PASSWORD: &str = "GPUCAUSE_PROMETHEUS_PASSWORD";
const HINT: &str = "set it with --prometheus-password-file or GPUCAUSE_PROMETHEUS_PASSWORD";

/// Address of a Prometheus, such as `http://prometheus:9090` or `https://me@prometheus`. Shown without the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusUrl(Address);

/// Text that is not a [`PrometheusUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrometheusUrlError {
    /// It is no address.
    #[error(
        "invalid address of a Prometheus; expected http://HOST:PORT or https://USER@HOST:PORT, such as http://localhost:9090"
    )]
    Invalid,
    /// It has a password.
    #[error(
        "other users of this host can see a password in an address - write https://USER@HOST:PORT, and {HINT}"
    )]
    Password,
}

/// Flags of the login at a Prometheus.
#[derive(Debug, Clone, Default, Args)]
pub struct PrometheusLogin {
    /// File whose first line is the password of the user in the address of a Prometheus, such as https://me@prometheus [default: the environment variable GPUCAUSE_PROMETHEUS_PASSWORD]
    #[arg(long = "prometheus-password-file", id = "prometheus_password_file", value_name = "PATH")]
    file: Option<PathBuf>,
}

impl PrometheusUrl {
    /// A client, with the login of the user in the address if there is one.
    ///
    /// # Errors
    /// When the password or the certificates that this host trusts cannot be read, the login is not valid in a header, or there is
    /// a password file without a user.
    pub fn client(&self, login: &PrometheusLogin) -> anyhow::Result<Client> {
        self.client_with(login.file.as_deref(), None, HINT)
    }

    /// The same, with a file of the password and one of the authorities; `hint` says where a password can be given.
    pub(crate) fn client_with(
        &self,
        password: Option<&Path>,
        ca_file: Option<&Path>,
        hint: &'static str,
    ) -> anyhow::Result<Client> {
        let client = Client::new(self.0.clone(), ca_file)?;
        let inherited = std::env::var(PASSWORD).ok();
        Ok(match Login::of(&self.0, password, inherited, hint)? {
            Some(login) => client.with_login(&login)?,
            None => client,
        })
    }

    /// Its host.
    pub(crate) fn host(&self) -> &str {
        self.0.target().0
    }
}

impl FromStr for PrometheusUrl {
    type Err = PrometheusUrlError;

    fn from_str(text: &str) -> Result<Self, PrometheusUrlError> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        match Address::parse(&full, PORTS) {
            Some(address) if address.has_password() => Err(PrometheusUrlError::Password),
            Some(address) if !address.path().contains('?') => Ok(Self(address)),
            _ => Err(PrometheusUrlError::Invalid),
        }
    }
}

impl fmt::Display for PrometheusUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_investigations::http::LoginError;

    #[test]
    fn an_address_may_have_a_path_and_a_user() {
        for text in ["http://p:9090", "p:9090", "https://me@p/prefix", "http://[::1]:9090/"] {
            let url: PrometheusUrl = text.parse().unwrap();
            assert!(!url.to_string().contains("me"), "{url}");
        }
        for text in ["", "ftp://p", "http://p/?x=1"] {
            assert_eq!(text.parse::<PrometheusUrl>(), Err(PrometheusUrlError::Invalid), "{text}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_with_where_it_belongs() {
        for text in ["https://me:secret@p", "me:secret@p:9090", "http://me:@p"] {
            let error = text.parse::<PrometheusUrl>().unwrap_err().to_string();
            assert!(error.contains("--prometheus-password-file"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_file_without_a_user_in_the_address_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret").unwrap();
        let login = PrometheusLogin { file: Some(file.path().to_owned()) };
        let client = |url: &str| url.parse::<PrometheusUrl>().unwrap().client(&login);
        let error = client("http://p:9090").unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(LoginError::Nobody)), "{error}");
        assert!(client("http://me@p:9090").is_ok());
        let url: PrometheusUrl = "http://p:9090".parse().unwrap();
        assert!(url.client(&PrometheusLogin::default()).is_ok());
    }
}
