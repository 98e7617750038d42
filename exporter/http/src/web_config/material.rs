//! Certificates and keys, from files or from the configuration itself.

use std::path::PathBuf;

use gpucause_input::text_file;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Complaints;

/// PEM in the configuration or in a file.
pub(super) struct Source<'a> {
    key: &'static str,
    inline: Option<&'a String>,
    file: Option<&'a PathBuf>,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        key: &'static str,
        inline: Option<&'a String>,
        file: Option<&'a PathBuf>,
    ) -> Self {
        Self { key, inline, file }
    }

    pub(super) fn is_given(&self) -> bool {
        self.inline.is_some() || self.file.is_some()
    }

    /// The name of the source in error messages, and its text, which they do not quote.
    fn read(&self, complaints: &mut Complaints) -> Option<(String, String)> {
        let section = format!("tls_server_config.{}", self.key);
        match (self.inline, self.file) {
            (Some(_), Some(_)) => {
                let problem = format!("and {}_file are both set, and only one may be", self.key);
                complaints.add(&section, problem);
                None
            }
            (Some(text), None) => Some((section, text.clone())),
            (None, Some(path)) => {
                let source = format!("{section}_file is {path:?}, and");
                match text_file::read(path) {
                    Ok(text) => Some((source, text)),
                    Err(error) => {
                        complaints.add(&source, format!("must be a readable file: {error}"));
                        None
                    }
                }
            }
            (None, None) => {
                let problem = format!("or {}_file must be set, to PEM", self.key);
                complaints.add(&section, problem);
                None
            }
        }
    }

    pub(super) fn certificates(
        &self,
        complaints: &mut Complaints,
    ) -> Option<Vec<CertificateDer<'static>>> {
        let (source, text) = self.read(complaints)?;
        let read: Result<Vec<_>, pem::Error> =
            CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        match read {
            Ok(certificates) if !certificates.is_empty() => return Some(certificates),
            Ok(_) => complaints
                .add(&source, "must hold a certificate in PEM (-----BEGIN CERTIFICATE-----)"),
            Err(error) => {
                complaints.add(&source, format!("must be valid PEM: {}", describe(&error)));
            }
        }
        None
    }

    pub(super) fn private_key(
        &self,
        complaints: &mut Complaints,
    ) -> Option<PrivateKeyDer<'static>> {
        let (source, text) = self.read(complaints)?;
        match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
            Ok(key) => return Some(key),
            Err(pem::Error::NoItemsFound) if text.contains("BEGIN ENCRYPTED PRIVATE KEY") => {
                complaints.add(
                    &source,
                    "must hold a key without a passphrase (openssl pkey decrypts one)",
                );
            }
            Err(pem::Error::NoItemsFound) => complaints
                .add(&source, "must hold a private key in PEM (-----BEGIN PRIVATE KEY-----)"),
            Err(error) => {
                complaints.add(&source, format!("must be valid PEM: {}", describe(&error)));
            }
        }
        None
    }

    pub(super) fn roots(&self, complaints: &mut Complaints) -> Option<RootCertStore> {
        let certificates = self.certificates(complaints)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            if let Err(error) = roots.add(certificate) {
                let section = format!("tls_server_config.{}", self.key);
                let problem =
                    format!("has a certificate that is not valid for an authority: {error}");
                complaints.add(&section, problem);
                return None;
            }
        }
        Some(roots)
    }
}

/// Describes an error without quoting the text.
fn describe(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "the text between BEGIN and END is not base64",
        _ => "it cannot be read",
    }
}
