//! A stand-in for an OTLP receiver that gives the answers that a test sets, one after the other.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// How a request is answered.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Its records are taken.
    Take,
    /// They are, and the connection breaks before the answer.
    TakeAndHangUp,
    /// They are, but for the first so many.
    Partial(usize),
    /// With this status and further lines of the head.
    Status(&'static str),
    /// With a page for browsers.
    Page,
    /// With an answer that never ends.
    Endless,
    /// With a head that never ends.
    Silence,
    /// Not at all: the connection breaks.
    HangUp,
}

/// Requests and records that came so far.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Ids of taken records, in order.
    pub(crate) taken: Vec<String>,
    /// When requests came.
    pub(crate) requests: Vec<Instant>,
    /// Heads of requests, in lower case.
    pub(crate) heads: Vec<String>,
    answers: VecDeque<Answer>,
}

/// Answers on a port of its own until the test ends.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    pub(crate) received: Arc<Mutex<Received>>,
}

impl Receiver {
    /// Gives these answers, and takes what comes after them.
    pub(crate) fn start(answers: &[Answer]) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), None, answers)
    }

    pub(crate) fn on(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        answers: &[Answer],
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let answers = answers.iter().cloned().collect();
        let received = Arc::new(Mutex::new(Received { answers, ..Received::default() }));
        let all = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (received, tls) = (Arc::clone(&all), tls.clone());
                // A client that has gone is no failure of the test.
                std::thread::spawn(move || match tls {
                    None => drop(serve(stream, &received)),
                    Some(tls) => {
                        let connection = ServerConnection::new(tls).unwrap();
                        drop(serve(StreamOwned::new(connection, stream), &received));
                    }
                });
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn taken(&self) -> Vec<String> {
        self.received.lock().unwrap().taken.clone()
    }
}

fn serve(stream: impl io::Read + Write, received: &Mutex<Received>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some((head, body)) = request(&mut stream)? else { return Ok(()) };
        let ids = ids(&body);
        let mut own = received.lock().unwrap();
        own.requests.push(Instant::now());
        own.heads.push(head);
        let answer = own.answers.pop_front().unwrap_or(Answer::Take);
        let from = match answer {
            Answer::Take | Answer::TakeAndHangUp => 0,
            Answer::Partial(rejected) => rejected,
            _ => ids.len(),
        };
        own.taken.extend_from_slice(&ids[from.min(ids.len())..]);
        drop(own);
        if !respond(stream.get_mut(), &answer)? {
            return Ok(());
        }
    }
}

/// The head in lower case, and the body of a request; `None` when there is no more.
fn request(stream: &mut impl io::BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/logs http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body)?;
    let mut plain = Vec::new();
    GzDecoder::new(&*body).read_to_end(&mut plain)?;
    Ok(Some((head, plain)))
}

/// Sends an answer; returns true if the connection stays.
fn respond(stream: &mut impl Write, answer: &Answer) -> io::Result<bool> {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n";
    match answer {
        Answer::Take => write!(stream, "{OK}Content-Length: 0\r\n\r\n")?,
        Answer::TakeAndHangUp | Answer::HangUp => return Ok(false),
        Answer::Partial(rejected) => {
            let partial_success = Some(ExportLogsPartialSuccess {
                rejected_log_records: i64::try_from(*rejected).unwrap(),
                error_message: "too old".to_owned(),
            });
            let body = ExportLogsServiceResponse { partial_success }.encode_to_vec();
            write!(stream, "{OK}Content-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body)?;
        }
        Answer::Status(head) => write!(stream, "HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n")?,
        Answer::Page => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<h1>Log in</h1>")?;
            return Ok(false);
        }
        Answer::Endless => {
            write!(stream, "{OK}Transfer-Encoding: chunked\r\n\r\n")?;
            loop {
                write!(stream, "1000\r\n{}\r\n", "x".repeat(0x1000))?;
            }
        }
        Answer::Silence => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            loop {
                write!(stream, "X-Wait: 1\r\n")?;
                stream.flush()?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    stream.flush()?;
    Ok(true)
}

fn ids(body: &[u8]) -> Vec<String> {
    let request = ExportLogsServiceRequest::decode(body).unwrap();
    let logs = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
    let records = logs.flat_map(|logs| logs.log_records);
    let id = |record: opentelemetry_proto::tonic::logs::v1::LogRecord| {
        let own = record.attributes.into_iter().find(|own| own.key == "log.record.uid");
        match own.unwrap().value.unwrap().value.unwrap() {
            Value::StringValue(id) => id,
            other => panic!("{other:?}"),
        }
    };
    records.map(id).collect()
}

/// A port that nobody listens at until the test does.
pub(crate) fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // No connection was accepted, so that the port is free at once.
    drop(listener);
    assert!(TcpStream::connect(address).is_err());
    address
}
