//! Trusted certificate authorities, and the client's own certificate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, InvalidMessage, RootCertStore};
use tokio_rustls::TlsConnector;

/// Overrides the host's file of trusted authorities.
const VARIABLE: &str = "SSL_CERT_FILE";
/// That file on Debian and Arch, Fedora and RHEL, openSUSE, Alpine.
const USUAL: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file of authorities cannot be read.
    #[error("cannot read the authorities in {path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// The client certificate or its key cannot be used.
    #[error("cannot use {path} as client certificate: {1}", path = .0.display())]
    Identity(PathBuf, String),
    /// The file holds no authority.
    #[error("{path} holds no certificate of an authority in PEM", path = .0.display())]
    None(PathBuf),
    /// This host has no file of authorities.
    #[error("this host has no trusted authorities - install ca-certificates, or name a file")]
    NoFile,
    /// TLS cannot be configured.
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The client certificate: files in PEM.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate and its intermediates.
    pub certificate: &'a Path,
    /// The private key.
    pub key: &'a Path,
}

fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> TrustError {
    TrustError::Identity(path.to_owned(), reason.to_string())
}

impl Identity<'_> {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TrustError> {
        let certificates = CertificateDer::pem_file_iter(self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unusable(self.certificate, &error))?;
        if certificates.is_empty() {
            return Err(unusable(self.certificate, &"it holds no certificate in PEM"));
        }
        let key =
            PrivateKeyDer::from_pem_file(self.key).map_err(|error| unusable(self.key, &error))?;
        Ok((certificates, key))
    }
}

/// A TLS connector that trusts the authorities in a file, else those that this host trusts.
///
/// # Errors
/// When there are no authorities, or the client certificate cannot be used.
pub fn connector(
    ca_file: Option<&Path>,
    identity: Option<Identity<'_>>,
) -> Result<TlsConnector, TrustError> {
    let path = match ca_file {
        Some(path) => path.to_owned(),
        None => usual().ok_or(TrustError::NoFile)?,
    };
    trusting(roots(&path)?, identity)
}

/// A TLS connector that trusts the authorities in a file, and those that this host trusts.
///
/// # Errors
/// When the file has no authorities.
pub fn connector_also_trusting(ca_file: &Path) -> Result<TlsConnector, TrustError> {
    let mut all = roots(ca_file)?;
    // The file may do without those of the host.
    if let Some(Ok(of_host)) = usual().map(|path| roots(&path)) {
        all.roots.extend(of_host.roots);
    }
    trusting(all, None)
}

fn trusting(
    roots: RootCertStore,
    identity: Option<Identity<'_>>,
) -> Result<TlsConnector, TrustError> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let (certificates, key) = identity.read()?;
            let config = config.with_client_auth_cert(certificates, key);
            config.map_err(|error| unusable(identity.key, &error))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns advice for a failure of TLS.
pub fn tls_advice(error: &io::Error) -> &'static str {
    let error = error.get_ref().and_then(|own| own.downcast_ref::<rustls::Error>());
    match error {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "this port answers without TLS: use http://"
        }
        Some(rustls::Error::InvalidCertificate(reason)) => match reason {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "use a name of the certificate in the URL"
            }
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "this certificate is one of an authority, and no server's: make it with `openssl req -x509 -addext basicConstraints=CA:FALSE`"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "trust your own authority with --ca-file"
            }
            _ => "replace the certificate of that server",
        },
        Some(rustls::Error::AlertReceived(_)) => {
            "if it requires a client certificate, send one with --client-cert and --client-key"
        }
        _ => "check that this port speaks TLS",
    }
}

fn usual() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    named.or_else(|| USUAL.iter().map(PathBuf::from).find(|path| path.is_file()))
}

fn roots(path: &Path) -> Result<RootCertStore, TrustError> {
    let unreadable = |source| TrustError::Unreadable(path.to_owned(), source);
    let bytes = fs::read(path).map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    // Distributions' bundles contain certificates that rustls does not accept.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    if roots.is_empty() { Err(TrustError::None(path.to_owned())) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_of_what_failed_and_only_an_unknown_authority_is_to_be_trusted() {
        let advice = |error: rustls::Error| tls_advice(&io::Error::other(error));
        let certificate = |reason| advice(rustls::Error::InvalidCertificate(reason));
        let plain = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(advice(plain).contains("http://"));
        assert!(certificate(CertificateError::UnknownIssuer).contains("--ca-file"));
        for (reason, word) in [
            (CertificateError::NotValidForName, "a name of the certificate"),
            (CertificateError::Expired, "replace"),
        ] {
            let advice = certificate(reason);
            assert!(advice.contains(word) && !advice.contains("--ca-file"), "{advice}");
        }
    }
}
