//! Go's names of TLS versions, cipher suites, curves and client policies, as far as this server supports them.

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::ring::{cipher_suite, kx_group};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::Complaints;

pub(super) const VERSIONS: [(&str, &SupportedProtocolVersion); 2] =
    [("TLS12", &rustls::version::TLS12), ("TLS13", &rustls::version::TLS13)];

/// The suites of TLS 1.3, which cannot be configured, as in Go.
pub(super) const SUITES_13: [(&str, SupportedCipherSuite); 3] = [
    ("TLS_AES_128_GCM_SHA256", cipher_suite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", cipher_suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", cipher_suite::TLS13_CHACHA20_POLY1305_SHA256),
];

pub(super) const SUITES_12: [(&str, SupportedCipherSuite); 6] = [
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

const CURVES: [(&str, &dyn SupportedKxGroup); 3] = [
    ("X25519", kx_group::X25519),
    ("CurveP256", kx_group::SECP256R1),
    ("CurveP384", kx_group::SECP384R1),
];

/// The policy for client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAuth {
    None,
    Request,
    RequireAny,
    VerifyIfGiven,
    RequireAndVerify,
}

const CLIENT_AUTH: [(&str, ClientAuth); 6] = [
    ("NoClientCert", ClientAuth::None),
    ("RequestClientCert", ClientAuth::Request),
    ("RequireAnyClientCert", ClientAuth::RequireAny),
    ("VerifyClientCertIfGiven", ClientAuth::VerifyIfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::RequireAndVerify),
    // Exporter-toolkit's old name, which it still accepts.
    ("RequireClientCert", ClientAuth::RequireAny),
];

/// The value of a name, or `None` after an error that lists the known names. `why_not` explains a name that is not supported.
fn named<T: Copy>(
    key: &str,
    name: &str,
    known: &[(&str, T)],
    why_not: Option<&str>,
    complaints: &mut Complaints,
) -> Option<T> {
    let found = known.iter().find(|(known, _)| *known == name);
    if found.is_none() {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let why = why_not.map(|why| format!(" ({why})")).unwrap_or_default();
        let problem = format!("is {name:?}, and must be one of {}{why}", names.join(", "));
        complaints.add(&format!("tls_server_config.{key}"), problem);
    }
    found.map(|(_, thing)| *thing)
}

pub(super) fn client_auth(name: Option<&str>, complaints: &mut Complaints) -> Option<ClientAuth> {
    let known = &CLIENT_AUTH[..];
    named("client_auth_type", name.unwrap_or("NoClientCert"), known, None, complaints)
}

/// Index of a version in [`VERSIONS`].
pub(super) fn version(key: &str, name: &str, complaints: &mut Complaints) -> Option<usize> {
    let why_not = matches!(name, "TLS10" | "TLS11" | "SSL30")
        .then_some("older versions are insecure, and rustls does not implement them");
    let indexed: Vec<_> = VERSIONS.iter().enumerate().map(|(i, (name, _))| (*name, i)).collect();
    named(key, name, &indexed, why_not, complaints)
}

pub(super) fn curves(
    names: &[String],
    complaints: &mut Complaints,
) -> Vec<&'static dyn SupportedKxGroup> {
    let curve = |(index, name): (usize, &String)| {
        let why_not = (name == "CurveP521").then_some("ring does not implement P-521");
        named(&format!("curve_preferences[{index}]"), name, &CURVES, why_not, complaints)
    };
    names.iter().enumerate().filter_map(curve).collect()
}

/// The suites of TLS 1.2 that a list names, in its order; those of 1.3 have no effect, as in Go.
pub(super) fn suites(names: &[String], complaints: &mut Complaints) -> Vec<SupportedCipherSuite> {
    let suite = |(index, name): (usize, &String)| {
        if SUITES_13.iter().any(|(known, _)| known == name) {
            return None;
        }
        // Go's older names of the suites with ChaCha20.
        let whole = match name.strip_suffix("_CHACHA20_POLY1305") {
            Some(_) => &format!("{name}_SHA256"),
            None => name,
        };
        let why_not = unsafe_suite(name).then_some(
            "rustls does not implement insecure suites: CBC, RC4, 3DES, RSA key exchange",
        );
        named(&format!("cipher_suites[{index}]"), whole, &SUITES_12, why_not, complaints)
    };
    names.iter().enumerate().filter_map(suite).collect()
}

fn unsafe_suite(name: &str) -> bool {
    name.starts_with("TLS_RSA_") || ["_CBC_", "_RC4_", "_3DES_"].iter().any(|p| name.contains(p))
}
