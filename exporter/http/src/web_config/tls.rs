//! The rustls configuration of `tls_server_config`.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::WebPkiClientVerifier;

use super::Complaints;
use super::client_cert::Clients;
use super::document::TlsSection;
use super::material::Source;
use super::names::{self, ClientAuth, SUITES_13, VERSIONS};

/// The TLS configuration.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// True if a client certificate is verified to come from a trusted authority.
    pub(crate) proves_identity: bool,
    /// True if such a certificate is required.
    pub(super) requires_identity: bool,
    description: String,
}

impl fmt::Display for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// `None` after an error.
pub(super) fn build(section: &TlsSection, complaints: &mut Complaints) -> Option<Tls> {
    let certificates = Source::new("cert", section.cert.as_ref(), section.cert_file.as_ref())
        .certificates(complaints);
    let key =
        Source::new("key", section.key.as_ref(), section.key_file.as_ref()).private_key(complaints);
    let versions = versions(section, complaints);
    let provider = Arc::new(provider(section, complaints));
    let (policy, clients) = clients(section, &provider, complaints)?;
    let (certificates, key, (least, most)) = (certificates?, key?, versions?);
    let protocols: Vec<_> = VERSIONS[least..=most].iter().map(|(_, version)| *version).collect();
    let usable = |suite: &rustls::SupportedCipherSuite| protocols.contains(&suite.version());
    if !provider.cipher_suites.iter().any(usable) {
        let problem = "has no suite of TLS 1.2, and max_version allows no other version";
        complaints.add("tls_server_config.cipher_suites", problem);
        return None;
    }
    let built = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&protocols)
        .map(|builder| match clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::new(clients)),
            None => builder.with_no_client_auth(),
        })
        .and_then(|builder| builder.with_single_cert(certificates, key));
    match built {
        Ok(mut config) => {
            config.ignore_client_order = section.prefer_server_cipher_suites.unwrap_or(true);
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some(Tls {
                config: Arc::new(config),
                proves_identity: matches!(
                    policy,
                    ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify
                ),
                requires_identity: policy == ClientAuth::RequireAndVerify,
                description: describe(least, most, policy),
            })
        }
        Err(error) => {
            let hint = match error {
                rustls::Error::InconsistentKeys(_) => "they are not a pair".to_owned(),
                other => other.to_string(),
            };
            complaints
                .add("tls_server_config", format!("has an unusable certificate and key: {hint}"));
            None
        }
    }
}

fn describe(least: usize, most: usize, policy: ClientAuth) -> String {
    let versions = match (least, most) {
        (0, 1) => "TLS 1.2 and 1.3",
        (0, _) => "TLS 1.2",
        _ => "TLS 1.3",
    };
    let clients = match policy {
        ClientAuth::None => "no client certificates",
        ClientAuth::Request => "client certificates requested and not verified",
        ClientAuth::RequireAny => "client certificates required and not verified",
        ClientAuth::VerifyIfGiven => "client certificates verified if given",
        ClientAuth::RequireAndVerify => "client certificates required and verified",
    };
    format!("{versions}, {clients}")
}

/// Indices in [`VERSIONS`].
fn versions(section: &TlsSection, complaints: &mut Complaints) -> Option<(usize, usize)> {
    let read = |key, name: &Option<String>, default, complaints: &mut Complaints| {
        names::version(key, name.as_deref().unwrap_or(default), complaints)
    };
    let least = read("min_version", &section.min_version, "TLS12", complaints);
    let most = read("max_version", &section.max_version, "TLS13", complaints);
    let (least, most) = (least?, most?);
    if least > most {
        let problem = "is \"TLS13\", and must not be above max_version, which is \"TLS12\"";
        complaints.add("tls_server_config.min_version", problem);
        return None;
    }
    Some((least, most))
}

fn provider(section: &TlsSection, complaints: &mut Complaints) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if let Some(listed) = section.cipher_suites.as_ref().filter(|list| !list.is_empty()) {
        provider.cipher_suites = SUITES_13.iter().map(|(_, suite)| *suite).collect();
        provider.cipher_suites.extend(names::suites(listed, complaints));
    }
    if let Some(listed) = section.curve_preferences.as_ref().filter(|list| !list.is_empty()) {
        provider.kx_groups = names::curves(listed, complaints);
    }
    provider
}

/// The policy, and its verifier; `None` after an error.
fn clients(
    section: &TlsSection,
    provider: &Arc<CryptoProvider>,
    complaints: &mut Complaints,
) -> Option<(ClientAuth, Option<Clients>)> {
    let policy = names::client_auth(section.client_auth_type.as_deref(), complaints)?;
    let name = section.client_auth_type.as_deref().unwrap_or("NoClientCert");
    let authorities =
        Source::new("client_ca", section.client_ca.as_ref(), section.client_ca_file.as_ref());
    let mandatory = matches!(policy, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    if section.client_allowed_sans.is_some() && !mandatory {
        let form =
            "must be RequireAndVerifyClientCert or RequireAnyClientCert with client_allowed_sans";
        complaints.add("tls_server_config.client_auth_type", format!("is {name:?}, and {form}"));
        return None;
    }
    let verifier = match policy {
        ClientAuth::None if authorities.is_given() => {
            let form =
                "must be RequireAndVerifyClientCert or VerifyClientCertIfGiven with a client_ca";
            complaints
                .add("tls_server_config.client_auth_type", format!("is {name:?}, and {form}"));
            return None;
        }
        ClientAuth::None => return Some((policy, None)),
        ClientAuth::Request | ClientAuth::RequireAny => {
            // Unused, but an unreadable file is reported.
            if authorities.is_given() {
                authorities.roots(complaints)?;
            }
            None
        }
        ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify => {
            let roots = Arc::new(authorities.roots(complaints)?);
            let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
            let builder = if mandatory { builder } else { builder.allow_unauthenticated() };
            match builder.build() {
                Ok(verifier) => Some(verifier),
                Err(error) => {
                    complaints
                        .add("tls_server_config.client_ca", format!("cannot be used: {error}"));
                    return None;
                }
            }
        }
    };
    let sans = section.client_allowed_sans.clone();
    Some((policy, Some(Clients::new(verifier, mandatory, sans, provider))))
}
