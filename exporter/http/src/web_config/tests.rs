use std::fs;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tempfile::TempDir;

use super::*;

const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

/// A folder with `crt.pem`, `key.pem`, another pair's `other.pem`, and `ca.pem`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    write("crt.pem", params.self_signed(&key).unwrap().pem());
    write("key.pem", key.serialize_pem());
    write("other.pem", KeyPair::generate().unwrap().serialize_pem());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem());
    write("empty.pem", String::new());
    write("broken.pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_owned());
    write(
        "locked.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
            .to_owned(),
    );
    folder
}

fn load(folder: &TempDir, text: &str) -> Result<WebConfig, String> {
    let file = folder.path().join("web.yml");
    fs::write(&file, text).unwrap();
    WebConfig::load(&file).map_err(|error| error.to_string())
}

fn refusal(folder: &TempDir, text: &str) -> String {
    match load(folder, text) {
        Ok(config) => panic!("taken: {text}\n{config}"),
        Err(message) => message,
    }
}

/// With a certificate and a key, and more lines.
fn tls(lines: &str) -> String {
    let more: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("tls_server_config:\n  cert_file: crt.pem\n  key_file: key.pem\n{more}")
}

#[test]
fn the_example_of_exporter_toolkit_is_taken() {
    let folder = folder();
    let text = format!(
        "{}http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: \"\"\n\
         basic_auth_users:\n  alice: {HASH}\n  bob: {HASH}\nrate_limit:\n  interval: \"1s\"\n  burst: 20\n",
        tls(
            "min_version: TLS12\nclient_auth_type: RequireAndVerifyClientCert\nclient_ca_file: ca.pem\n\
             client_allowed_sans: [prometheus.example]\ncipher_suites:\n- TLS_AES_128_GCM_SHA256\n\
             - TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305\n- TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\n\
             prefer_server_cipher_suites: false\ncurve_preferences: [CurveP256, X25519]"
        )
    );
    let config = load(&folder, &text).unwrap();
    assert_eq!(
        config.to_string(),
        "TLS 1.2 and 1.3, client certificates required and verified, 2 users, a request every 1s, 20 at once"
    );
    assert_eq!(config.headers.len(), 1);
    let tls = config.tls.unwrap();
    assert!(tls.proves_identity && !tls.config.ignore_client_order);
    let suites = &tls.config.crypto_provider().cipher_suites;
    assert_eq!(suites.len(), 3 + 2, "those of TLS 1.3 are always there");
}

#[test]
fn the_example_of_the_documents_is_taken() {
    let page = include_str!("../../../SECURITY.md");
    let (_, rest) = page.split_once("```yaml\ntls_server_config:").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let folder = folder();
    for (from, to) in [("crt.pem", "tls.crt"), ("key.pem", "tls.key"), ("ca.pem", "ca.crt")] {
        fs::copy(folder.path().join(from), folder.path().join(to)).unwrap();
    }
    let config = load(&folder, &format!("tls_server_config:{example}")).unwrap();
    assert_eq!(
        config.to_string(),
        "TLS 1.2 and 1.3, client certificates required and verified, 1 user"
    );
}

#[test]
fn an_empty_file_asks_for_nothing() {
    for text in [
        "",
        "# nothing\n",
        "tls_server_config:\n",
        "tls_server_config: {}\n",
        "basic_auth_users: {}\n",
    ] {
        assert_eq!(load(&folder(), text).unwrap().to_string(), "no TLS, no users", "{text:?}");
    }
}

#[test]
fn certificates_and_keys_can_stand_in_the_file_itself() {
    let folder = folder();
    let pem = |name| fs::read_to_string(folder.path().join(name)).unwrap().replace('\n', "\n    ");
    let text = format!(
        "tls_server_config:\n  cert: |\n    {}\n  key: |\n    {}\n  client_ca: |\n    {}\n  client_auth_type: VerifyClientCertIfGiven\n",
        pem("crt.pem"),
        pem("key.pem"),
        pem("ca.pem")
    );
    assert_eq!(
        load(&folder, &text).unwrap().to_string(),
        "TLS 1.2 and 1.3, client certificates verified if given, no users"
    );
}

