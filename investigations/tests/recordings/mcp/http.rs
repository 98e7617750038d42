//! Over HTTP: who is let in, and who is not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot};
use gpucause_abi::state::{Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_http::client::{Address, Client};
use gpucause_http::token::Token;
use gpucause_investigations::mcp::http::{Access, PATH, serve};
use gpucause_investigations::mcp::{Assistant, Source, SqlOfFile, Stores};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::recording::{Memory, Quiet};
use super::{answer, answers, arguments, assert_all_is_reported, call, client, of_memory, run};
use crate::fake_node::{Nature, start};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Serves on loopback; gives the port.
fn listening(assistant: Assistant) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let token = Token::of(TOKEN).unwrap();
    let access = Access { token, hosts: vec!["gpu-1".into()], tls: Arc::new(|| None) };
    tokio::spawn(serve(assistant, listener, access, std::future::pending()));
    port
}

#[test]
fn the_public_client_calls_every_tool_over_http_with_a_token() {
    let reported = run(async {
        let port = listening(of_memory(true));
        let url = format!("http://127.0.0.1:{port}{PATH}");
        tokio::task::spawn_blocking(move || client("http", &arguments(), &[&url, TOKEN]))
            .await
            .unwrap()
    });
    assert_all_is_reported(&reported);
}

/// A process with nine launches of graphs of 0.4 ms each, and waits of a tenth of a second.
pub(crate) fn process(pid: u32) -> ProcessSnapshot {
    let times = |count: u64, each: u64| Histogram {
        sum: Nanos(count * each),
        max: Nanos(each),
        slots: vec![(u16::try_from(slot_of(Nanos(each))).unwrap(), count)].into(),
    };
    let op = op_of_symbol("cudaGraphLaunch").unwrap();
    let waits = (Role::Dispatcher, Reason::Futex, times(5, 100_000_000));
    ProcessSnapshot {
        dispatches: true,
        calls: vec![CallSnapshot::unstalled(op, false, times(9, 400_000))],
        offcpu: vec![waits],
        ..ProcessSnapshot::new(ProcId(pid), Tgid(pid), Comm(*b"t\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"))
    }
}

pub(crate) fn client_of(port: u16) -> Client {
    let url = format!("http://127.0.0.1:{port}");
    Client::new(Address::parse(&url, [80, 443]).unwrap(), None).unwrap()
}

#[test]
fn other_requests_are_answered_while_the_rows_of_a_node_are_inserted() {
    run(async {
        let processes = (1..=5000).map(process).collect();
        let nature = Nature { processes, ..Nature::default() };
        let source = Source::Nodes(vec![client_of(start("gpu-a", nature).await)]);
        let host = Arc::new(Quiet { allow_demo: false });
        let assistant = Assistant::new(source, host, Stores::default());
        let lines = [call(1, "run_sql", &json!({"sql": "SELECT sum(count) FROM call_totals"}))];
        let begin = Instant::now();
        let asked = tokio::spawn(async move { answers(assistant, &lines, 1).await });
        let mut longest = Duration::ZERO;
        while !asked.is_finished() {
            let turn = Instant::now();
            tokio::task::yield_now().await;
            longest = longest.max(turn.elapsed());
        }
        let answer = asked.await.unwrap().remove(0).to_string();
        assert!(answer.contains("45000"), "{answer}");
        assert!(longest < begin.elapsed() / 2, "{longest:?} of {:?}", begin.elapsed());
    });
}

