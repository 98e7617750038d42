//! Which authorities may say who a server is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Names the file of the authorities that this host trusts, where that is not the usual one.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Where distributions keep them: Debian and Arch, Fedora and RHEL, openSUSE, Alpine.
const USUAL: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why nobody can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file is not there, or not to be read.
    #[error("cannot read the authorities in {path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The certificate of this side, or its key, cannot be used.
    #[error("cannot show {path} to nodes: {reason}", path = .path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It has none.
    #[error("{path} holds no certificate in PEM that an authority can have", path = .0.display())]
    None(PathBuf),
    /// This host has no such file.
    #[error(
        "this host has no file of trusted authorities; install ca-certificates, or name a file"
    )]
    NoFile,
    /// TLS itself cannot be had.
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// What this side shows to servers that ask who it is: files in PEM.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Its certificate, and those between it and the authority.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
}

impl Identity<'_> {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TrustError> {
        let wrong = |path: &Path, error: &dyn std::fmt::Display| TrustError::Identity {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(self.certificate)
            .map_err(|error| wrong(self.certificate, &error))?
            .collect();
        let certificates = certificates.map_err(|error| wrong(self.certificate, &error))?;
        if certificates.is_empty() {
            return Err(wrong(self.certificate, &"it holds no certificate in PEM"));
        }
        let key =
            PrivateKeyDer::from_pem_file(self.key).map_err(|error| wrong(self.key, &error))?;
        Ok((certificates, key))
    }
}

/// Connects over TLS to whom the authorities of a file, or those that this host trusts, have given a certificate, and shows
/// them who this side is.
///
/// # Errors
/// When there are no authorities, or what is to be shown cannot be used.
pub fn connector(
    ca_file: Option<&Path>,
    identity: Option<Identity<'_>>,
) -> Result<TlsConnector, TrustError> {
    let path = match ca_file {
        Some(path) => path.to_owned(),
        None => usual().ok_or(TrustError::NoFile)?,
    };
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(&path)?);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let (certificates, key) = identity.read()?;
            config.with_client_auth_cert(certificates, key).map_err(|error| {
                TrustError::Identity { path: identity.key.to_owned(), reason: error.to_string() }
            })?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn usual() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    named.or_else(|| USUAL.iter().map(PathBuf::from).find(|path| path.is_file()))
}

fn roots(path: &Path) -> Result<RootCertStore, TrustError> {
    let unreadable = |source| TrustError::Unreadable { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    // Bundles of distributions have some that are of no use.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    if roots.is_empty() { Err(TrustError::None(path.to_owned())) } else { Ok(roots) }
}
