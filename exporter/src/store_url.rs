//! Addresses of stores, a Prometheus or a ClickHouse, and the password of the user in them.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use gpucause_http::client::{Address, Client, Login, connector_also_trusting};
use gpucause_investigations::clickhouse::ClickHouse;

/// The login of a kind of store.
pub trait Store {
    /// The kind of store, for messages.
    const WHAT: &'static str;
    /// Its form and an example.
    const FORM: &'static str;
    /// Default ports, without and with TLS.
    const PORTS: [u16; 2];
    /// The environment variable of the password, which other users cannot read.
    const VARIABLE: &'static str;
    /// Where a password can be given.
    const HINT: &'static str;

    /// Returns true if an address may have this path.
    fn accepts(path: &str) -> bool;

    /// The file that has the password.
    fn password_file(&self) -> Option<&Path>;
}

/// Address of a store, such as `http://prometheus:9090` or `https://me@prometheus`. Shown without the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl<S>(Address, PhantomData<S>);

/// Address of a Prometheus, which may have a path.
pub type PrometheusUrl = StoreUrl<PrometheusLogin>;
/// Address of a ClickHouse, whose path names the database.
pub type ClickHouseUrl = StoreUrl<ClickHouseLogin>;

/// Text that is not a [`StoreUrl`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// It is no address.
    #[error("invalid address of {0}; expected {1}")]
    Invalid(&'static str, &'static str),
    /// It has a password.
    #[error(
        "other users of this host can see a password in an address - write https://USER@HOST:PORT, and {0}"
    )]
    Password(&'static str),
}

/// Flags of the login at a Prometheus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct PrometheusLogin {
    /// File whose first line is the password of the user in the address of a Prometheus, such as https://me@prometheus [default: the environment variable GPUCAUSE_PROMETHEUS_PASSWORD]
    #[arg(long = "prometheus-password-file", id = "prometheus_password_file", value_name = "PATH")]
    file: Option<PathBuf>,
}

impl Store for PrometheusLogin {
    const WHAT: &'static str = "a Prometheus";
    const FORM: &'static str =
        "http://HOST:PORT or https://USER@HOST:PORT, such as http://localhost:9090";
    const PORTS: [u16; 2] = [9090, 443];
    const VARIABLE: &'static str = "GPUCAUSE_PROMETHEUS_PASSWORD";
    const HINT: &'static str =
        "set it with --prometheus-password-file or GPUCAUSE_PROMETHEUS_PASSWORD";

    fn accepts(path: &str) -> bool {
        !path.contains('?')
    }

    fn password_file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

/// Flags of the login at a ClickHouse.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ClickHouseLogin {
    /// File whose first line is the password of the user in the address of the ClickHouse, such as https://me@clickhouse [default: the environment variable GPUCAUSE_CLICKHOUSE_PASSWORD]
    #[arg(long = "clickhouse-password-file", id = "clickhouse_password_file", value_name = "PATH")]
    file: Option<PathBuf>,
}

impl Store for ClickHouseLogin {
    const WHAT: &'static str = "a ClickHouse";
    const FORM: &'static str =
        "http://HOST:PORT or https://USER@HOST:PORT/DATABASE, such as http://localhost:8123";
    const PORTS: [u16; 2] = [8123, 8443];
    const VARIABLE: &'static str = "GPUCAUSE_CLICKHOUSE_PASSWORD";
    const HINT: &'static str =
        "set it with --clickhouse-password-file or GPUCAUSE_CLICKHOUSE_PASSWORD";

