//! A node that is made up: answers each request on each of its connections with what it is told to.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// How a node is.
#[derive(Clone, Default)]
pub(crate) struct Nature {
    /// Its clock is so many seconds ahead.
    pub(crate) ahead: f64,
    /// It thinks that long.
    pub(crate) delay: Duration,
    /// It tells nobody anything.
    pub(crate) refuses: bool,
    /// It speaks TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Its page of metrics.
    pub(crate) page: String,
}

/// Starts one; gives its port.
pub(crate) async fn start(name: &'static str, nature: Nature) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let nature = nature.clone();
            tokio::spawn(async move {
                match nature.tls.clone() {
                    None => talk(stream, name, &nature).await,
                    Some(tls) => {
                        if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                            talk(stream, name, &nature).await;
                        }
                    }
                }
            });
        }
    });
    port
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, name: &str, nature: &Nature) {
    let mut request = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&bytes[..length]),
        }
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        tokio::time::sleep(nature.delay).await;
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() + nature.ahead;
        let (status, body) = if nature.refuses {
            ("403 Forbidden", json!({"status": "error", "error": "not for you"}).to_string())
        } else if request.starts_with(b"GET /metrics ") {
            ("200 OK", nature.page.clone())
        } else {
            let data = json!({"node": name, "now": now, "watched_since": now - 60.0, "chains": []});
            ("200 OK", json!({"status": "success", "data": data}).to_string())
        };
        request.clear();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
