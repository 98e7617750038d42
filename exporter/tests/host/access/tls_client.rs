//! A TLS client with the certificate and the TLS versions that a test chooses.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use gpucause_fixture::http_client::connect;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned,
    SupportedCipherSuite, SupportedProtocolVersion,
};

use super::pairs::{Folder, Pair};

/// Answer that came back over TLS.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) version: ProtocolVersion,
    pub(crate) suite: SupportedCipherSuite,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.text.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// How a client asks.
pub(crate) struct Asking<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) pair: Option<&'a Pair>,
    pub(crate) versions: &'a [&'static SupportedProtocolVersion],
}

impl<'a> Asking<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        Self { folder, pair: None, versions: rustls::ALL_VERSIONS }
    }

    pub(crate) fn with(folder: &'a Folder, pair: &'a Pair) -> Self {
        Self { pair: Some(pair), ..Self::new(folder) }
    }

    fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.folder.authority.certificate.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match self.pair {
            Some(pair) => {
                let (chain, key) = pair.parts();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        })
    }

    /// The answer, or why there is none.
    pub(crate) fn get(&self, server: SocketAddr, path: &str) -> io::Result<Answer> {
        let name = "localhost".try_into().unwrap();
        let client = ClientConnection::new(self.config(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, connect(server));
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        let tls = &stream.conn;
        Ok(Answer {
            text: String::from_utf8(text).unwrap(),
            certificate: tls.peer_certificates().unwrap()[0].clone().into_owned(),
            version: tls.protocol_version().unwrap(),
            suite: tls.negotiated_cipher_suite().unwrap(),
        })
    }
}
