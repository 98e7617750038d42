//! An assistant that calls tools of `gpucause mcp` over standard input and output.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

pub(crate) struct Assistant {
    server: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Assistant {
    pub(crate) fn of(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command
            .args(["mcp", "--log.level=warn"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let output = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut own = Self { input: server.stdin.take(), server, output };
        let client = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
        own.request("initialize", &client);
        own.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        own
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
        let line = self.output.next().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Calls a tool; returns true if the answer is an error, and its text.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> (bool, String) {
        let answer = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{tool}: {answer}")).to_owned();
        (result["isError"] == true, text)
    }

    /// The answer of a tool that has one.
    pub(crate) fn answer(&mut self, tool: &str, arguments: &Value) -> Value {
        let (is_error, text) = self.call(tool, arguments);
        assert!(!is_error, "{tool}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Largest resident memory of the server so far, in MiB.
    pub(crate) fn peak_mib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.server.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        // It ends with its input.
        self.input = None;
        let _ = self.server.wait();
    }
}
