//! Several nodes asked at once: one is slow, one refuses, one has a wrong clock, one speaks TLS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_http::client::{Address, Client, Identity, connector};
use gpucause_investigations::fleet::{Limits, chains, flights, gather};
use gpucause_investigations::query::{self, tables};
use gpucause_trace::recording::Recording as _;
use rusqlite::{Connection, MAIN_DB};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::fake_node::{Nature, start};

/// Returns the configuration of a server that requires certificates of its clients.
fn tls(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let own = CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(own.clone()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(vec![own], key);
    Arc::new(config.unwrap())
}

fn plain(port: u16) -> Client {
    let url = format!("http://127.0.0.1:{port}");
    Client::new(Address::parse(&url, [80, 443]).unwrap(), None).unwrap()
}

#[tokio::test]
async fn every_node_is_reported_whatever_becomes_of_the_others() {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("own.crt"), folder.path().join("own.key"));
    std::fs::write(&cert, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();

    let slow = Nature { delay: Duration::from_secs(60), ..Nature::default() };
    let slow = start("slow", slow).await;
    let refusing = start("refusing", Nature { refuses: true, ..Nature::default() }).await;
    let ahead = start("ahead", Nature { ahead: 5.0, ..Nature::default() }).await;
    let encrypted = Nature { tls: Some(tls(&own.cert, &own.signing_key)), ..Nature::default() };
    let encrypted = start("encrypted", encrypted).await;

    let over_tls = |identity| {
        let tls = connector(Some(&cert), identity).map_err(Arc::new);
        let url = format!("https://localhost:{encrypted}");
        Client::over(Address::parse(&url, [80, 443]).unwrap(), &tls).unwrap()
    };
    let known = over_tls(Some(Identity { certificate: &cert, key: &key }));
    let nodes = [plain(slow), plain(refusing), plain(ahead), known, over_tls(None), plain(1)];
    let limits = Limits { deadline: Duration::from_secs(5), ..Limits::default() };
    let begin = Instant::now();
    let reported = chains(&nodes, limits).await;
    assert!(begin.elapsed() < Duration::from_secs(30), "one slow node holds up the others");

    let names: Vec<_> = reported.answers.iter().map(|own| own.chains.node.as_str()).collect();
    assert_eq!(names, ["ahead", "encrypted"]);
    let clocks: Vec<_> = reported.answers.iter().map(|own| own.clock.unwrap()).collect();
    let off = |at: usize, truth: f64| {
        (clocks[at].ahead_seconds - truth).abs() <= clocks[at].uncertainty_seconds + 1e-3
    };
    assert!(off(0, 5.0) && off(1, 0.0), "{clocks:?}");
    assert!(clocks[0].is_noteworthy(), "{clocks:?}");
    assert_eq!(reported.clock_warnings().len(), 1, "{:?}", reported.clock_warnings());
    let failures: Vec<_> = reported.failures.iter().map(|own| own.error.to_string()).collect();
    for (failure, part) in failures.iter().zip([
        "did not answer within 5s",
        "not for you",
        "localhost",
        "cannot be reached",
    ]) {
        assert!(failure.contains(part), "{part} is not in {failure}");
    }
    assert_eq!(failures.len(), 4, "{failures:?}");
}

#[tokio::test]
async fn what_all_nodes_send_and_the_time_for_all_are_bounded_and_who_is_left_out_is_named() {
    let [one, other] =
        [start("one", Nature::default()).await, start("other", Nature::default()).await];
    let slow = Nature { delay: Duration::from_secs(60), ..Nature::default() };
    let slow = start("slow", slow).await;
    let failures = async |nodes: &[Client], limits| {
        let reported = chains(nodes, limits).await;
        let failed = reported.failures.iter();
        (reported.answers.len(), failed.map(|own| own.error.to_string()).collect::<Vec<_>>())
    };
    // Each answer has some hundred bytes.
    for (bytes, answers) in [(1, 0), (200, 1), (1 << 20, 2)] {
        let limits = Limits { bytes, ..Limits::default() };
        let (answered, failed) = failures(&[plain(one), plain(other)], limits).await;
        assert_eq!((answered, failed.len()), (answers, 2 - answers), "{failed:?}");
        assert!(failed.iter().all(|why| why.contains("does not fit into memory")), "{failed:?}");
    }
    let in_all = Duration::from_millis(500);
    let limits = Limits { parallel: 1, in_all, ..Limits::default() };
    let (answered, failed) = failures(&[plain(one), plain(slow), plain(other)], limits).await;
    assert_eq!((answered, failed.len()), (1, 2), "{failed:?}");
    for (why, port) in failed.iter().zip([slow, other]) {
        assert!(why.contains(&port.to_string()) && why.contains("500ms for all nodes"), "{why}");
    }
}

#[tokio::test]
async fn a_node_that_calls_itself_as_another_would_be_called_is_not_counted_as_that() {
    let [one, other] =
        [start("gpu", Nature::default()).await, start("gpu", Nature::default()).await];
    let name: &'static str = Box::leak(format!("gpu (http://127.0.0.1:{other})").into_boxed_str());
    let nodes = [start(name, Nature::default()).await, one, other].map(plain);
    let expected = [name, "gpu", &format!("{name} (http://127.0.0.1:{other})")];
    let live = gather(&nodes, Limits::default()).await.unwrap().recording().unwrap();
    let names: Vec<_> = live.nodes().iter().map(|own| &*own.name).collect();
    assert_eq!(names, expected);
    let sql = "SELECT count(DISTINCT name) FROM nodes";
    let (tables, _) = tables(sql, &nodes, Limits::default()).await.unwrap();
    let answer = tables.query(&query::QueryLimits::default()).unwrap();
    assert_eq!(serde_json::to_value(&answer.rows[0]).unwrap(), serde_json::json!([3]));
}

fn with_damaged_accounts() -> &'static [u8] {
    let own = Nature { processes: vec![ProcessSnapshot::default()], ..Nature::default() };
    let bytes = own.snapshot("damaged");
    let mut database = Connection::open_in_memory().unwrap();
    database.deserialize_read_exact(MAIN_DB, &bytes[..], bytes.len(), false).unwrap();
    database.execute("UPDATE looks SET accounts = x'00'", []).unwrap();
    Vec::leak(database.serialize(MAIN_DB).unwrap().to_vec())
}

