//! A stand-in for a store over HTTP: a Prometheus or a ClickHouse.

use std::sync::Arc;

use gpucause_http::client::{Address, Client};
use gpucause_investigations::clickhouse::ClickHouse;
use gpucause_investigations::mcp::{Assistant, Source, Stores};
use gpucause_investigations::prometheus::Prometheus;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::recording::{Memory, Quiet, Sql};
use super::{answers, call, run};

/// Returns the store's answer to a path, with its status.
pub(crate) type Answering = fn(&str) -> (&'static str, String);

/// An assistant that asks the store, and the paths that were asked.
pub(crate) async fn beside(answering: Answering) -> (Assistant, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let paths = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = answering(&path);
            paths.lock().push(path);
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let client = Client::new(Address::parse(&url, [80, 443]).unwrap(), None).unwrap();
    let clickhouse = Some(ClickHouse::new(client.clone(), None));
    let stores = Stores { prometheus: Some(Prometheus::new(client)), clickhouse };
    let source = Source::file(Box::new(Memory::new()), Some(Box::new(Sql)));
    let host = Arc::new(Quiet { allow_demo: true });
    (Assistant::new(source, host, stores), asked)
}

/// An answer of a Prometheus.
pub(crate) fn samples(samples: &[(Value, &str)]) -> (&'static str, String) {
    let result: Vec<_> = samples
        .iter()
        .map(|(labels, value)| json!({"metric": labels, "value": [1.0, value]}))
        .collect();
    ("200 OK", json!({"status": "success", "data": {"result": result}}).to_string())
}

/// The texts of answers to calls, and whether each is an error.
pub(crate) fn texts(
    tool: &str,
    answering: Answering,
    arguments: &[Value],
) -> (Vec<(bool, String)>, Vec<String>) {
    run(async {
        let (assistant, asked) = beside(answering).await;
        let mut texts = Vec::new();
        for arguments in arguments {
            let lines = [call(1, tool, arguments)];
            let answer = answers(assistant.clone(), &lines, 1).await.remove(0);
            let text = match &answer["error"]["message"] {
                Value::String(text) => (true, text.clone()),
                _ => {
                    let result = &answer["result"];
                    let text = result["content"][0]["text"].as_str().unwrap().to_owned();
                    (result["isError"] == true, text)
                }
            };
            texts.push(text);
        }
        let paths = asked.lock().clone();
        (texts, paths)
    })
}
