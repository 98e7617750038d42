//! One message per line, of bounded length. Invalid lines are answered with an error.

use std::io;
use std::sync::Arc;

use rmcp::model::{ErrorCode, ErrorData};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Mutex;

/// Longest line, in bytes.
const MAX_LINE: usize = 256 << 10;

pub(super) struct Lines<R, W> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// Whether the rest of an overlong line is being skipped. A field, because reading may be cancelled and resumed.
    skipping: bool,
    output: Arc<Mutex<W>>,
}

impl<R: AsyncRead + Unpin, W> Lines<R, W> {
    pub(super) fn new(input: R, output: W) -> Self {
        let (input, output) = (BufReader::new(input), Arc::new(Mutex::new(output)));
        Self { input, line: Vec::new(), skipping: false, output }
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
        write(Arc::clone(&self.output), item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let (line, fits) = self.next().await?;
            let problem = if fits {
                match parse(&line) {
                    Ok(None) => continue,
                    Ok(Some(message)) => return Some(*message),
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
