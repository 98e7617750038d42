//! Chains as log records at a receiver that is away, refuses, is slow, or answers what it should not: each record arrives, and
//! none twice but where a connection breaks between a request and its answer; those that do have the same id.

mod receiver;
mod tls;

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gpucause::otlp::{ChainLog, OtlpCounts, OtlpSettings, Pace};
use gpucause_engine::chain::Chain;
use gpucause_fixture::chain::chain;
use gpucause_fixture::poll::until;
use receiver::{Answer, Receiver, closed_port};
use tracing::Dispatch;
use tracing::dispatcher::with_default;

const PACE: Pace =
    Pace { send_every: Duration::from_millis(10), timeout: Duration::from_millis(700) };

/// A log that sends until it is dropped.
struct Running {
    log: Arc<ChainLog>,
    sender: Option<JoinHandle<()>>,
    next: usize,
}

fn settings(url: &str) -> OtlpSettings {
    OtlpSettings { endpoint: Some(url.parse().unwrap()), ..OtlpSettings::default() }
}

impl Running {
    fn start(spool: &Path, settings: &OtlpSettings) -> Self {
        Self::start_with(spool, settings, Dispatch::none())
    }

    /// It logs to `logs`.
    fn start_with(spool: &Path, settings: &OtlpSettings, logs: Dispatch) -> Self {
        let log = ChainLog::new("gpu-1".to_owned(), Some(spool.to_owned())).with_pace(PACE);
        let log = Arc::new(log);
        with_default(&logs, || log.configure(settings));
        let sending = Arc::clone(&log);
        let sender = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            with_default(&logs, || runtime.unwrap().block_on(sending.run()));
        });
        Self { log, sender: Some(sender), next: 1 }
    }

    /// Logs so many new chains, and returns the ids of their records.
    fn log(&mut self, chains: usize) -> Vec<String> {
        let names: Vec<_> = (self.next..self.next + chains).map(|n| format!("c{n}")).collect();
        self.next += chains;
        let chains: Vec<Chain> = names.iter().map(|name| chain(name)).collect();
        self.log.record_at(&chains, 20.0, |_| None);
        names.iter().map(|name| format!("gpu-1/{name}/1")).collect()
    }

    fn counts(&self) -> OtlpCounts {
        self.log.counts().unwrap()
    }

    fn failures(&self, reason: &str) -> u64 {
        self.counts().failures.iter().find(|(own, _)| *own == reason).unwrap().1
    }

    /// Waits until nothing waits, and checks that as much was sent.
    fn until_sent(&self, sent: usize) {
        until("all are sent", || (self.counts().queued_records == 0).then_some(()));
        // The queue is counted before what left it.
        until("the count", || (self.counts().sent == sent as u64).then_some(()));
    }

    /// Stops the sender as `systemctl stop` does.
    fn stop(mut self) -> OtlpCounts {
        self.log.close();
        self.sender.take().unwrap().join().unwrap();
        self.counts()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.log.close();
    }
}

#[test]
fn records_of_an_outage_arrive_once_and_in_order() {
    let (spool, address) = (tempfile::tempdir().unwrap(), closed_port());
    let mut running = Running::start(spool.path(), &settings(&format!("http://{address}")));
    let mut expected = running.log(30);
    until("a refused connection", || (running.failures("unreachable") > 0).then_some(()));
    expected.extend(running.log(30));
    assert_eq!(running.counts().queued_records, 60);
    let receiver = Receiver::on(TcpListener::bind(address).unwrap(), None, &[]);
    running.until_sent(60);
    expected.extend(running.log(1));
    running.until_sent(61);
    assert_eq!(receiver.taken(), expected);
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 1, "the lock alone is left");
}

