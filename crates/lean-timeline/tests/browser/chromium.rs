//! A headless Chromium, controlled with its DevTools protocol over a pipe: no port, no driver.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

const FLAGS: [&str; 11] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
];

/// After this time without an answer the browser counts as hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// The Chromium of this machine, if it has one.
pub(crate) fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders: Vec<_> = env::split_paths(&path).collect();
    let mut candidates = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    // The pipe of the protocol needs a Unix shell.
    candidates
        .find(|program| program.is_file())
        .filter(|_| cfg!(unix))
}

/// A key that is held down, by its number in the protocol.
#[derive(Clone, Copy)]
pub(crate) enum Modifier {
    None = 0,
    Alt = 1,
    Shift = 8,
}

/// One page in a browser of its own.
pub(crate) struct Page {
    browser: Child,
    // Its profile, which Chromium writes until it ends.
    _profile: TempDir,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    opened: Duration,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

impl Page {
    /// Opens the file, and waits until it is drawn.
    pub(crate) fn open(file: &Path) -> Self {
        let mut page = Self::launch();
        let target = page.send("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = page.send("Target.attachToTarget", attach);
        page.session = session["sessionId"].as_str().map(Into::into);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.send(&format!("{domain}.enable"), json!({}));
        }
        let size = json!({ "width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        page.send("Emulation.setDeviceMetricsOverride", size);

        let started = Instant::now();
        let url = format!("file://{}", file.display());
        page.send("Page.navigate", json!({ "url": url }));
        page.wait_for("Page.loadEventFired");
        page.evaluate::<Value>("burnMemory.opened");
        page.frame();
        page.opened = started.elapsed();
        page
    }

    fn launch() -> Self {
        let program = find().expect("tests run only where there is a Chromium");
        let profile = TempDir::new().unwrap();
        // Chromium reads from descriptor 3 and writes to 4.
        let mut browser = Command::new("sh")
            .arg("-c")
            .arg(r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#)
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = browser.stdin.take().unwrap();
        let out = browser.stdout.take().unwrap();
        let (sender, from) = mpsc::channel();
        thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    break;
                };
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self {
            browser,
            _profile: profile,
            to,
            from,
            session: None,
            last: 0,
            events: Vec::new(),
            opened: Duration::ZERO,
        }
    }

    /// The time from opening the file to the first frame.
    pub(crate) fn opened(&self) -> Duration {
        self.opened
    }

    fn receive(&self) -> Value {
        self.from
            .recv_timeout(PATIENCE)
            .expect("Chromium does not answer")
    }

    fn send(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let mut answer = self.receive();
            if answer["id"] == json!(self.last) {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn wait_for(&mut self, event: &str) {
        while !self.events.iter().any(|of| of["method"] == event) {
            let next = self.receive();
            self.events.push(next);
        }
    }

    /// The value of an expression of JavaScript, or of its promise.
    pub(crate) fn evaluate<T: DeserializeOwned>(&mut self, expression: &str) -> T {
        let params = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
        });
        let mut answer = self.send("Runtime.evaluate", params);
        let problem = answer.get("exceptionDetails");
        assert!(problem.is_none(), "{expression}: {problem:?}");
        serde_json::from_value(answer["result"]["value"].take())
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The text of an element.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        self.evaluate(&format!("document.querySelector({selector:?}).textContent"))
    }

    pub(crate) fn click_on(&mut self, selector: &str) {
        self.evaluate::<Value>(&format!("document.querySelector({selector:?}).click()"));
        self.frame();
    }

    /// Waits until everything is drawn.
    pub(crate) fn rest(&mut self) {
        self.frame();
        self.frame();
    }

    /// Waits for the next frame.
    pub(crate) fn frame(&mut self) {
        self.evaluate::<Value>(
            "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(null))))",
        );
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut params = json!({ "type": kind, "x": x, "y": y });
        let more = more.as_object().cloned().unwrap_or_default();
        params.as_object_mut().unwrap().extend(more);
        self.send("Input.dispatchMouseEvent", params);
    }

    /// Moves the mouse, and waits until the page has drawn its reaction.
    pub(crate) fn hover(&mut self, at: (f64, f64)) {
        self.mouse("mouseMoved", at, json!({}));
        self.frame();
    }

    /// Turns the wheel by a few notches: forward zooms in.
    pub(crate) fn wheel(&mut self, at: (f64, f64), notches: i32) {
        self.wheel_with(Modifier::None, at, notches);
    }

    pub(crate) fn wheel_with(&mut self, modifier: Modifier, at: (f64, f64), notches: i32) {
        for _ in 0..notches.abs() {
            let by = json!({
                "deltaX": 0,
                "deltaY": -120 * notches.signum(),
                "modifiers": modifier as u8,
            });
            self.mouse("mouseWheel", at, by);
        }
        self.rest();
    }

    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let held = |count: u32| json!({ "button": "left", "buttons": 1, "clickCount": count });
        self.mouse("mouseMoved", from, json!({}));
        self.mouse("mousePressed", from, held(1));
        self.mouse("mouseMoved", ((from.0 + to.0) / 2.0, to.1), held(0));
        self.mouse("mouseMoved", to, held(0));
        self.mouse("mouseReleased", to, held(1));
        self.rest();
    }

    pub(crate) fn click(&mut self, at: (f64, f64), times: u32) {
        self.mouse("mouseMoved", at, json!({}));
        for count in 1..=times {
            let press = json!({ "button": "left", "clickCount": count });
            self.mouse("mousePressed", at, press.clone());
            self.mouse("mouseReleased", at, press);
        }
        self.rest();
    }

    fn events(&mut self, method: &str) -> impl Iterator<Item = &Value> {
        // An answer comes after all earlier events.
        self.evaluate::<Value>("null");
        let events = self.events.iter();
        events.filter(move |event| event["method"] == method)
    }

    /// All messages of the console, with exceptions.
    pub(crate) fn problems(&mut self) -> Vec<String> {
        [
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
        ]
        .into_iter()
        .flat_map(|method| {
            let events = self.events(method).map(|event| event["params"].to_string());
            events.collect::<Vec<_>>()
        })
        .collect()
    }

    /// The addresses of all requests.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        self.events("Network.requestWillBeSent")
            .map(|event| event["params"]["request"]["url"].as_str().unwrap().into())
            .collect()
    }
}
