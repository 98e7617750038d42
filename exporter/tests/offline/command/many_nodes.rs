//! Questions to a thousand nodes: a bounded number at a time, in bounded time and memory, and those that fail are named.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_engine::chain::Chain;
use gpucause_trace::trace::{Start, Writer};
use serde_json::{Value, json};

use super::assistant::Assistant;

const NODES: u16 = 1000;
const RANKS: u16 = 8;
/// Nodes that fail, and how.
const SILENT: u16 = 300;
const REFUSING: u16 = 301;
const ENDLESS: u16 = 302;
const FOREIGN: u16 = 303;
const FAILING: [(u16, &str); 4] = [
    (SILENT, "did not answer within 4s"),
    (REFUSING, "not for you"),
    (ENDLESS, "larger than 32 MiB"),
    (FOREIGN, "is not gpucause"),
];
/// Requests in progress at most.
const PARALLEL: usize = 32;
/// Time of an answer on its way.
const LATENCY: Duration = Duration::from_millis(3);
/// Largest memory of the server in MiB.
const MOST_MIB: u64 = 300;

/// Nodes of one port on addresses of the loopback network.
struct Nodes {
    port: u16,
    asked: Arc<[AtomicUsize; 2]>,
    /// The list of them, for service discovery.
    list: tempfile::NamedTempFile,
}

/// In progress, and the most that were at a time.
fn begin([now, most]: &[AtomicUsize; 2]) {
    let now = now.fetch_add(1, Ordering::SeqCst) + 1;
    most.fetch_max(now, Ordering::SeqCst);
}

impl Nodes {
    fn start() -> Self {
        // All addresses of the loopback network are this host's.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<[AtomicUsize; 2]>::default();
        let counts = Arc::clone(&asked);
        // Before they are asked: answers have seconds.
        let snapshots: Arc<[_]> = (0..NODES).map(snapshot).collect();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (counts, snapshots) = (Arc::clone(&counts), Arc::clone(&snapshots));
                // A client that has gone is no failure of the test.
                std::thread::spawn(move || drop(serve(stream, &counts, &snapshots)));
            }
        });
        let targets: Vec<String> = (0..NODES).map(|node| Self::target(node, port)).collect();
        let mut list = tempfile::NamedTempFile::new().unwrap();
        list.write_all(json!([{"targets": targets}]).to_string().as_bytes()).unwrap();
        Self { port, asked, list }
    }

    fn target(node: u16, port: u16) -> String {
        let [high, low] = node.to_be_bytes();
        format!("127.1.{high}.{low}:{port}")
    }

    fn from(&self) -> String {
        format!("file_sd:{}", self.list.path().display())
    }

    /// The most requests in progress at a time since the last call.
    fn most_at_a_time(&self) -> usize {
        self.asked[1].swap(0, Ordering::SeqCst)
    }
}

fn serve(
    mut stream: TcpStream,
    counts: &[AtomicUsize; 2],
    snapshots: &[Vec<u8>],
) -> std::io::Result<()> {
    let SocketAddr::V4(own) = stream.local_addr()? else { return Ok(()) };
    let [_, _, high, low] = own.ip().octets();
    let node = u16::from_be_bytes([high, low]);
    loop {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut bytes = [0; 4096];
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                length => request.extend_from_slice(&bytes[..length]),
            }
        }
        if node == SILENT {
            continue;
        }
        begin(counts);
        std::thread::sleep(LATENCY);
        let (status, length, body) = respond(node, &request, snapshots);
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        counts[0].fetch_sub(1, Ordering::SeqCst);
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body)?;
    }
}

fn respond(node: u16, request: &[u8], snapshots: &[Vec<u8>]) -> (&'static str, usize, Vec<u8>) {
    let (status, body) = if node == REFUSING {
        let error = json!({"status": "error", "error": "not for you"});
        ("403 Forbidden", error.to_string().into_bytes())
    } else if node == FOREIGN {
        ("200 OK", b"[".repeat(10_000))
    } else if request.starts_with(b"GET /api/v1/snapshot ") {
        ("200 OK", snapshots[usize::from(node)].clone())
    } else {
        assert!(request.starts_with(b"GET /api/v1/chains "));
        ("200 OK", chains(node).to_string().into_bytes())
    };
    (status, if node == ENDLESS { 40 << 20 } else { body.len() }, body)
}