/// Lines of `tls_server_config`, and what is said of them.
const OF_TLS: &[(&str, &[&str])] = &[
    ("min_version: TLS10", &["min_version", "\"TLS10\"", "TLS12, TLS13", "insecure"]),
    ("max_version: TLS11", &["max_version", "\"TLS11\"", "TLS12, TLS13", "rustls"]),
    ("min_version: 1.2", &["min_version", "\"1.2\"", "TLS12, TLS13"]),
    ("min_version: TLS13\nmax_version: TLS12", &["min_version", "\"TLS13\"", "above max_version"]),
    ("client_auth_type: Always", &["client_auth_type", "\"Always\"", "RequireAndVerifyClientCert"]),
    ("client_auth_type: RequireAndVerifyClientCert", &["client_ca", "client_ca_file must be set"]),
    (
        "client_ca_file: ca.pem",
        &["client_auth_type", "\"NoClientCert\"", "RequireAndVerifyClientCert"],
    ),
    ("client_allowed_sans: [a]", &["client_auth_type", "\"NoClientCert\"", "client_allowed_sans"]),
    (
        "client_auth_type: RequireAnyClientCert\nclient_ca_file: empty.pem",
        &["client_ca_file", "empty.pem", "BEGIN CERTIFICATE"],
    ),
    (
        "cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]",
        &[
            "cipher_suites[0]",
            "TLS_RSA_WITH_RC4_128_SHA",
            "insecure",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ],
    ),
    (
        "cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]",
        &["cipher_suites[1]", "CBC"],
    ),
    ("cipher_suites: [TLS_FOO]", &["cipher_suites[0]", "\"TLS_FOO\"", "must be one of"]),
    (
        "max_version: TLS12\ncipher_suites: [TLS_AES_128_GCM_SHA256]",
        &["cipher_suites", "no suite of TLS 1.2"],
    ),
    (
        "curve_preferences: [CurveP521]",
        &["curve_preferences[0]", "\"CurveP521\"", "not implement P-521", "X25519"],
    ),
    ("cert: x", &["tls_server_config.cert", "cert_file are both set"]),
    ("cert_fil: x", &["cert_fil", "did you mean cert_file?"]),
    ("cipher_suites: TLS_FOO", &["cipher_suites", "\"TLS_FOO\"", "a list"]),
    ("prefer_server_cipher_suites: 3", &["prefer_server_cipher_suites", "is 3", "true or false"]),
];

/// Whole files, and what is said of them.
const WHOLE: &[(&str, &[&str])] = &[
    (
        "tls_server_config:\n  min_version: TLS12\n",
        &["cert or cert_file must be set", "key or key_file must be set"],
    ),
    (
        "tls_server_config:\n  cert_file: none.pem\n  key_file: key.pem\n",
        &["cert_file", "none.pem", "must be a readable file: No such file"],
    ),
    ("tls_server_config:\n  cert_file: .\n  key_file: key.pem\n", &["cert_file", "not a file"]),
    (
        "tls_server_config:\n  cert_file: broken.pem\n  key_file: key.pem\n",
        &["cert_file", "broken.pem", "base64"],
    ),
    (
        "tls_server_config:\n  cert_file: key.pem\n  key_file: key.pem\n",
        &["cert_file", "key.pem", "BEGIN CERTIFICATE"],
    ),
    (
        "tls_server_config:\n  cert_file: crt.pem\n  key_file: crt.pem\n",
        &["key_file", "crt.pem", "BEGIN PRIVATE KEY"],
    ),
    (
        "tls_server_config:\n  cert_file: crt.pem\n  key_file: locked.pem\n",
        &["key_file", "locked.pem", "passphrase"],
    ),
    (
        "tls_server_config:\n  cert_file: crt.pem\n  key_file: other.pem\n",
        &["tls_server_config", "they are not a pair"],
    ),
    ("tls_server_config: yes\n", &["tls_server_config", "section"]),
    (
        "users: {}\n",
        &["users", "tls_server_config, http_server_config, basic_auth_users, rate_limit"],
    ),
    (
        "basic_auth_users:\n  alice: hunter2\n",
        &["basic_auth_users.alice", "not a bcrypt hash", "$2y$10$"],
    ),
    ("basic_auth_users:\n  \"a:b\": x\n", &["basic_auth_users.a:b", "without :"]),
    ("basic_auth_users: [alice]\n", &["basic_auth_users", "section"]),
    (
        "basic_auth_users:\n  a: $2y$31$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG\n",
        &["basic_auth_users.a", "cost 31", "from 4 to 18"],
    ),
    (
        "http_server_config:\n  headers:\n    Server: x\n",
        &["http_server_config.headers", "\"Server\"", "X-Frame-Options"],
    ),
    (
        "http_server_config:\n  headers:\n    X-Frame-Options: allow\n",
        &["X-Frame-Options", "\"allow\"", "deny or sameorigin"],
    ),
    (
        "http_server_config:\n  headers:\n    Content-Security-Policy: \"a\\nb\"\n",
        &["Content-Security-Policy", "one line"],
    ),
    ("http_server_config:\n  http2: maybe\n", &["http2", "\"maybe\"", "true or false"]),
    (
        "rate_limit:\n  interval: soon\n  burst: 1\n",
        &["rate_limit.interval", "\"soon\"", "such as 1s"],
    ),
    ("rate_limit:\n  interval: 1s\n", &["rate_limit.burst", "is 0", "from 1 to"]),
    ("rate_limit:\n  interval: 1s\n  burst: -1\n", &["rate_limit.burst", "-1"]),
    ("a: [\n", &["not valid YAML"]),
    ("rate_limit: {}\nrate_limit: {}\n", &["rate_limit", "twice"]),
];

