//! Which authorities may say who a server is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
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

/// Connects over TLS to whom the authorities of a file, or those that this host trusts, have given a certificate.
///
/// # Errors
/// When there are no authorities.
pub fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, TrustError> {
    let path = match ca_file {
        Some(path) => path.to_owned(),
        None => usual().ok_or(TrustError::NoFile)?,
    };
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(&path)?)
        .with_no_client_auth();
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