/// The snapshot of a node with eight ranks, each with calls of four operations.
fn snapshot(node: u16) -> Vec<u8> {
    let start = Start { node: format!("gpu-{node}"), ..Start::default() };
    let mut writer = Writer::in_memory(&start).unwrap();
    let slot = u16::try_from(slot_of(Nanos(1000))).unwrap();
    let rank = |rank: u16| {
        let number = u32::from(node * RANKS + rank);
        let calls =
            ["cudaLaunchKernel", "cudaMalloc", "cudaFree", "cudaStreamSynchronize"].map(|op| {
                let slots = vec![(slot, 1)].into();
                let durations = Histogram { sum: Nanos(1000), max: Nanos(1000), slots };
                CallSnapshot::unstalled(op_of_symbol(op).unwrap(), false, durations)
            });
        ProcessSnapshot {
            dispatches: true,
            rank: Some((number, 8000)),
            calls: calls.into(),
            ..ProcessSnapshot::new(
                ProcId(number + 1),
                Tgid(number + 1),
                Comm(*b"train.py\0\0\0\0\0\0\0\0"),
            )
        }
    };
    let snapshot = Snapshot { processes: (0..RANKS).map(rank).collect(), ..Snapshot::default() };
    let answer = chains(node);
    let chains: Vec<Chain> = serde_json::from_value(answer["data"]["chains"].clone()).unwrap();
    writer.add_snapshot(&EngineInput::new(Arc::new(snapshot), 1.0), &chains).unwrap();
    writer.into_bytes().unwrap()
}

fn chains(node: u16) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let chain = |number: u16| {
        json!({
            "id": format!("c{number}"), "cause": "lock_wait", "effect": "launch_tail", "severity": "high",
            "victim": {"pid": node * RANKS, "tid": node, "comm": "train.py"}, "culprit": null, "explained": 0.9,
            "lost_seconds": f64::from(node), "first_seen": now - 60.0, "last_seen": now, "ongoing": true,
            "evidence": {"p99_seconds": 0.0041}, "path": [], "sentence": "a lock is held. ".repeat(10), "fix": "release it",
        })
    };
    let chains: Vec<Value> = (0..3).map(chain).collect();
    json!({"status": "success", "data": {"node": format!("gpu-{node}"), "now": now, "watched_since": now - 60.0, "chains": chains}})
}

#[test]
fn a_thousand_nodes_are_asked_a_few_at_a_time_and_those_that_fail_are_named() {
    let nodes = Nodes::start();
    let mut assistant = Assistant::of(&["--nodes-from", &nodes.from()]);
    let good = u64::from(NODES) - FAILING.len() as u64;
    let ranks = good * u64::from(RANKS);
    for (sql, expected) in [
        (
            "SELECT count(*), (SELECT count(*) FROM nodes), (SELECT count(*) FROM failures) FROM chains",
            json!([3 * good, good, FAILING.len()]),
        ),
        ("SELECT count(DISTINCT rank), max(rank) FROM processes", json!([ranks, 7999])),
        ("SELECT count(*) / 4, min(count) FROM call_totals", json!([ranks, 1])),
    ] {
        let begin = Instant::now();
        let answer = assistant.answer("run_sql", &json!({"sql": sql, "detail": true}));
        let (took, most) = (begin.elapsed(), nodes.most_at_a_time());
        println!("{sql}: {took:?}, {most} at a time, {} MiB", assistant.peak_mib());
        assert_eq!(answer["rows"], json!([expected]), "{answer}");
        assert_eq!((&answer["nodes_answered"], &answer["nodes_failed"]), (&good.into(), &4.into()));
        assert!((2..=PARALLEL).contains(&most), "{most} requests at a time");
        // The time for all nodes, and that of the statement.
        assert!(took < Duration::from_secs(17), "{took:?}");
        for (failure, (node, why)) in answer["failures"].as_array().unwrap().iter().zip(FAILING) {
            let url = failure["url"].as_str().unwrap();
            assert_eq!(url, format!("http://{}", Nodes::target(node, nodes.port)));
            assert!(failure["reason"].as_str().unwrap().contains(why), "{failure}");
        }
    }
    assert_eq!(assistant.answer("get_data_quality", &json!({}))["nodes"][0]["processes"], RANKS);
    assert!(assistant.peak_mib() < MOST_MIB, "{} MiB", assistant.peak_mib());
    nodes.most_at_a_time();
    let (is_error, text) = assistant.call("run_sql", &json!({"sql": "SELECT cause FROM chain"}));
    assert!(is_error && text.contains("tables are call_totals, chains"), "{text}");
    assert_eq!(nodes.most_at_a_time(), 0, "no node is asked for an invalid statement");
}