    fn accepts(path: &str) -> bool {
        path.strip_prefix('/').is_some_and(|database| {
            database.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    }

    fn password_file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

impl<S: Store> StoreUrl<S> {
    /// A client, with the login of the user in the address if there is one.
    ///
    /// # Errors
    /// When the password or the certificates that this host trusts cannot be read, the login is not valid in a header, or there is
    /// a password file without a user.
    pub fn client(&self, login: &S) -> anyhow::Result<Client> {
        self.client_with(login.password_file(), None, S::HINT)
    }

    /// Returns a client as [`client`](Self::client) does, with a file of the password and one of the authorities; `hint` says where a
    /// password can be given.
    pub(crate) fn client_with(
        &self,
        password: Option<&Path>,
        ca_file: Option<&Path>,
        hint: &'static str,
    ) -> anyhow::Result<Client> {
        self.with_login(Client::new(self.0.clone(), ca_file)?, password, hint)
    }

    /// Returns a client as [`client`](Self::client) does, for a store whose certificate may also be of an authority in this file.
    ///
    /// # Errors
    /// As [`client`](Self::client), and when the file has no authorities.
    pub fn client_also_trusting(
        &self,
        login: &S,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<Client> {
        let Some(ca_file) = ca_file else { return self.client(login) };
        let client =
            Client::over(self.0.clone(), &connector_also_trusting(ca_file).map_err(Arc::new))?;
        self.with_login(client, login.password_file(), S::HINT)
    }

    fn with_login(
        &self,
        client: Client,
        password: Option<&Path>,
        hint: &'static str,
    ) -> anyhow::Result<Client> {
        let inherited = std::env::var(S::VARIABLE).ok();
        Ok(match Login::of(&self.0, password, inherited, hint)? {
            Some(login) => client.with_login(&login)?,
            None => client,
        })
    }

    /// Its address.
    pub(crate) const fn address(&self) -> &Address {
        &self.0
    }
}

impl ClickHouseUrl {
    /// The ClickHouse, and its database if the address names one.
    ///
    /// # Errors
    /// As [`client_also_trusting`](Self::client_also_trusting).
    pub fn clickhouse(
        &self,
        login: &ClickHouseLogin,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<ClickHouse> {
        let database = Some(self.0.path().trim_start_matches('/')).filter(|name| !name.is_empty());
        Ok(ClickHouse::new(self.client_also_trusting(login, ca_file)?, database.map(str::to_owned)))
    }
}

impl<S: Store> FromStr for StoreUrl<S> {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        match Address::parse(&full, S::PORTS) {
            Some(address) if address.has_password() => Err(StoreUrlError::Password(S::HINT)),
            Some(address) if S::accepts(address.path()) => Ok(Self(address, PhantomData)),
            _ => Err(StoreUrlError::Invalid(S::WHAT, S::FORM)),
        }
    }
}

impl<S> fmt::Display for StoreUrl<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use gpucause_http::client::LoginError;

    use super::*;

    #[test]
    fn an_address_may_have_a_path_and_a_user() {
        for text in ["http://p:9090", "p:9090", "https://me@p/prefix", "http://[::1]:9090/"] {
            let url: PrometheusUrl = text.parse().unwrap();
            assert!(!url.to_string().contains("me"), "{url}");
        }
        for text in ["", "ftp://p", "http://p/?x=1"] {
            let error = text.parse::<PrometheusUrl>().unwrap_err().to_string();
            assert!(error.contains("such as http://localhost:9090"), "{text}: {error}");
        }
    }

    #[test]
    fn the_path_of_a_clickhouse_is_a_database() {
        for (text, shown) in [
            ("c", "http://c:8123"),
            ("https://me@c", "https://c:8443"),
            ("https://me@c/otel_1", "https://c:8443/otel_1"),
        ] {
            let url: ClickHouseUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
        }
        for text in ["http://c/a/b", "http://c/a%20b", "http://c/?user=me", "http://c/x?y"] {
            let error = text.parse::<ClickHouseUrl>().unwrap_err().to_string();
            assert!(error.contains("/DATABASE, such as http://localhost:8123"), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_with_where_it_belongs() {
        for text in ["https://me:secret@p", "me:secret@p:9090", "http://me:@p"] {
            let error = text.parse::<PrometheusUrl>().unwrap_err().to_string();
            assert!(error.contains("--prometheus-password-file"), "{error}");
            assert!(!error.contains("secret"), "{error}");
            let error = text.parse::<ClickHouseUrl>().unwrap_err().to_string();
            assert!(error.contains("--clickhouse-password-file"), "{error}");
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