#[test]
fn every_refusal_names_file_key_value_and_what_is_accepted() {
    let folder = folder();
    let of_tls = OF_TLS.iter().map(|(lines, parts)| (tls(lines), *parts));
    let whole = WHOLE.iter().map(|(text, parts)| ((*text).to_owned(), *parts));
    for (text, parts) in of_tls.chain(whole) {
        let message = refusal(&folder, &text);
        for part in parts.iter().chain(&["web.yml:"]) {
            assert!(message.contains(part), "{part:?} is missing in {message:?} of\n{text}");
        }
    }
}

#[test]
fn an_unknown_key_hides_no_other_error() {
    let text = "foo: 1\ntls_server_config:\n  cert_file: none.pem\n  key_file: none.key\nbasic_auth_users:\n  me: x\n";
    let error = load(&folder(), text).unwrap_err().to_string();
    for part in ["foo", "none.pem", "none.key", "basic_auth_users.me"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let error =
        load(&folder(), "tls_server_config:\n  cret_file: a.pem\n").unwrap_err().to_string();
    assert!(!error.contains("must be set"), "follows from the other: {error}");
}

#[test]
fn no_refusal_shows_a_password_or_key() {
    let folder = folder();
    for text in [
        "basic_auth_users:\n  alice: hunter2\n".to_owned(),
        "tls_server_config:\n  cert_file: crt.pem\n  key: hunter2\n".to_owned(),
        "tls_server_config:\n  cert_file: crt.pem\n  key: |\n    -----BEGIN PRIVATE KEY-----\n    hunter2!\n    -----END PRIVATE KEY-----\n".to_owned(),
    ] {
        let message = refusal(&folder, &text);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let message = WebConfig::load(Path::new("/nonexistent/web.yml")).unwrap_err().to_string();
    assert!(
        message.contains("/nonexistent/web.yml") && message.contains("No such file"),
        "{message}"
    );
}

#[test]
fn what_protects_is_not_given_up_while_it_runs() {
    let folder = folder();
    let open = WebConfig::default();
    let users = load(&folder, &format!("basic_auth_users:\n  a: {HASH}\n")).unwrap();
    let encrypted = load(&folder, &tls("")).unwrap();
    let verified =
        load(&folder, &tls("client_auth_type: RequireAndVerifyClientCert\nclient_ca_file: ca.pem"))
            .unwrap();
    for (before, after) in
        [(&users, &open), (&encrypted, &open), (&verified, &encrypted), (&encrypted, &users)]
    {
        assert!(before.lost_with(after).is_some(), "{before} to {after}");
    }
    for (before, after) in
        [(&open, &users), (&open, &encrypted), (&encrypted, &verified), (&open, &open)]
    {
        assert_eq!(before.lost_with(after), None, "{before} to {after}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_taken_or_refused(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let from_bytes = String::from_utf8_lossy(&bytes);
        let _ = WebConfig::parse(&from_bytes, Path::new("/nonexistent"), &mut Vec::new());
        let _ = WebConfig::parse(&text, Path::new("/nonexistent"), &mut Vec::new());
    }

    #[test]
    fn anything_like_a_configuration_is_taken_or_refused(
        key in prop::sample::select(vec![
            "cert", "key", "client_ca", "cert_file", "client_auth_type", "client_allowed_sans", "min_version",
            "cipher_suites", "curve_preferences", "prefer_server_cipher_suites",
        ]),
        value in "[\\[\\]{}:,a-zA-Z0-9_$ \\-\\n]{0,40}",
        user in "[a-z:]{0,8}",
        hash in "\\$2[abxy]?\\$[0-9]{0,2}\\$[./A-Za-z0-9]{0,60}",
        interval in "[0-9.]{0,5}[a-z]{0,3}",
    ) {
        let text = format!(
            "tls_server_config:\n  {key}: {value}\nbasic_auth_users:\n  {user}: {hash}\nrate_limit:\n  interval: {interval}\n"
        );
        let _ = WebConfig::parse(&text, Path::new("/nonexistent"), &mut Vec::new());
        let text = format!("basic_auth_users:\n  u: {hash}\nrate_limit:\n  interval: {interval}\n  burst: 1\n");
        let _ = WebConfig::parse(&text, Path::new("/nonexistent"), &mut Vec::new());
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let folder = folder();
    let file = folder.path().join("web.yml");
    for bytes in [&b"\xff\xfe"[..], &[0; 64], &vec![b'['; 100_000], &vec![b' '; (1 << 20) + 1]] {
        fs::write(&file, bytes).unwrap();
        assert!(WebConfig::load(&file).is_err(), "{:?}", &bytes[..2]);
    }
}
