//! Certificates and keys, made for the test, in a folder of their own with the web configuration that names them.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// A certificate and its key, as a client shows them.
pub(crate) struct Pair {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Pair {
    pub(crate) fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (vec![self.certificate.clone()], self.key.clone_key())
    }
}

/// Somebody who issues certificates.
pub(crate) struct Authority {
    pub(crate) certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// PEM of a certificate with a name, and of its key.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn pair(&self, name: &str) -> Pair {
        let (certificate, key) = self.issue(name);
        Pair {
            certificate: CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap(),
            key: PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        }
    }
}

/// The folder: `server.crt`, `server.key`, `ca.crt` and `web.yml`.
pub(crate) struct Folder {
    folder: TempDir,
    pub(crate) authority: Authority,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap(), authority: Authority::new() };
        folder.write("ca.crt", &folder.authority.certificate.pem());
        folder.renew();
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a file as tools that care do: whole.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let (next, path) = (self.path(".next"), self.path(name));
        fs::write(&next, text).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// Another certificate for the server, by the same authority; returns it.
    pub(crate) fn renew(&self) -> CertificateDer<'static> {
        let (certificate, key) = self.authority.issue("localhost");
        self.write("server.crt", &certificate);
        self.write("server.key", &key);
        CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
    }

    /// Writes the configuration, with lines added to `tls_server_config`, and more after it.
    pub(crate) fn configure(&self, tls: &[&str], more: &str) -> PathBuf {
        let lines: String = tls.iter().map(|line| format!("  {line}\n")).collect();
        let head = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
        self.write("web.yml", &format!("{head}{lines}{more}"));
        self.path("web.yml")
    }

    pub(crate) fn plain(&self, text: &str) -> PathBuf {
        self.write("web.yml", text);
        self.path("web.yml")
    }
}