#[tokio::test]
async fn a_snapshot_that_is_damaged_is_a_failure_of_its_node_alone() {
    let ahead = start("ahead", Nature { ahead: 5.0, ..Nature::default() }).await;
    let damaged = [
        &b"no file"[..],
        b"SQLite format 3\0 and nothing else",
        b"",
        // Found while it is copied.
        with_damaged_accounts(),
    ];
    let mut nodes = vec![plain(start("good", Nature::default()).await), plain(ahead)];
    for bytes in damaged {
        let nature = Nature { damaged: Some(bytes), ..Nature::default() };
        nodes.push(plain(start("damaged", nature).await));
    }
    let gathered = gather(&nodes, Limits::default()).await.unwrap();
    let failures: Vec<_> =
        gathered.answer.failures.iter().map(|own| own.error.to_string()).collect();
    assert_eq!(failures.len(), damaged.len(), "{failures:?}");
    assert!(
        failures.iter().all(|why| why.contains("snapshot of http://127.0.0.1:")),
        "{failures:?}"
    );
    let live = gathered.recording().unwrap();
    let [good, ahead] = live.nodes() else { panic!("{:?}", live.nodes()) };
    assert_eq!((&*good.name, good.clock_ahead_ns), ("good", Some(0)));
    let seconds = ahead.clock_ahead_ns.unwrap() as f64 / 1e9;
    assert!((seconds - 5.0).abs() < 1.0, "{seconds}");
}

#[tokio::test]
async fn records_that_nodes_do_not_send_are_waited_for_no_longer_than_the_time_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let node = start("never", Nature::default()).await;
    let limits = Limits { in_all: Duration::from_secs(3), ..Limits::default() };
    let begin = Instant::now();
    let fetched = flights(&[plain(node)], limits, &folder.path().join("job.db")).await;
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    let why = fetched.failures[0].error.to_string();
    assert!(fetched.flights.is_empty() && why.contains("3s for all nodes"), "{why}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
