//! One message per line, of bounded length. Invalid lines are answered with an error.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    ClientNotification, ErrorCode, ErrorData, JsonRpcMessage, JsonRpcNotification, RequestId,
};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

/// Longest line, in bytes.
const MAX_LINE: usize = 256 << 10;

pub(super) struct Lines<R, W> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// True while the rest of an overlong line is being skipped. A field, because reading may be cancelled and resumed.
    skipping: bool,
    output: Arc<Mutex<W>>,
    /// Requests without an answer.
    open: watch::Sender<HashSet<RequestId>>,
    /// How long the end of the input waits for their answers, which the library waits for briefly.
    longest: Duration,
}

impl<R: AsyncRead + Unpin, W> Lines<R, W> {
    pub(super) fn new(input: R, output: W, longest: Duration) -> Self {
        let (input, output) = (BufReader::new(input), Arc::new(Mutex::new(output)));
        let (open, line) = (watch::Sender::default(), Vec::new());
        Self { input, line, skipping: false, output, open, longest }
    }

    /// Keeps account of requests that are to be answered.
    fn note(&self, message: &RxJsonRpcMessage<RoleServer>) {
        match message {
            JsonRpcMessage::Request(request) => self.open.send_modify(|open| {
                open.insert(request.id.clone());
            }),
            JsonRpcMessage::Notification(JsonRpcNotification {
                notification: ClientNotification::CancelledNotification(cancelled),
                ..
            }) => self.open.send_modify(|open| {
                let id = cancelled.params.request_id.as_ref();
                open.retain(|own| Some(own) != id);
            }),
            _ => {}
        }
    }

    /// The next line and whether it fits; an overlong one is returned empty. `None` at the end of the input.
    async fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        loop {
            let bytes = self.input.fill_buf().await.ok().filter(|bytes| !bytes.is_empty())?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(bytes.len());
            if self.skipping || self.line.len() + taken > MAX_LINE {
                self.skipping = true;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(&bytes[..taken]);
            }
            self.input.consume(end.map_or(taken, |end| end + 1));
            if end.is_some() {
                let fits = !std::mem::take(&mut self.skipping);
                return Some((std::mem::take(&mut self.line), fits));
            }
        }
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (output, open) = (Arc::clone(&self.output), self.open.clone());
        async move {
            let id = match &item {
                JsonRpcMessage::Response(answer) => Some(answer.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                _ => None,
            };
            let written = write(output, item).await;
            open.send_modify(|open| open.retain(|own| Some(own) != id.as_ref()));
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let Some((line, fits)) = self.next().await else {
                // An overdue answer is not waited for.
                let _ =
                    timeout(self.longest, self.open.subscribe().wait_for(HashSet::is_empty)).await;
                return None;
            };
            let problem = if fits {
                match parse(&line) {
                    Ok(None) => continue,
                    Ok(Some(message)) => {
                        self.note(&message);
                        return Some(*message);
                    }
                    Err(problem) => problem,
                }
            } else {
                ErrorData::invalid_request(format!("a line may have {MAX_LINE} bytes"), None)
            };
            // Without an id: MCP's schema has no null, which JSON-RPC alone would ask for.
            write(Arc::clone(&self.output), TxJsonRpcMessage::<RoleServer>::error(problem, None))
                .await
                .ok()?;
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.shutdown().await
    }
}

type Message = Box<RxJsonRpcMessage<RoleServer>>;

/// The message of a line, unless it is blank.
fn parse(line: &[u8]) -> Result<Option<Message>, ErrorData> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let value: Value = serde_json::from_slice(line)
        .map_err(|_| ErrorData::new(ErrorCode::PARSE_ERROR, "not valid JSON", None))?;
    serde_json::from_value(value)
        .map(|message| Some(Box::new(message)))
        .map_err(|_| ErrorData::invalid_request("not an MCP message", None))
}

async fn write<W: AsyncWrite + Unpin>(
    output: Arc<Mutex<W>>,
    item: TxJsonRpcMessage<RoleServer>,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(&item)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}

#[cfg(test)]
mod tests {
    use rmcp::model::{EmptyResult, ServerResult};

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_input_waits_for_answers_of_requests_that_were_not_cancelled() {
        let input = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            "\n",
            r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#,
            "\n"
        );
        let mut lines = Lines::new(input.as_bytes(), Vec::new(), Duration::MAX);
        for _ in 0..3 {
            assert!(lines.receive().await.is_some());
        }
        let early = timeout(Duration::ZERO, lines.receive()).await;
        assert!(early.is_err(), "the first request has no answer yet");
        let result = ServerResult::EmptyResult(EmptyResult {});
        let answer = TxJsonRpcMessage::<RoleServer>::response(result, RequestId::Number(1));
        lines.send(answer).await.unwrap();
        assert!(lines.receive().await.is_none());
    }

    #[tokio::test]
    async fn an_overdue_answer_does_not_hold_up_the_end() {
        let input = concat!(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "\n");
        let mut lines = Lines::new(input.as_bytes(), Vec::new(), Duration::ZERO);
        assert!(lines.receive().await.is_some());
        assert!(lines.receive().await.is_none());
    }
}
