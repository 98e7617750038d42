//! A receiver of Alertmanager's notifications, in place of a pager.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// An alert of a notification.
#[derive(Debug, Clone)]
pub(crate) struct Alert {
    /// When it came, in seconds since the Unix epoch.
    pub(crate) at_unix: f64,
    pub(crate) receiver: String,
    pub(crate) resolved: bool,
    content: Value,
}

impl Alert {
    pub(crate) fn name(&self) -> &str {
        self.label("alertname")
    }

    pub(crate) fn label(&self, key: &str) -> &str {
        self.content["labels"][key].as_str().unwrap_or_default()
    }

    pub(crate) fn annotation(&self, key: &str) -> &str {
        self.content["annotations"][key].as_str().unwrap_or_default()
    }
}

/// Receives notifications until the program ends.
pub(crate) struct Webhook {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Alert>>>,
}

impl Webhook {
    pub(crate) fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<Alert>>>::default();
        let keeping = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // Alertmanager repeats an interrupted notification.
                let alerts = receive(stream).unwrap_or_default();
                keeping.lock().unwrap().extend(alerts);
            }
        });
        Self { address, received }
    }

    /// All so far, in order of arrival. Alerts that are repeated with their group are repeated here.
    pub(crate) fn received(&self) -> Vec<Alert> {
        self.received.lock().unwrap().clone()
    }

    /// The first that matches.
    pub(crate) fn first(&self, is_it: impl Fn(&Alert) -> bool) -> Option<Alert> {
        self.received.lock().unwrap().iter().find(|alert| is_it(alert)).cloned()
    }
}

/// The alerts of one request. The path is the name of the receiver.
fn receive(stream: TcpStream) -> Option<Vec<Alert>> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let receiver = line.split(' ').nth(1)?.trim_start_matches('/').to_owned();
    let mut length = 0;
    while line.trim_end() != "" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some((key, value)) = line.split_once(':')
            && key.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let notification: Value = serde_json::from_slice(&body).ok()?;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    reader.get_mut().write_all(answer).ok()?;
    let at_unix = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    let alerts = notification["alerts"].as_array()?.iter().map(|content| Alert {
        at_unix,
        receiver: receiver.clone(),
        resolved: content["status"] == "resolved",
        content: content.clone(),
    });
    Some(alerts.collect())
}