#[test]
fn live_nodes_are_reported_with_those_that_do_not_answer() {
    let reported = run(async {
        let observation = Some(json!({"state": "disabled", "timed_share": 0, "since": 1.7e9 + 0.5,
            "reason": "SIGUSR1"}));
        let nature = Nature { processes: vec![process(7)], observation, ..Nature::default() };
        let a = start("gpu-a", nature).await;
        let b = start("gpu-b", Nature { refuses: true, ..Nature::default() }).await;
        let source = Source::Nodes(vec![client_of(a), client_of(b)]);
        let port = listening(Assistant::new(
            source,
            Arc::new(Quiet { allow_demo: false }),
            Stores::default(),
        ));
        let url = format!("http://127.0.0.1:{port}{PATH}");
        let sql = "SELECT (SELECT count(*) FROM nodes), (SELECT reason FROM failures), sum(count) FROM call_totals JOIN processes ON processes.id = process WHERE pid = 7";
        let asked = json!({"run_sql": {"sql": sql}});
        tokio::task::spawn_blocking(move || client("http", &asked, &[&url, TOKEN])).await.unwrap()
    });
    let sql = answer(&reported, "run_sql");
    assert_eq!((&sql["rows"][0][0], &sql["rows"][0][2]), (&json!(1), &json!(9)), "{sql}");
    assert!(sql["rows"][0][1].as_str().unwrap().contains("not for you"), "{sql}");
    assert_eq!((&sql["nodes_answered"], &sql["nodes_failed"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&sql["source"], &sql["observation"][0]["state"]),
        (&json!("live nodes, now"), &json!("disabled"))
    );
    let fleet = answer(&reported, "query_fleet");
    assert_eq!((&fleet["nodes_answered"], &fleet["nodes_failed"]), (&json!(1), &json!(1)));
    assert!(fleet["failures"][0]["reason"].as_str().unwrap().contains("not for you"), "{fleet}");
    assert_eq!(fleet["observation"][0]["reason"], "SIGUSR1");
    assert!(fleet["note"].as_str().unwrap().starts_with("not observed"), "{fleet}");
    for tool in [
        "query_fleet",
        "get_causal_chains",
        "get_data_quality",
        "get_trace_stats",
        "graph_lifecycle",
        "graph_frequency",
    ] {
        let observation = &answer(&reported, tool)["observation"][0];
        assert_eq!(
            (&observation["node"], &observation["state"]),
            (&json!("gpu-a"), &json!("disabled"))
        );
        assert_eq!(observation["since"], 1_700_000_000.5, "{tool}");
        let text = reported["answers"][tool]["text"].as_str().unwrap();
        assert!(text.starts_with(r#"{"observation":"#), "{tool}: {text}");
    }
    let report = answer(&reported, "get_data_quality");
    let details = &report["nodes"][0]["details"];
    assert_eq!(
        (&details["probes_attached"], &details["probes_not_attached"]),
        (&json!("1"), &json!("switch: broken"))
    );
    let stats = answer(&reported, "get_trace_stats");
    assert_eq!(
        (&stats["calls"][0]["count"], &stats["calls"][0]["p99_us"]),
        (&json!(9), &json!(400.0))
    );
    assert_eq!(stats["waits"][0]["reason"], "futex (dispatcher)");
    assert_eq!(answer(&reported, "graph_lifecycle")["processes"][0]["launches"]["count"], 9);
    assert_eq!(answer(&reported, "graph_frequency")["processes"][0]["launches_per_s"], 0.0);
    assert_eq!(
        reported["answers"].get("get_stacks"),
        None,
        "it is for a trace file, and not listed"
    );
}

/// A connection that has asked, and said that its body has so many bytes.
async fn asking(port: u16, headers: &str, body: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    // A refusal may come before all is sent.
    let _ = stream.write_all(request.as_bytes()).await;
    stream
}

async fn asked(port: u16, headers: &str, body: &str) -> String {
    answered(asking(port, headers, body, body.len()).await).await
}

async fn answered(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(20), reading).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn wrong_names_pages_and_tokens_are_refused_and_so_is_what_is_no_message() {
    run(async {
        let port = listening(of_memory(false));
        let token = format!("Authorization: Bearer {TOKEN}\r\n");
        let local = "Host: localhost\r\n".to_owned() + &token;
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let huge = call(1, "run_sql", &json!({"sql": "x".repeat(1 << 20)}));
        for (headers, body, status) in [
            (&*local, list, "HTTP/1.1 200"),
            (&format!("Host: gpu-1:9402\r\n{token}"), list, "HTTP/1.1 200"),
            (&format!("Host: evil.example\r\n{token}"), list, "HTTP/1.1 403"),
            (&token, list, "HTTP/1.1 403"),
            (&format!("{local}Origin: http://localhost\r\n"), list, "HTTP/1.1 403"),
            (&format!("{local}Sec-Fetch-Site: cross-site\r\n"), list, "HTTP/1.1 403"),
            ("Host: localhost\r\n", list, "HTTP/1.1 401"),
            ("Host: localhost\r\nAuthorization: Bearer wrong\r\n", list, "HTTP/1.1 401"),
            (&local, "{not json", "HTTP/1.1 4"),
            (&local, "[]", "HTTP/1.1 4"),
            (&local, &huge, "HTTP/1.1 413"),
        ] {
            let answer = asked(port, headers, body).await;
            assert!(answer.starts_with(status), "{headers}: {status} expected, got {answer}");
            assert!(status == "HTTP/1.1 200" || !answer.contains("get_causal_chains"), "{answer}");
        }
    });
}

#[test]
fn clients_without_a_token_keep_none_with_it_out_and_are_refused_once() {
    run(async {
        let port = listening(of_memory(false));
        let mut idlers = Vec::new();
        for _ in 0..200 {
            idlers.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let token = format!("Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
        let begin = std::time::Instant::now();
        let answer = asked(port, &token, list).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(begin.elapsed() < Duration::from_secs(8), "it waited until others were given up");
        let first = idlers[0].read(&mut [0; 1]).await;
        assert!(matches!(first, Ok(0) | Err(_)), "the oldest makes room: {first:?}");

        // Kept alive, it would hold its connection by being refused again and again.
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let request =
            format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let all = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
        all.await.expect("the connection ends with the refusal").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&answer));
    });
}

fn with_token() -> String {
    format!("Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n")
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

#[test]
fn clients_that_withhold_their_bodies_keep_nobody_out_and_are_given_up() {
    run(async {
        let port = listening(of_memory(false));
        let mut withheld = Vec::new();
        for _ in 0..200 {
            withheld.push(asking(port, &with_token(), "", 200_000).await);
        }
        let begin = Instant::now();
        let answer = asked(port, &with_token(), LIST).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        let last = answered(withheld.pop().unwrap()).await;
        assert!(last.starts_with("HTTP/1.1 408"), "{last}");
        assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
    });
}

#[test]
fn statements_of_clients_that_hang_up_delay_nobody() {
    const ENDLESS: &str =
        "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT sum(x) FROM a";
    let file = tempfile::NamedTempFile::new().unwrap();
    let database = rusqlite::Connection::open(file.path()).unwrap();
    database.execute_batch("CREATE TABLE t (x)").unwrap();
    drop(database);
    run(async {
        let sql = SqlOfFile(file.path().to_owned());
        let source = Source::file(Box::new(Memory::new()), Some(Box::new(sql)));
        let host = Arc::new(Quiet { allow_demo: false });
        let port = listening(Assistant::new(source, host, Stores::default()));
        let endless = call(1, "run_sql", &json!({"sql": ENDLESS}));
        let mut impatient = Vec::new();
        for _ in 0..10 {
            impatient.push(asking(port, &with_token(), &endless, endless.len()).await);
        }
        // Some have begun when another client is answered.
        let checked = asked(port, &with_token(), LIST).await;
        assert!(checked.starts_with("HTTP/1.1 200"), "{checked}");
        drop(impatient);
        let begin = Instant::now();
        let sum = call(1, "run_sql", &json!({"sql": "SELECT 40 + 2"}));
        let answer = asked(port, &with_token(), &sum).await;
        assert!(answer.contains("42"), "{answer}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    });
}
