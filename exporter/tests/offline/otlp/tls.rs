//! Records over TLS: only a receiver whose certificate is of a trusted authority gets them.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;

use super::*;

/// A receiver over TLS, and its certificate in PEM.
fn receiver() -> (Receiver, String) {
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let receiver = Receiver::on(listener, Some(Arc::new(config.unwrap())), &[]);
    (receiver, certificate.pem())
}

#[test]
fn records_are_sent_to_a_trusted_receiver_alone() {
    let ((receiver, own), (_, other)) = (receiver(), receiver());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, other).unwrap();
    let url = format!("https://localhost:{}", receiver.address.port());
    let settings = OtlpSettings { ca_file: Some(file.clone()), ..settings(&url) };
    settings.check().unwrap();
    let mut running = Running::start(&folder.path().join("spool"), &settings);
    let expected = running.log(2);
    until("a certificate that is not trusted", || (running.failures("tls") > 0).then_some(()));
    assert_eq!(receiver.taken(), Vec::<String>::new());
    // The file is read again.
    std::fs::write(&file, own).unwrap();
    running.until_sent(2);
    assert_eq!(receiver.taken(), expected);
}

#[test]
fn files_that_cannot_be_used_are_known_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Some(folder.path().join("missing"));
    let over_tls = settings("https://localhost:4318");
    let error = |settings: &OtlpSettings| settings.check().unwrap_err().to_string();
    let no_ca = error(&OtlpSettings { ca_file: missing.clone(), ..over_tls.clone() });
    assert!(no_ca.starts_with("otlp.ca_file: ") && no_ca.contains("missing"), "{no_ca}");
    let plain = settings("http://localhost:4318");
    let no_headers = error(&OtlpSettings { headers_file: missing, ..plain });
    assert!(no_headers.starts_with("otlp.headers_file: "), "{no_headers}");
}
