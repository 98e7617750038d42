use gpucause_observe::process_details::ProcessDetails;

use super::*;
use gpucause_abi::snapshot::{Comm, ProcessSnapshot};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::peers::{PeerJob, PeerRank, RankPlace};
use gpucause_investigations::prometheus::samples;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

fn process(id: u32, pid: u32, rank: (u32, u32)) -> ProcessSnapshot {
    let comm = Comm(*b"train\0\0\0\0\0\0\0\0\0\0\0");
    let mut process = ProcessSnapshot::new(ProcId(id), Tgid(pid), comm);
    process.rank = Some(rank);
    process
}

fn details(slurm_job: &str, processes: &[ProcessSnapshot]) -> Details {
    let details = ProcessDetails { slurm_job: slurm_job.into(), ..ProcessDetails::default() };
    let details = Arc::new(details);
    processes.iter().map(|process| (process.id, Arc::clone(&details))).collect()
}

fn jobs(processes: &[ProcessSnapshot]) -> Vec<Job> {
    job::across_hosts(processes, &details("42", processes))
}

/// A series of the answer, as JSON.
fn series(labels: [&str; 4], value: &str) -> String {
    let [instance, pid, rank, more] = labels;
    let instance = serde_json::json!(instance);
    format!(
        r#"{{"metric":{{"__name__":"rank:gpucause_nccl_wait:least2_1m","job":"gpucause","instance":{instance},"pid":"{pid}","rank":"{rank}","comm":"train","slurm_job":"42","world_size":"4"{more}}},"value":[1.5,"{value}"]}}"#
    )
}

fn answer(series: &[String]) -> String {
    let all = series.join(",");
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{all}]}}}}"#)
}

/// Returns the series of this host's rank where ranks of the job are not scraped.
fn own_alone() -> String {
    let [least, all, _] = RULES;
    series(HERE, "0.5").replace(least, all)
}

const HERE: [&str; 4] = ["gpu-0:9400", "7", "0", ""];
const THERE: [&str; 4] = ["gpu-1:9400", "8", "2", ""];

fn compared(series: &[String]) -> Vec<PeerJob> {
    let samples = samples(answer(series).as_bytes()).unwrap();
    answer::jobs(&fuzzing::asked(), &samples).unwrap().into_iter().flatten().collect()
}

#[test]
fn jobs_are_asked_about_while_some_of_their_ranks_are_elsewhere() {
    let of_two = [process(1, 7, (0, 2)), process(2, 8, (1, 2))];
    assert_eq!(jobs(&of_two), []);
    let of_four = [process(1, 7, (0, 4)), process(2, 8, (1, 4))];
    let found = jobs(&of_four);
    let [job] = &*found else { panic!("{found:?}") };
    assert_eq!(
        (&*job.comm, &*job.slurm_job, job.world_size, job.ranks.len()),
        ("train", "42", 4, 2)
    );
    let twice = [process(1, 7, (0, 4)), process(2, 8, (0, 4))];
    assert_eq!(jobs(&twice), [], "two jobs, and nobody knows which is which");
    let mut ended = process(1, 7, (0, 4));
    ended.ended = Some(gpucause_abi::Nanos(1));
    assert_eq!(jobs(&[ended]), []);
    let many: Vec<_> = (0..100).map(|id| process(id, id, (0, 4 + id))).collect();
    assert_eq!(jobs(&many).len(), 8);
}