#[test]
fn every_failure_costs_nothing_but_time() {
    let failing = [
        (Answer::Status("503 Service Unavailable"), "throttled"),
        (Answer::Status("502 Bad Gateway"), "status"),
        (Answer::Status("401 Unauthorized"), "status"),
        (Answer::Status("302 Found\r\nLocation: http://localhost/"), "status"),
        (Answer::Status("400 Bad Request\r\nContent-Type: text/plain"), "status"),
        (Answer::Page, "malformed"),
        (Answer::Endless, "malformed"),
        (Answer::Silence, "slow"),
        (Answer::HangUp, "broken"),
    ];
    let spool = tempfile::tempdir().unwrap();
    for (answer, reason) in failing {
        let receiver = Receiver::start(std::slice::from_ref(&answer));
        let mut running = Running::start(&spool.path().join(reason), &settings(&receiver.url()));
        let expected = running.log(3);
        running.until_sent(3);
        assert_eq!((receiver.taken(), running.failures(reason)), (expected, 1), "{answer:?}");
        assert_eq!(running.counts().lost.map(|(_, records)| records), [0; 4], "{answer:?}");
    }
}

#[test]
fn an_endpoint_that_asks_for_time_gets_it() {
    let receiver = Receiver::start(&[Answer::Status("503 Busy\r\nRetry-After: 2")]);
    let spool = tempfile::tempdir().unwrap();
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    let expected = running.log(2);
    running.until_sent(2);
    let requests = receiver.received.lock().unwrap().requests.clone();
    let pause = requests[1].duration_since(requests[0]);
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
    assert_eq!((receiver.taken(), requests.len()), (expected, 2));
}

#[test]
fn records_that_are_rejected_are_counted_and_not_sent_again() {
    let receiver = Receiver::start(&[Answer::Partial(2)]);
    let spool = tempfile::tempdir().unwrap();
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    let expected = running.log(5);
    running.until_sent(3);
    assert_eq!(receiver.taken(), expected[2..]);
    let rejected = running.counts().lost.into_iter().find(|(reason, _)| *reason == "rejected");
    assert_eq!(rejected, Some(("rejected", 2)));
    assert_eq!(receiver.received.lock().unwrap().requests.len(), 1);
}

#[test]
fn a_request_that_is_too_large_is_sent_in_parts() {
    let too_large = Answer::Status("413 Payload Too Large");
    let receiver = Receiver::start(&[too_large.clone(), too_large]);
    let spool = tempfile::tempdir().unwrap();
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    let expected = running.log(9);
    running.until_sent(9);
    assert_eq!(receiver.taken(), expected);
    assert_eq!(running.counts().lost.map(|(_, records)| records), [0; 4]);
}

#[test]
fn what_could_not_be_sent_makes_room_for_newer_records() {
    let (spool, address) = (tempfile::tempdir().unwrap(), closed_port());
    let away = settings(&format!("http://{address}"));
    let away = OtlpSettings { spool_bytes: 300 << 10, ..away };
    let mut running = Running::start(spool.path(), &away);
    let oldest = running.log(1);
    until("a refused connection", || (running.failures("unreachable") > 0).then_some(()));
    let newest = running.log(2000);
    let receiver = Receiver::on(TcpListener::bind(address).unwrap(), None, &[]);
    until("all are sent", || (running.counts().queued_records == 0).then_some(()));
    let taken = receiver.taken();
    assert!(!taken.contains(&oldest[0]), "the oldest is lost first");
    assert_eq!(taken.last(), newest.last());
}

/// Collects logs.
fn logs() -> (Arc<Mutex<Vec<u8>>>, Dispatch) {
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let written = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&written);
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || Shared(Arc::clone(&writer))).finish();
    (written, Dispatch::new(subscriber))
}

#[test]
fn an_endpoint_that_is_removed_does_not_take_chains_again() {
    let (written, logs) = logs();
    let spool = tempfile::tempdir().unwrap();
    let away = settings(&format!("http://{}", closed_port()));
    let mut running = Running::start_with(spool.path(), &away, logs);
    let _ = running.log(1);
    until("a refused connection", || (running.failures("unreachable") > 0).then_some(()));
    running.log.configure(&OtlpSettings::default());
    running.stop();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    assert!(written.contains("takes none") && !written.contains("again"), "{written}");
}

