//! Certificates and keys, from files or from the configuration itself.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Complaints;

/// Maximum size of a file.
const MAX_BYTES: u64 = 1 << 20;

/// All of a file, within that size.
pub(super) fn text(path: &Path) -> io::Result<String> {
    // Checked first: opening a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not text"))
}

/// PEM in the configuration or in a file, and its name in error messages.
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

    /// The key that gives it, and its text; error messages do not quote it.
    fn read(&self, complaints: &mut Complaints) -> Option<(String, String)> {
        let section = format!("tls_server_config.{}", self.key);
        match (self.inline, self.file) {
            (Some(_), Some(_)) => {
                let problem = format!("and {}_file are both there, and only one may be", self.key);
                complaints.say(&section, problem);
                None
            }
            (Some(text), None) => Some((section, text.clone())),
            (None, Some(path)) => {
                let subject = format!("{section}_file is {path:?}, and");
                match text(path) {
                    Ok(text) => Some((subject, text)),
                    Err(error) => {
                        complaints
                            .say(&subject, format!("must be a file that can be read: {error}"));
                        None
                    }
                }
            }
            (None, None) => {
                let problem = format!("or {}_file must be there, in PEM", self.key);
                complaints.say(&section, problem);
                None
            }
        }
    }

    pub(super) fn certificates(
        &self,
        complaints: &mut Complaints,
    ) -> Option<Vec<CertificateDer<'static>>> {
        let (subject, text) = self.read(complaints)?;
        let read: Result<Vec<_>, pem::Error> =
            CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        match read {
            Ok(certificates) if !certificates.is_empty() => return Some(certificates),
            Ok(_) => complaints
                .say(&subject, "must hold a certificate in PEM (-----BEGIN CERTIFICATE-----)"),
            Err(error) => complaints.say(&subject, format!("must be valid PEM: {}", name(&error))),
        }
        None
    }

    pub(super) fn private_key(
        &self,
        complaints: &mut Complaints,
    ) -> Option<PrivateKeyDer<'static>> {
        let (subject, text) = self.read(complaints)?;
        match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
            Ok(key) => return Some(key),
            Err(pem::Error::NoItemsFound) if text.contains("BEGIN ENCRYPTED PRIVATE KEY") => {
                complaints.say(
                    &subject,
                    "must hold a key without a passphrase (openssl pkey decrypts one)",
                );
            }
            Err(pem::Error::NoItemsFound) => complaints
                .say(&subject, "must hold a private key in PEM (-----BEGIN PRIVATE KEY-----)"),
            Err(error) => complaints.say(&subject, format!("must be valid PEM: {}", name(&error))),
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
                    format!("holds a certificate that cannot be one of an authority: {error}");
                complaints.say(&section, problem);
                return None;
            }
        }
        Some(roots)
    }
}

/// The error in PEM, which the original error would quote.
fn name(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "what is between BEGIN and END is not base64",
        _ => "it cannot be read",
    }
}