#[test]
fn names_of_a_job_stay_within_their_strings_in_the_question() {
    let mut job = jobs(&[process(1, 7, (0, 4))]).remove(0);
    "a\"} or up{x=\"\\\n".clone_into(&mut job.comm);
    let asked = job::query(&[job]);
    assert!(
        asked.contains(r#"{comm="a\"} or up{x=\"\\\n",slurm_job="42",world_size="4",pid=~"7"}"#),
        "{asked}"
    );
}

#[test]
fn the_question_is_the_one_that_promtool_tests() {
    let tests = include_str!("../../../rules/tests/peers_test.yaml");
    assert!(tests.contains(&job::query(&fuzzing::asked())));
}

#[test]
fn ranks_are_here_by_pid_and_number_and_elsewhere_by_instance() {
    let found = compared(&[series(HERE, "0.5"), series(THERE, "0.25"), series(HERE, "0.5")]);
    let here = RankPlace::Here(ProcId(1));
    let there = RankPlace::Elsewhere("gpu-1:9400".into());
    let ranks = vec![
        PeerRank { rank: 0, waiting_share: 0.5, place: here },
        PeerRank { rank: 2, waiting_share: 0.25, place: there },
    ];
    assert_eq!(found, [PeerJob { world_size: 4, ranks }]);
}

#[test]
fn a_job_is_left_out_when_something_about_it_cannot_be() {
    let here = || series(HERE, "0.5");
    let with = |labels: [&str; 4], value: &str| vec![here(), series(labels, value)];
    for wrong in [
        with(THERE, "NaN"),
        with(THERE, "-0.1"),
        with(THERE, "1.06"),
        with(THERE, "+Inf"),
        with(["gpu-1:9400", "8", "4", ""], "0.1"),
        with(["gpu-1:9400", "8", "-1", ""], "0.1"),
        with(["gpu-1:9400", "8", "x", ""], "0.1"),
        with(["gpu-1:9400", "8", "0", ""], "0.1"),
        with(["gpu-1:9400", "7", "0", ""], "0.1"),
        with(["gpu-0:9400", "9", "1", ""], "0.1"),
        vec![here(), series(THERE, "0.1"), series(["gpu-2:9400", "8", "2", ""], "0.2")],
        vec![series(THERE, "0.1")],
        vec![here(), series(["gpu-0:9400", "7", "0", r#","namespace":"other""#], "0.1")],
        vec![],
        vec![own_alone()],
    ] {
        assert_eq!(compared(&wrong), [], "{:?}", &wrong[..wrong.len().min(3)]);
    }
}

#[test]
fn a_job_is_left_out_when_a_rank_of_this_host_is_missing() {
    let mut asked = fuzzing::asked();
    asked[0].ranks.push(job::LocalRank { process: ProcId(2), pid: 9, rank: 1 });
    let found = |series: &[String]| {
        answer::jobs(&asked, &samples(answer(series).as_bytes()).unwrap()).unwrap().remove(0)
    };
    assert_eq!(found(&[series(HERE, "0.5"), series(THERE, "0.1")]), None);
    let second = series(["gpu-0:9400", "9", "1", ""], "0.5");
    assert_eq!(found(&[series(HERE, "0.5"), series(THERE, "0.1"), second]).unwrap().ranks.len(), 3);
}

#[test]
fn an_answer_about_more_than_was_asked_is_refused() {
    let many: Vec<_> = (0..2_049).map(|_| series(HERE, "0.5")).collect();
    let samples = samples(answer(&many).as_bytes()).unwrap();
    let error = answer::jobs(&fuzzing::asked(), &samples).unwrap_err();
    assert!(error.contains("2049 series"), "{error}");
    assert!(answer::jobs(&fuzzing::asked(), &samples[1..]).is_ok());
}

#[test]
fn a_job_of_the_same_name_in_another_namespace_is_another_one() {
    let other = ["gpu-1:9400", "8", "2", r#","namespace":"other""#];
    let found = compared(&[series(HERE, "0.5"), series(other, "0.1")]);
    assert_eq!(found[0].ranks.len(), 1);
}

#[test]
fn the_name_of_a_host_is_shown_short_and_without_what_does_not_show() {
    let name = |instance: &str| {
        let found = compared(&[series(HERE, "0.5"), series([instance, "8", "2", ""], "0.1")]);
        found[0].ranks[1].place.clone()
    };
    assert_eq!(name("a\u{7}\u{202e}b"), RankPlace::Elsewhere("a??b".into()));
    assert_eq!(name(""), RankPlace::Elsewhere("an unnamed host".into()));
    assert_eq!(name(&"x".repeat(9_999)), RankPlace::Elsewhere("x".repeat(128)));
}

/// Answers on a port of its own until the test ends; passes on the first line of each request.
fn prometheus(
    respond: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            let mut part = [0; 4096];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..read]);
            }
            let text = String::from_utf8(request).unwrap();
            // A test or a client that has gone is no failure.
            drop(asked.send(text.lines().next().unwrap().to_owned()));
            drop(respond(&mut stream));
        }
    });
    (address, requests)
}

