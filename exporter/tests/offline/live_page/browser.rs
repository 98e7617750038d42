//! A headless Chromium, driven over a pipe by its DevTools protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The pipe is on the descriptors 3 and 4.
const PIPE: &str = r#"exec 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null; exec chromium "$@""#;
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
];

/// A browser with one tab. Killed when dropped.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    _profile: TempDir,
}

impl Browser {
    /// Starts it; `.ci/install chromium:chromium` installs it.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", PIPE, "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            // Files that it leaves there when it is killed go with its profile.
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, messages) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let messages = BufReader::new(messages);
        let mut browser =
            Self { child, requests, messages, session: None, last: 0, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", &json!({}));
        // Violations of the policy, and errors of the script.
        let source = "window.wrong = [];
            addEventListener('securitypolicyviolation', (e) => wrong.push(e.violatedDirective + ' ' + e.blockedURI));
            addEventListener('error', (e) => wrong.push(String(e.message)));
            addEventListener('unhandledrejection', (e) => wrong.push(String(e.reason)));";
        browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({"source": source}));
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.reply(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn reply(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.clone().into();
        }
        write!(self.requests, "{request}\0").unwrap();
        loop {
            let mut message = Vec::new();
            let length = self.messages.read_until(0, &mut message).unwrap();
            assert!(
                length > 0,
                "chromium has ended: is it installed? .ci/install chromium:chromium"
            );
            message.pop();
            let mut message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == self.last {
                let error = message["error"].take();
                return if error.is_null() { Ok(message["result"].take()) } else { Err(error) };
            }
        }
    }

    /// Opens a page; returns when its script has run.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        self.evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let mut result = self.reply("Runtime.evaluate", &params)?;
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        Ok(result["result"]["value"].take())
    }

    /// Waits until an expression is true. Meanwhile it has no value where the page is left for another.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        gpucause_fixture::poll::until(expression, || {
            self.evaluate(expression).is_ok_and(|value| value == true).then_some(())
        });
    }

    /// A picture of the page.
    pub(crate) fn screenshot(&mut self, path: &Path) {
        let size = self.call("Page.getLayoutMetrics", &json!({}));
        let height = &size["cssContentSize"]["height"];
        let clip = json!({"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", &params);
        let data = picture["data"].as_str().unwrap();
        let data = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
        std::fs::write(path, data).unwrap();
    }

    /// Presses a key.
    pub(crate) fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": 9});
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Sets the colour scheme that the reader prefers.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends with the pipe, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
