//! Verification of client certificates.

pub mod san;

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use san::{alternative_names, is_same};

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
fn has_name(certificate: &[u8], listed: &[String]) -> Result<bool, CertificateError> {
    let names = alternative_names(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(names.iter().any(|name| listed.iter().any(|listed| is_same(name, listed))))
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
            Some(names) if !has_name(end_entity, names)? => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::ring;

    #[test]
    fn a_certificate_is_refused_for_its_names_or_for_being_malformed() {
        let names = vec!["prometheus.example".to_owned()];
        let clients = Clients::new(None, true, Some(names), &ring::default_provider());
        let refusal = |der: &[u8]| {
            let verified = clients.verify_client_cert(&der.into(), &[], UnixTime::now());
            verified.err()
        };
        let of = |name: &str| {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        let own = of("prometheus.example");
        assert_eq!(refusal(&own), None);
        let not_allowed = CertificateError::ApplicationVerificationFailure;
        assert_eq!(refusal(&of("grafana.example")), Some(not_allowed.into()));
        for malformed in [&own[..own.len() - 1], b"", b"\x30\x80"] {
            assert_eq!(refusal(malformed), Some(CertificateError::BadEncoding.into()));
        }
    }
}
