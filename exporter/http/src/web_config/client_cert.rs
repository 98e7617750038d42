//! Verification of client certificates.

pub mod san;

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Requests a certificate, and verifies it as the policy says. Possession of its key is always verified.
#[derive(Debug)]
pub(super) struct Clients {
    /// Verifies the issuer, where the policy says so.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    mandatory: bool,
    /// The certificate must have one of these names.
    names: Option<Vec<String>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Clients {
    pub(super) fn new(
        authorities: Option<Arc<dyn ClientCertVerifier>>,
        mandatory: bool,
        names: Option<Vec<String>>,
        provider: &CryptoProvider,
    ) -> Self {
        let algorithms = provider.signature_verification_algorithms;
        Self { authorities, mandatory, names, algorithms }
    }
}

/// Returns true if one of a certificate's alternative names is in a list.
fn has_name(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let same = |found: &san::Name<'_>, listed: &String| match found {
        san::Name::Text(text) => text == listed,
        san::Name::Address(address) => {
            listed.parse::<IpAddr>().is_ok_and(|listed| listed == *address)
        }
    };
    let found = san::alternative_names(certificate);
    found.is_some_and(|found| found.iter().any(|f| names.iter().any(|listed| same(f, listed))))
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.as_ref().map_or(&[], |authorities| authorities.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(authorities) = &self.authorities {
            authorities.verify_client_cert(end_entity, intermediates, now)?;
        }
        match &self.names {
            Some(names) if !has_name(end_entity, names) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