fn page(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn asking(address: SocketAddr) -> PeerRanks {
    let peers = PeerRanks::default();
    let url = Some(format!("http://{address}").parse().unwrap());
    peers.configure(&PeersSettings { url, ..PeersSettings::default() });
    peers.state().timeout = Duration::from_millis(500);
    update(&peers, (0, 4));
    peers
}

/// This host has a rank.
fn update(peers: &PeerRanks, rank: (u32, u32)) {
    let processes = vec![process(1, 7, rank)];
    let details = details("42", &processes);
    peers.update(&Snapshot { processes, ..Snapshot::default() }, &details);
}

fn ask(peers: &PeerRanks) -> PeersState {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(peers.ask());
    peers.counts(Instant::now()).unwrap()
}

#[test]
fn an_answer_is_used_until_it_is_old_and_a_failure_changes_nothing() {
    let texts = [answer(&[series(HERE, "0.5"), series(THERE, "0.25")]), "no JSON".to_owned()];
    let left = Mutex::new(texts.into_iter());
    let (address, requests) = prometheus(move |stream| page(stream, &left.lock().next().unwrap()));
    let peers = asking(address);
    assert_eq!(ask(&peers).answered, 1);
    assert!(
        requests
            .recv()
            .unwrap()
            .starts_with("GET /api/v1/query?query=%28rank%3Agpucause_nccl_wait%3Aleast2_1m%7B")
    );
    let now = Instant::now();
    assert_eq!(peers.known(now).jobs[0].ranks.len(), 2);
    let state = ask(&peers);
    assert_eq!((state.answered, state.failed), (1, 1));
    assert_eq!(peers.known(now + Duration::from_secs(40)).jobs.len(), 1);
    assert!(peers.known(now + Duration::from_secs(40)).age_seconds >= 40.0);
    let old = now + Duration::from_secs(46);
    assert_eq!(peers.known(old), Peers::default());
    assert_eq!(peers.counts(old).unwrap().age, None);
    peers.configure(&PeersSettings::default());
    assert_eq!((peers.known(now), peers.counts(now)), (Peers::default(), None));
}

/// Returns the lines that are logged meanwhile.
fn logged(act: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = std::sync::Mutex::new(file.reopen().unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, act);
    std::fs::read_to_string(file.path()).unwrap()
}

#[test]
fn while_ranks_elsewhere_are_unknown_nothing_counts_as_known_and_a_warning_says_so_once() {
    let (compared, warning) =
        ("are compared by Prometheus", "does not know all ranks of job 42 (train)");
    for unknown in [answer(&[]), answer(&[own_alone()])] {
        let known = answer(&[series(HERE, "0.5"), series(THERE, "0.25")]);
        let texts = Arc::new(Mutex::new(unknown.clone()));
        let served = Arc::clone(&texts);
        let (address, _requests) = prometheus(move |stream| page(stream, &served.lock()));
        let peers = asking(address);
        let ask = |times: u32| {
            logged(|| {
                for _ in 0..times {
                    let state = ask(&peers);
                    assert_eq!((state.failed, state.age), (0, None));
                }
            })
        };
        let begins = ask(UNKNOWN_LOGGED - 1);
        assert_eq!(begins, "", "a job that begins");
        let log = ask(1);
        assert_eq!(log.matches(warning).count(), 1, "{log}");
        assert!(log.contains("it lacks rules/"), "{log}");
        assert_eq!(ask(2 * UNKNOWN_LOGGED), "");
        assert_eq!(peers.known(Instant::now()), Peers::default());
        *texts.lock() = known;
        let log = logged(|| assert!(self::ask(&peers).age.is_some()));
        assert!(log.contains(compared), "{log}");
        *texts.lock() = unknown;
        assert_eq!(ask(2 * UNKNOWN_LOGGED), "", "of this job it was said");
        // A later job of the same name is counted from its own begin.
        let jobs = std::mem::take(&mut peers.state().jobs);
        self::ask(&peers);
        peers.state().jobs = jobs;
        assert_eq!(ask(UNKNOWN_LOGGED - 1), "");
        assert!(ask(1).contains(warning));
    }
}

#[test]
fn settings_that_work_and_are_wrong_are_warned_of_once() {
    let with = |url: &str, file: Option<&str>| PeersSettings {
        url: (!url.is_empty()).then(|| url.parse().unwrap()),
        password_file: file.map(Into::into),
        ca_file: None,
    };
    let peers = PeerRanks::default();
    let warned = |settings: PeersSettings| {
        logged(|| {
            peers.configure(&settings);
            peers.configure(&settings);
        })
    };
    for (url, file, warning) in [
        ("", Some("p"), "not used without peers.url"),
        ("http://me@prometheus", Some("p"), "the password of peers.url is sent in clear text"),
    ] {
        let log = warned(with(url, file));
        assert!(log.lines().count() == 1 && log.contains(warning), "{url}: {log}");
    }
    for (url, file) in [
        ("", None),
        ("http://prometheus", None),
        ("https://me@prometheus", Some("p")),
        ("http://me@localhost", Some("p")),
    ] {
        assert_eq!(warned(with(url, file)), "", "{url}");
    }
}

#[test]
fn nobody_is_asked_while_all_ranks_are_here() {
    let (address, requests) = prometheus(|stream| page(stream, "{}"));
    let peers = asking(address);
    update(&peers, (0, 1));
    assert_eq!(ask(&peers), PeersState::default());
    assert!(requests.try_recv().is_err());
}

#[test]
fn an_answer_that_ends_late_or_never_or_is_of_another_kind_is_a_failure() {
    let endless = |stream: &mut TcpStream| {
        write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            write!(stream, "1000\r\n{}\r\n", "[".repeat(4096))?;
        }
    };
    let slow = |stream: &mut TcpStream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{{")?;
        stream.read(&mut [0; 1]).map(drop)
    };
    let refused =
        |stream: &mut TcpStream| write!(stream, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
    let nested = |stream: &mut TcpStream| page(stream, &"[".repeat(100_000));
    let wrong = |stream: &mut TcpStream| {
        page(stream, r#"{"data":{"result":[{"metric":7,"value":["a",1]}]}}"#)
    };
    for (address, _requests) in [
        prometheus(endless),
        prometheus(slow),
        prometheus(refused),
        prometheus(nested),
        prometheus(wrong),
    ] {
        let peers = asking(address);
        let state = ask(&peers);
        assert_eq!((state.answered, state.failed), (0, 1));
        assert_eq!(peers.known(Instant::now()), Peers::default());
    }
}