#[test]
fn headers_without_tls_are_warned_of_once() {
    let (written, logs) = logs();
    let receiver = Receiver::on(TcpListener::bind("0.0.0.0:0").unwrap(), None, &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("headers");
    std::fs::write(&file, "Authorization: Bearer me\n").unwrap();
    let settings = OtlpSettings { headers_file: Some(file), ..settings(&receiver.url()) };
    let mut running = Running::start_with(&folder.path().join("spool"), &settings, logs);
    for sent in 1..=3 {
        let _ = running.log(1);
        running.until_sent(sent);
    }
    running.stop();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    assert_eq!(written.matches("without TLS").count(), 1, "{written}");
}

#[test]
fn files_without_an_endpoint_are_warned_of_once() {
    let (written, logs) = logs();
    let log = ChainLog::new("gpu-1".to_owned(), None);
    let unused = OtlpSettings { headers_file: Some("headers".into()), ..OtlpSettings::default() };
    with_default(&logs, || {
        log.configure(&OtlpSettings::default());
        log.configure(&unused);
        log.configure(&unused);
    });
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    assert_eq!(written.matches("not used without otlp.endpoint").count(), 1, "{written}");
    assert_eq!(written.lines().count(), 1, "{written}");
}

#[test]
fn a_record_that_comes_twice_has_the_same_id() {
    let receiver = Receiver::start(&[Answer::TakeAndHangUp]);
    let spool = tempfile::tempdir().unwrap();
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    let expected = running.log(2);
    running.until_sent(2);
    assert_eq!(receiver.taken(), [expected.clone(), expected].concat());
}

#[test]
fn records_of_a_daemon_that_was_killed_are_sent_by_the_next_one() {
    let spool = tempfile::tempdir().unwrap();
    let away = settings(&format!("http://{}", closed_port()));
    let log = ChainLog::new("gpu-1".to_owned(), Some(spool.path().to_owned()));
    log.configure(&away);
    log.record_at(&[chain("c1"), chain("c2")], 20.0, |_| None);
    drop(log);
    let receiver = Receiver::start(&[]);
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    running.next = 3;
    let _ = running.log(1);
    running.until_sent(3);
    assert_eq!(receiver.taken(), ["gpu-1/c1/1", "gpu-1/c2/1", "gpu-1/c3/1"]);
}

#[test]
fn a_daemon_that_ends_sends_what_waits() {
    let receiver = Receiver::start(&[]);
    let spool = tempfile::tempdir().unwrap();
    let mut running = Running::start(spool.path(), &settings(&receiver.url()));
    let expected = running.log(2);
    let counts = running.stop();
    assert_eq!((receiver.taken(), counts.queued_records), (expected, 0));
}

#[test]
fn another_endpoint_gets_what_waits_at_once() {
    let spool = tempfile::tempdir().unwrap();
    let away = settings(&format!("http://{}", closed_port()));
    let mut running = Running::start(spool.path(), &away);
    let expected = running.log(2);
    until("failures", || (running.failures("unreachable") > 1).then_some(()));
    let receiver = Receiver::start(&[]);
    running.log.configure(&settings(&receiver.url()));
    running.until_sent(2);
    assert_eq!(receiver.taken(), expected);
}

#[test]
fn headers_come_from_a_file_that_is_read_again_for_each_attempt() {
    // Several, so that the file is written before the last of them.
    let refusals = vec![Answer::Status("401 Unauthorized"); 3];
    let receiver = Receiver::start(&refusals);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("headers");
    std::fs::write(&file, "Authorization: Bearer old\n").unwrap();
    let settings = OtlpSettings { headers_file: Some(file.clone()), ..settings(&receiver.url()) };
    let mut running = Running::start(&folder.path().join("spool"), &settings);
    let _ = running.log(1);
    until("a refused request", || (running.failures("status") > 0).then_some(()));
    std::fs::write(&file, "Authorization: Bearer new\n").unwrap();
    running.until_sent(1);
    let heads = receiver.received.lock().unwrap().heads.clone();
    let has = |head: &String, token: &str| {
        head.contains(&format!("\r\nauthorization: bearer {token}\r\n"))
    };
    assert!(has(&heads[0], "old") && has(heads.last().unwrap(), "new"), "{heads:?}");
}
